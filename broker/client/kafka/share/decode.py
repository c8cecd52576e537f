"""Record batches and acquired ranges to records. Pure.

An answer holds whole batches, of which the ranges say what this consumer may have. Batches without an acquired record are skipped
by their headers. Where a range has no record, there is a control record or a record that compaction has removed.

A broker that is asked for a few records sends the whole batch in which they are, and sends it again for the next few. So the
batch that was read last in a partition is kept, as far as it was read: it is unpacked and walked through only once.
"""

from collections.abc import Iterator, Sequence

from broker.client.kafka.share.acquired import BUFFERED, AcquiredRange, TopicIdPartition
from broker.client.kafka.share.record import RecordOwner, ShareRecord
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import LOG_OVERHEAD, BatchHeader, check_crc, read_header, whole_batches
from protocol.kafka.records.records import Record, read_records, unpack

# A larger batch is not kept (bytes on the wire).
_KEPT_MAX = 1 << 20


class _OpenBatch:
    """A batch and how far it has been read. ``rows`` continues at the first record that was not wanted yet."""

    __slots__ = ("header", "next_offset", "pushed_back", "rows")

    def __init__(self, header: BatchHeader, rows: Iterator[Record]) -> None:
        self.header = header
        self.rows = rows
        self.next_offset = header.base_offset
        self.pushed_back: Record | None = None


class RecordReader:
    """Reads all partitions of one consumer."""

    __slots__ = ("_open", "_owner")

    def __init__(self, owner: RecordOwner) -> None:
        self._owner = owner
        self._open: dict[TopicIdPartition, _OpenBatch] = {}

    def read(self, data: memoryview, ranges: Sequence[AcquiredRange]) -> list[ShareRecord]:
        """The records of ``ranges``, which are of one partition and ascend, in order. Raises ProtocolError for bytes that
        cannot be read."""
        found: list[ShareRecord] = []
        if not ranges:
            return found
        partition = ranges[0].partition
        kept = self._open.pop(partition, None)
        size, _ = whole_batches(data)
        position, index = 0, 0
        while position < size and index < len(ranges):
            header = read_header(data, position)
            while index < len(ranges) and ranges[index].last < header.base_offset:
                index += 1
            if index < len(ranges) and ranges[index].first <= header.last_offset and not header.is_control:
                if kept is None or kept.header != header or kept.next_offset > ranges[index].first:
                    check_crc(data, position, header)
                    kept = _OpenBatch(header, read_records(header, unpack(data, position, header)))
                if self._read_batch(kept, ranges, index, found) and header.batch_length <= _KEPT_MAX:
                    self._open[partition] = kept
            position += LOG_OVERHEAD + header.batch_length
        return found

    def _read_batch(
        self, batch: _OpenBatch, ranges: Sequence[AcquiredRange], index: int, found: list[ShareRecord]
    ) -> bool:
        """Append what is in ``ranges`` from ``index`` on. Whether the batch has more records after them."""
        current = ranges[index]
        topic, (_, partition) = current.topic, current.partition
        first, last, count = current.first, current.last, current.delivery_count
        owner, next_offset, final = self._owner, batch.next_offset, batch.header.last_offset
        rows, states = batch.rows, current.states
        row = batch.pushed_back or next(rows, None)
        batch.pushed_back = None
        while row is not None:
            offset, timestamp, key, value, headers = row
            if not next_offset <= offset <= final:
                raise ProtocolError(f"a record with offset {offset}, where {next_offset} to {final} are possible")
            while offset > last:
                index += 1
                if index == len(ranges):
                    batch.pushed_back, batch.next_offset = row, offset
                    return True
                current = ranges[index]
                first, last, count, states = current.first, current.last, current.delivery_count, current.states
            if offset >= first:
                states[offset - first] = BUFFERED
                found.append(
                    ShareRecord(topic, partition, offset, timestamp, key, value, headers, count, current, owner)
                )
            next_offset = offset + 1
            row = next(rows, None)
        return False
