"""Looking into a batch that a producer wrote: decompressing its records within bounds, one large batch at a time.

On any thread but a processor's. A few kilobytes can hold gigabytes and a million records, so both are bounded before a batch is
decompressed. Its records are in memory as a whole, so batches that are large inside are decompressed one after the other.

Tests: tests/storage/log/test_times.py, tests/storage/log/test_log.py.
"""

from collections.abc import Callable
from typing import TypeVar

import attrs

from broker.runtime.threads import Lock
from broker.storage.log.log_config import LogConfig
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import HEADER_SIZE, BatchHeader
from protocol.kafka.records.compression import largest_size
from protocol.kafka.records.records import SMALLEST_RECORD, unpack

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
