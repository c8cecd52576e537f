"""Looking into a batch that a producer wrote: decompressing its records within bounds, one large batch at a time.

On any thread but a processor's. A few kilobytes can hold gigabytes and a million records, so both are bounded before a batch is
decompressed. Its records are in memory as a whole, so batches that are large inside are decompressed one after the other.

The batches of a region of a segment, one after another, with as many of their bytes as the caller needs.

Threads that may block: the file is read a chunk at a time, and the batches of a chunk share its bytes. Checksums are left to the
caller.

Entries as record batches of Kafka's: what Kafka's consumers get in the place of an entry, and what compaction takes apart.

On any thread but a processor's: the payload of an entry may be compressed. As in ``inspection.py``, entries that are large inside
are taken one after the other, because all of their messages are in memory then.

What translates is imported when the first entry is met: it needs protobuf, which takes 40 ms and 4 MB that brokers without
entries do not spend.

Tests: tests/storage/log/test_times.py,
tests/storage/log/test_log.py.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import attrs

from broker.runtime.disk import FileRegion
from broker.runtime.threads import Lock
from broker.storage.log.log_config import LogConfig
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import HEADER, HEADER_SIZE, MAGIC, SMALLEST_BATCH_LENGTH, BatchHeader
from protocol.kafka.records.compression import largest_size
from protocol.kafka.records.records import SMALLEST_RECORD, unpack

if TYPE_CHECKING:
    from protocol.translation.to_kafka import OpenedEntry


T = TypeVar("T")

# Size of a compressed batch, decompressed: 32 times the default max.message.bytes. Clients fill batches by their uncompressed
# size, which they bound by a similar number. If a topic allows larger batches, the bound is four times what it allows.
LARGEST_BYTES = 32 << 20
_LARGEST_RATIO = 4
# Records of a compressed batch: the largest batch.num.messages that librdkafka allows. Its default is 10,000.
MOST_RECORDS = 1_000_000
# A batch that cannot become larger is decompressed at once. With the default of 8 handlers these are 8 MiB together.
SMALL_BYTES = 1 << 20


def inspect(
    batch: memoryview | bytes, header: BatchHeader, config: LogConfig, large: Lock, look: Callable[[bytes], T]
) -> T:
    """What ``look`` returns for the bytes of the batch's records (``record_scan`` and ``read_records`` take them). It must not
    keep any of them.

    Raises ProtocolError if ``look`` does, and for a batch that is larger than the bounds, which is not decompressed then.
    """
    count, codec = header.record_count, header.compression
    body = batch[HEADER_SIZE : header.size]
    if count > MOST_RECORDS and count * SMALLEST_RECORD > len(body):
        raise ProtocolError(f"a compressed batch of {count} records")
    if not codec or largest_size(codec, body) <= SMALL_BYTES:
        return look(unpack(batch, 0, header))
    with large:
        result = _look(batch, header, max(LARGEST_BYTES, _LARGEST_RATIO * config.max_message_bytes), look)
    if isinstance(result, _Refused):
        raise ProtocolError(result.reason)
    return result


@attrs.frozen
class _Refused:
    reason: str


def _look(batch: memoryview | bytes, header: BatchHeader, limit: int, look: Callable[[bytes], T]) -> T | _Refused:
    try:
        return look(unpack(batch, 0, header, max_size=limit))
    except ProtocolError as error:
        # Returned, not raised: its traceback would keep the decompressed bytes after the lock is released.
        return _Refused(str(error))


def walk(
    region: FileRegion, chunk_bytes: int, needed: Callable[[BatchHeader], int]
) -> Iterator[tuple[BatchHeader, int, memoryview]]:
    """Header, position in the file, and bytes of each batch from its beginning: all of them, or at least ``needed(header)``.

    Raises ProtocolError for bytes that are no batch, or one that does not end in the region or the file; OSError.
    """
    file, position, end = region.file, region.offset, region.offset + region.size
    want = chunk_bytes
    while position < end:
        want = min(want, end - position)
        data = memoryview(file.pread(want, position))
        short, want = len(data) < want, chunk_bytes
        at = 0
        while len(data) - at >= HEADER_SIZE:
            header = BatchHeader._make(HEADER.unpack_from(data, at))
            size = header.size
            if header.magic != MAGIC or header.batch_length < SMALLEST_BATCH_LENGTH or position + size > end:
                raise ProtocolError(f"no record batch at position {position}")
            found = data[at : at + size]
            if len(found) < size and len(found) < (least := needed(header)):
                if at == 0 and short:
                    raise ProtocolError(f"a record batch at position {position} that does not end")
                want = max(want, least)
                break
            yield header, position, found
            at += size
            position += size
        else:
            if at == 0:
                raise ProtocolError(f"no record batch at position {position}")


# Entries of more messages are left as they are: it takes 4 us for each. A Pulsar producer puts 1,000 into a batch by default.
MOST_MESSAGES = 100_000
# Messages that are taken apart beside others. Each takes some 300 bytes for as long as that lasts.
_FEW_MESSAGES = 10_000


def as_records(batch: memoryview, header: BatchHeader, large: Lock) -> memoryview | None:
    """The batch of records, with the offsets of the entry; None for a batch that only has the mark of one, or has too many
    messages: consumers get it as it is. ``large`` is held while an entry is taken apart that is large inside."""
    from protocol.translation.to_kafka import open_entry

    entry = open_entry(batch, header)
    return None if entry is None or entry.messages > MOST_MESSAGES else _records(entry, large)


def taken_apart(batch: memoryview, header: BatchHeader, large: Lock) -> memoryview | None:
    """As ``as_records``, for a caller that removes records. None also for an entry that must stay whole: one that is encrypted or
    cannot be read, so that its keys are not known, and a part of a message that was cut into chunks."""
    from protocol.translation.to_kafka import open_entry, stands_for_unreadable

    entry = open_entry(batch, header)
    if entry is None or not entry.readable or entry.messages > MOST_MESSAGES:
        return None
    batch = _records(entry, large)
    return None if stands_for_unreadable(batch) else batch


def _records(entry: "OpenedEntry", large: Lock) -> memoryview:
    if entry.inner_size <= SMALL_BYTES and entry.messages <= _FEW_MESSAGES:
        return entry.records()
    with large:
        return entry.records()
