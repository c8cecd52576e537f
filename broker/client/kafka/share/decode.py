"""Record batches and acquired ranges to records. Pure.

An answer holds whole batches, of which the ranges say what this consumer may have. Batches without an acquired record are skipped
by their headers. Where a range has no record, there is a control record or a record that compaction has removed.
"""

from collections.abc import Sequence

from broker.client.kafka.share.acquired import AcquiredRange
from broker.client.kafka.share.record import RecordOwner, ShareRecord
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import LOG_OVERHEAD, BatchHeader, check_crc, read_header, whole_batches
from protocol.kafka.records.records import read_records, unpack


def decode(data: memoryview, ranges: Sequence[AcquiredRange], owner: RecordOwner) -> list[ShareRecord]:
    """The records of ``ranges``, which ascend, in order. Raises ProtocolError for bytes that cannot be read."""
    found: list[ShareRecord] = []
    if not ranges:
        return found
    size, _ = whole_batches(data)
    position, index = 0, 0
    while position < size and index < len(ranges):
        header = read_header(data, position)
        while index < len(ranges) and ranges[index].last < header.base_offset:
            index += 1
        if index < len(ranges) and ranges[index].first <= header.last_offset and not header.is_control:
            check_crc(data, position, header)
            _decode_batch(data, position, header, ranges, index, owner, found)
        position += LOG_OVERHEAD + header.batch_length
    return found


def _decode_batch(
    data: memoryview,
    position: int,
    header: BatchHeader,
    ranges: Sequence[AcquiredRange],
    index: int,
    owner: RecordOwner,
    found: list[ShareRecord],
) -> None:
    current = ranges[index]
    topic, (_, partition) = current.topic, current.partition
    first, last, count = current.first, current.last, current.delivery_count
    before = header.base_offset - 1
    for offset, timestamp, key, value, headers in read_records(header, unpack(data, position, header)):
        if offset <= before or offset > header.last_offset:
            raise ProtocolError(f"a record with offset {offset} after {before}, in a batch up to {header.last_offset}")
        before = offset
        while offset > last:
            index += 1
            if index == len(ranges):
                return
            current = ranges[index]
            first, last, count = current.first, current.last, current.delivery_count
        if offset >= first:
            current.received(offset)
            found.append(ShareRecord(topic, partition, offset, timestamp, key, value, headers, count, current, owner))
