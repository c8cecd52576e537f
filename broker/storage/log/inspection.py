"""Opening a batch that a producer wrote: its records decompressed, within bounds, and a large one at a time.

On whatever thread looks inside; never on a processor. A few kilobytes can hold gigabytes, and a million records, so both are
bounded before a batch is opened; and because what is decompressed stands in memory as a whole, batches that are large inside are
opened one after the other.
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

# Of a compressed batch, decompressed: 32 times the default max.message.bytes. Clients fill batches by their uncompressed size,
# which they bound by a similar number. Where a topic allows larger batches, four times what it allows.
LARGEST_BYTES = 32 << 20
_LARGEST_RATIO = 4
# Of a compressed batch: the largest batch.num.messages that librdkafka allows. Its default is 10,000.
MOST_RECORDS = 1_000_000
# What cannot become larger is opened without regard to others: with the default of 8 handlers they are 8 MiB together.
SMALL_BYTES = 1 << 20


def inspect(
    batch: memoryview | bytes, header: BatchHeader, config: LogConfig, large: Lock, look: Callable[[bytes], T]
) -> T:
    """What ``look`` returns for the bytes of the batch's records (``record_scan`` and ``read_records`` take them). It must keep
    nothing of them.

    Raises ProtocolError, as ``look`` may, also for a batch that is larger than the bounds; nothing has been spent on it then.
    """
    count, codec = header.record_count, header.compression
    body = batch[HEADER_SIZE : header.size]
    if count > MOST_RECORDS and count * SMALLEST_RECORD > len(body):
        raise ProtocolError(f"a compressed batch of {count} records")
    if not codec or largest_size(codec, body) <= SMALL_BYTES:
        return look(unpack(batch, 0, header))
    with large:
        found = _look(batch, header, max(LARGEST_BYTES, _LARGEST_RATIO * config.max_message_bytes), look)
    if isinstance(found, _Refused):
        raise ProtocolError(found.why)
    return found


@attrs.frozen
class _Refused:
    why: str


def _look(batch: memoryview | bytes, header: BatchHeader, limit: int, look: Callable[[bytes], T]) -> T | _Refused:
    try:
        return look(unpack(batch, 0, header, max_size=limit))
    except ProtocolError as error:
        # Not raised: with its traceback it would keep what was decompressed beyond the lock.
        return _Refused(str(error))
