"""Looking into batches: walking over those of a file, decompressing records within bounds, and taking entries apart.

Any thread that may block, so none of the processors': files are read, and batches decompressed.

A few kilobytes can hold gigabytes and a million records, so both are bounded before a batch is decompressed. Its records are in
memory as a whole, so batches and entries that are large inside are taken one after the other (``large``).

``walk`` reads a file chunk by chunk, and the batches of a chunk share its bytes. It does not verify checksums.

An entry becomes a record batch when a Kafka consumer reads it or compaction takes it apart. The translation is imported with the
first entry: it needs protobuf, which takes 40 ms and 4 MB that brokers without entries do not spend.

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
# size, which they bound by a similar number. If a topic allows larger batches, the bound is four times its max.message.bytes.
LARGEST_BYTES = 32 << 20
_LARGEST_RATIO = 4
# Records of a compressed batch: the largest batch.num.messages that librdkafka allows. Its default is 10,000.
MOST_RECORDS = 1_000_000
# A batch that cannot become larger is decompressed at once. With the default of 8 handlers these are 8 MiB together.
SMALL_BYTES = 1 << 20


def inspect(
    batch: memoryview | bytes, header: BatchHeader, config: LogConfig, large: Lock, look: Callable[[bytes], T]
) -> T:
    """Return the result of ``look`` for the bytes of the batch's records (``record_scan`` and ``read_records`` take them).
    ``look`` must not keep any of the bytes.

    Raises ProtocolError if ``look`` does, and, without decompressing it, for a batch that is larger than the bounds.
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

    Raises ProtocolError for bytes that are no batch, or for a batch that does not end in the region or the file; OSError.
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
            batch = data[at : at + size]
            if len(batch) < size and len(batch) < (least := needed(header)):
                if at == 0 and short:
                    raise ProtocolError(f"a record batch at position {position} that does not end")
                want = max(want, least)
                break
            yield header, position, batch
            at += size
            position += size
        else:
            if at == 0:
                raise ProtocolError(f"no record batch at position {position}")


# Larger entries are left as they are: each message takes 4 us. A Pulsar producer puts 1,000 into a batch by default.
MOST_MESSAGES = 100_000
# A larger entry is taken apart while no other is. Each message takes some 300 bytes until the entry is done.
_FEW_MESSAGES = 10_000


def as_records(batch: memoryview, header: BatchHeader, large: Lock) -> memoryview | None:
    """The batch of records, with the offsets of the entry; None for a batch that only looks like an entry, or has too many
    messages: consumers get it as it is. ``large`` is held while an entry is taken apart that is large inside."""
    from protocol.translation.to_kafka import open_entry

    entry = open_entry(batch, header)
    return None if entry is None or entry.messages > MOST_MESSAGES else _records(entry, large)


def taken_apart(batch: memoryview, header: BatchHeader, large: Lock) -> memoryview | None:
    """As ``as_records``, for a caller that removes records. None also for an entry that must stay whole: one whose keys are
    unknown because it is encrypted or cannot be read, and a chunk of a larger message."""
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
