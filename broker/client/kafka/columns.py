"""Fetched record batches to Arrow columns. Pure: no socket, no thread of its own; a ``Decoder`` belongs to one thread.

A ``Decoder`` is given the record batches of one partition, fetch by fetch, and gives back Arrow record batches; it knows
where to fetch next. Control batches, batches of aborted transactions and records outside the wanted offsets are left out.
"""

from collections.abc import Sequence

import pyarrow as pa

from broker.client.kafka.errors import CorruptRecordError
from protocol.errors import ProtocolError
from protocol.kafka.batch import BatchHeader, check_crc, read_header
from protocol.kafka.markers import read_marker
from protocol.kafka.records import Record, records
from protocol.wire import BytesLike

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The columns as Spark's Kafka connector has them; ``headers`` is the eighth."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


class Decoder:
    """Reads one partition from offset ``start`` to ``end`` (exclusive; None: no end).

    ``next_offset`` is where to fetch next, also past records that were left out; it never passes ``end``.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        columns: Sequence[str] = COLUMNS,
        max_batch_bytes: int = 1 << 20,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = start
        self.end = end
        self.schema = schema(columns)
        self.max_batch_bytes = max_batch_bytes

    def decode(self, data: BytesLike, aborted: Sequence[tuple[int, int]] | None = None) -> list[pa.RecordBatch]:
        """The records in ``data``, of one fetch; a torn batch at its end is left to the next one.

        ``aborted``: (producer id, first offset) of the transactions to leave out; None is read_uncommitted.
        Raises CorruptRecordError; then ``next_offset`` is as it was.
        """
        try:
            return self._decode(memoryview(data), aborted)
        except ProtocolError as error:
            raise CorruptRecordError(f"{self.topic}-{self.partition} at offset {self.next_offset}: {error}.") from None

    def _decode(self, view: memoryview, aborted: Sequence[tuple[int, int]] | None) -> list[pa.RecordBatch]:
        position = self.next_offset
        pending = sorted(aborted or (), key=lambda one: -one[1])
        dropped: set[int] = set()
        found: list[tuple[BatchHeader, Record]] = []
        pos = 0
        while pos + 12 <= len(view) and pos + 12 + int.from_bytes(view[pos + 8 : pos + 12], "big", signed=True) <= len(
            view
        ):
            header = read_header(view, pos)
            check_crc(view, pos, header)
            if header.base_offset < 0 or header.last_offset_delta < 0:
                raise ProtocolError("a batch with offsets below zero")
            while pending and pending[-1][1] <= header.last_offset:
                dropped.add(pending.pop()[0])
            if header.is_control:
                marker = read_marker(view[pos : pos + header.size])
                if marker is not None and not marker.commit:
                    dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                for record in records(view, pos):
                    if not header.base_offset <= record.offset <= header.last_offset:
                        raise ProtocolError("a record whose offset is not within its batch")
                    if record.offset >= position and (self.end is None or record.offset < self.end):
                        found.append((header, record))
            position = max(position, header.next_offset)
            pos += header.size
        if pos == 0 and len(view):
            raise ProtocolError(f"the {len(view)} bytes of the fetch hold no whole record batch")
        self.next_offset = position if self.end is None else min(position, self.end)
        return [self._batch(found)] if found else []

    def _batch(self, found: list[tuple[BatchHeader, Record]]) -> pa.RecordBatch:
        names = self.schema.names
        columns = {
            "key": [r.key for _, r in found],
            "value": [r.value for _, r in found],
            "topic": [self.topic] * len(found),
            "partition": [self.partition] * len(found),
            "offset": [r.offset for _, r in found],
            "timestamp": [r.timestamp * 1000 for _, r in found],
            "timestampType": [int(h.is_log_append_time) for h, _ in found],
            "headers": [[{"key": k, "value": v} for k, v in r.headers] for _, r in found],
        }
        return pa.record_batch([pa.array(columns[name], _TYPES[name]) for name in names], schema=self.schema)
