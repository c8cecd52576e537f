"""Fetched record batches to Arrow columns. Pure: no socket and no threads; one thread uses a ``Decoder``.

A ``Decoder`` takes the record batches of one partition, fetch by fetch, returns Arrow record batches, and knows where
to fetch next. It leaves out control batches, batches of aborted transactions and records outside the offsets that it
reads.

No record becomes a Python object. The decoder reads batches one by one (header, checksum, decompression) and collects
them in a ``BatchGroup`` until they hold about ``max_batch_bytes``. Each further step is one numpy or Arrow call for all
records of the group: finding where they begin (``record_walk``), reading their fields (``record_fields``), repeating
the values of the batch headers for each record (``BatchColumns``), and making the columns.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.client.kafka.columns.record_fields import Headers, Slices, read_fields, read_headers
from broker.client.kafka.columns.record_walk import I64, SMALLEST_RECORD, RecordFinder, Section, Varints, pieces
from broker.client.kafka.errors import CorruptRecordError
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    SMALLEST_BATCH_LENGTH,
    TRANSACTIONAL,
    BatchHeader,
    check_crc,
    read_header,
)
from protocol.kafka.records.compression import decompress
from protocol.kafka.records.records import MAX_RECORDS_SIZE, read_marker
from protocol.wire import BytesLike

CREATE_TIME, LOG_APPEND_TIME_TYPE = np.int32(0), np.int32(1)  # values of the column timestampType


class AbortedTransactions:
    """Which batches belong to aborted transactions, determined as in Kafka's consumer.

    Those are a producer's batches from the first offset of its aborted transaction to its abort marker.
    """

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._latest_first = sorted(transactions, key=lambda transaction: -transaction[1])
        self._producers: set[int] = set()

    def leaves_out(self, header: BatchHeader, view: memoryview, pos: int) -> bool:
        """Whether to leave out this batch. Must be called for every batch in turn. Control batches are always left
        out."""
        waiting = self._latest_first
        while waiting and waiting[-1][1] <= header.last_offset:
            self._producers.add(waiting.pop()[0])
        if not header.attributes & (TRANSACTIONAL | CONTROL):
            return False
        if header.attributes & CONTROL:
            if header.producer_id in self._producers:
                marker = read_marker(view[pos : pos + header.size])
                if marker is not None and not marker.commit:
                    self._producers.discard(header.producer_id)
            return True
        return header.producer_id in self._producers


class BatchGroup:
    """Sections of consecutive batches that become one Arrow record batch."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._headers: list[BatchHeader] = []
        self._sections: list[Section] = []
        self._datas: list[BytesLike | None] = []
        self.size = 0

    def add(self, header: BatchHeader, section: Section, data: BytesLike | None) -> None:
        """``data`` None: the section is in the fetched bytes."""
        self._headers.append(header)
        self._sections.append(section)
        self._datas.append(data)
        self.size += section.end - section.start

    def joined(self) -> tuple[BytesLike, list[Section]]:
        """All sections in one buffer: the fetched bytes in place, or copies one after the other."""
        sections, datas = self._sections, self._datas
        if all(data is None for data in datas):
            start = sections[0].start
            return self._view[start : sections[-1].end], [Section(s - start, e - start, n) for s, e, n in sections]
        if len(datas) == 1 and datas[0] is not None:
            return datas[0], sections
        moved: list[Section] = []
        parts: list[BytesLike] = []
        end = 0
        for section, data in zip(sections, datas, strict=True):
            start, end = end, end + section.end - section.start
            moved.append(Section(start, end, section.records))
            parts.append((self._view if data is None else memoryview(data))[section.start : section.end])
        return b"".join(parts), moved

    def columns(self) -> "BatchColumns":
        by_field: Any = zip(*self._headers, strict=True)
        return BatchColumns(BatchHeader(*by_field), [section.records for section in self._sections])


class BatchColumns:
    """The values from the headers of a group's batches, repeated for every record. ``fields``: each field of all
    batches."""

    def __init__(self, fields: Any, records: list[int]) -> None:
        self._fields = fields
        self._records = np.array(records, np.int64)
        self._has_append_time = any(attributes & LOG_APPEND_TIME for attributes in fields.attributes)
        self.lowest: int = fields.base_offset[0]
        self.highest: int = fields.base_offset[-1] + fields.last_offset_delta[-1]

    def offsets(self, deltas: I64) -> I64:
        if int(deltas.min()) < 0 or (deltas > self._each(self._fields.last_offset_delta)).any():
            raise ProtocolError("a record whose offset is not within its batch's")
        return self._each(self._fields.base_offset) + deltas

    def timestamps(self, deltas: I64) -> I64:
        """The times in ms."""
        times = self._each(self._fields.base_timestamp) + deltas
        types = self.timestamp_types()
        return times if types is None else np.where(types == CREATE_TIME, times, self._each(self._fields.max_timestamp))

    def timestamp_types(self) -> npt.NDArray[np.int32] | None:
        """None if every record has CREATE_TIME."""
        if not self._has_append_time:
            return None
        return np.where(self._each(self._fields.attributes) & LOG_APPEND_TIME, LOG_APPEND_TIME_TYPE, CREATE_TIME)

    def _each(self, of_batches: Sequence[int]) -> I64:
        return np.repeat(np.array(of_batches, np.int64), self._records)


COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    # "element" is Spark's name for the item.
    "headers": pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
}

_LAST_OFFSET = (1 << 63) - 2  # the next offset must still be an offset
_LARGEST_MS = ((1 << 63) - 1) // 1000

_new_header = tuple.__new__


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The columns of Spark's Kafka connector; ``headers`` is the eighth."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


class Decoder:
    """Reads one partition from offset ``start`` to ``end`` (exclusive; None: no end).

    ``next_offset`` is where to fetch next, also after records that were left out, and never above ``end``. Arrow record
    batches hold up to about one and a half times ``max_batch_bytes`` of records, unless a single record is larger. A
    time that does not fit into Arrow's microseconds is null; in a header name that is not UTF-8, U+FFFD replaces bad
    bytes.
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
        self._columns = tuple(columns)
        self._max_batch_bytes = max_batch_bytes
        self._constants = _Constants(topic, partition)
        self._finder = RecordFinder()

    @property
    def done(self) -> bool:
        """Whether all records up to ``end`` are decoded."""
        return self.end is not None and self.next_offset >= self.end

    def decode(self, data: BytesLike, aborted: Sequence[tuple[int, int]] | None = None) -> list[pa.RecordBatch]:
        """The records in ``data``, the answer to one fetch. An incomplete batch at its end is left to the next fetch.

        ``aborted``: (producer id, first offset) of the transactions to leave out; None is read_uncommitted. Keeps no
        reference to ``data``. Raises CorruptRecordError, also if ``data`` has no complete batch, and then leaves
        ``next_offset`` unchanged.
        """
        position = self.next_offset
        try:
            return list(self.batches(data, aborted))
        except CorruptRecordError:
            self.next_offset = position
            raise

    def batches(self, data: BytesLike, aborted: Sequence[tuple[int, int]] | None = None) -> Iterator[pa.RecordBatch]:
        """As ``decode``, but one batch at a time: compressed data may hold many times its size.

        ``next_offset`` is valid after the last batch.
        """
        position = self.next_offset
        try:
            yield from self._batches(memoryview(data), AbortedTransactions(aborted or ()))
        except ProtocolError as error:
            where = f"{self.topic}-{self.partition}, in what was fetched from offset {position} on"
            raise CorruptRecordError(f"{where}: {error}.") from None

    def _batches(self, view: memoryview, aborted: AbortedTransactions) -> Iterator[pa.RecordBatch]:
        group = BatchGroup(view)
        first = self.next_offset
        pos, size = 0, len(view)
        while size - pos >= HEADER_SIZE and not self.done:
            header = _new_header(BatchHeader, HEADER.unpack_from(view, pos))
            after = pos + LOG_OVERHEAD + header[1]
            if after > size:
                break
            if header[3] != MAGIC or header[1] < SMALLEST_BATCH_LENGTH:
                read_header(view, pos)  # raises the error
            next_offset = _checked_offsets(header)
            if next_offset > self.next_offset:
                if header.base_offset < self.next_offset != first:
                    raise ProtocolError("batches whose offsets overlap")
                check_crc(view, pos, header)
                if not aborted.leaves_out(header, view, pos) and self._has_records_to_read(header):
                    for section, data in self._sections(view, pos, after, header):
                        length = section.end - section.start
                        if group.size and group.size + length > self._max_batch_bytes:
                            yield from self._columns_of(group, first)
                            group = BatchGroup(view)
                        group.add(header, section, data)
                self.next_offset = next_offset if self.end is None or next_offset < self.end else self.end
            pos = after
        if group.size:
            yield from self._columns_of(group, first)
        if pos == 0 and size and not self.done:
            read_header(view)  # raises the error

    def _has_records_to_read(self, header: BatchHeader) -> bool:
        count, offsets = header.record_count, header.last_offset_delta + 1
        if not 0 <= count <= offsets:
            raise ProtocolError(f"a batch of {count} records in {offsets} offsets")
        if count == 0 and header.size > HEADER_SIZE and not header.compression:
            raise ProtocolError("a batch with more in it than its records")
        return count > 0 and (self.end is None or header.base_offset < self.end)

    def _sections(
        self, view: memoryview, pos: int, end: int, header: BatchHeader
    ) -> Sequence[tuple[Section, BytesLike | None]]:
        """The records of the batch at ``pos``, in ``view`` or in decompressed bytes, and in pieces if they are many."""
        start, data = pos + HEADER_SIZE, None
        if header.attributes & COMPRESSION_MASK:
            data = decompress(header.compression, view[start:end], MAX_RECORDS_SIZE)
            start, end = 0, len(data)
        section = Section(start, end, header.record_count)
        if header.record_count * SMALLEST_RECORD > end - start:
            raise ProtocolError(f"a batch of {header.record_count} records in {end - start} bytes")
        if end - start <= self._max_batch_bytes * 3 // 2:
            return ((section, data),)
        parts = pieces(view if data is None else data, section, self._max_batch_bytes)
        if data is None:
            return [(part, None) for part in parts]
        whole = memoryview(data)
        return [(Section(0, part.end - part.start, part.records), whole[part.start : part.end]) for part in parts]

    def _columns_of(self, group: BatchGroup, first: int) -> list[pa.RecordBatch]:
        data, sections = group.joined()
        varints = Varints(data)
        bounds = self._finder.spans(data, varints, sections)
        fields = read_fields(varints, bounds)
        batches = group.columns()
        offsets = batches.offsets(fields.offset_deltas)
        end = self.end
        rows = None
        if batches.lowest < first or (end is not None and batches.highest >= end):
            in_range = offsets >= first
            if end is not None:
                in_range &= offsets < end
            rows = np.flatnonzero(in_range)
            if not len(rows):
                return []
            offsets = offsets[rows]
        count = len(offsets)
        columns: dict[str, Any] = {}
        for name in self._columns:
            if name in ("key", "value"):
                slices = fields.keys if name == "key" else fields.values
                columns[name] = self._binary(data, slices if rows is None else slices.of(rows))
            elif name == "offset":
                columns[name] = pa.array(offsets)
            elif name == "timestamp":
                columns[name] = _timestamps(_rows(batches.timestamps(fields.timestamp_deltas), rows))
            elif name == "timestampType":
                types = batches.timestamp_types()
                columns[name] = self._constants.create_time(count) if types is None else pa.array(_rows(types, rows))
            elif name == "headers":
                columns[name] = self._headers(data, read_headers(varints, fields, bounds), rows)
            else:
                columns[name] = self._constants.topic(count) if name == "topic" else self._constants.partition(count)
        return [pa.RecordBatch.from_arrays(list(columns.values()), schema=self.schema)]

    def _binary(self, data: BytesLike, slices: Slices) -> pa.Array:
        """A copy of the slices, made by Arrow from an array over ``data`` with alternately slices and
        gaps as elements."""
        count = len(slices.starts)
        if not count or (slices.valid is not None and not slices.valid.any()):
            return pa.nulls(count, pa.binary())
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = slices.starts
        bounds[1::2] = slices.ends
        in_place = pa.Array.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)], 0
        )
        taken = in_place.take(self._constants.even(count))
        if slices.valid is None:
            return taken
        _, offsets, values = taken.buffers()
        return pa.Array.from_buffers(pa.binary(), count, [_bitmap(slices.valid), offsets, values])

    def _headers(self, data: BytesLike, headers: Headers, rows: I64 | None) -> pa.Array:
        ends = np.zeros(len(headers.counts) + 1, np.int32)
        np.cumsum(headers.counts, out=ends[1:])
        values = self._binary(data, headers.values)
        items = pa.StructArray.from_arrays(
            [_text(self._binary(data, headers.names)), values], fields=list(_TYPES["headers"].value_type)
        )
        # A record without headers has null, as with Spark's Kafka connector.
        has_headers = headers.counts > 0
        valid = None if has_headers.all() else _bitmap(has_headers)
        lists = pa.Array.from_buffers(
            _TYPES["headers"], len(headers.counts), [valid, pa.py_buffer(ends)], children=[items]
        )
        return lists if rows is None else lists.take(pa.array(rows))


@attrs.define(eq=False)
class _Constants:
    """Columns with the same value for every record, created once and sliced."""

    _topic: str
    _partition: int
    _columns: dict[str, Any] = attrs.Factory(dict)
    _length: int = 0

    def topic(self, count: int) -> pa.Array:
        return self._of("topic", count)

    def partition(self, count: int) -> pa.Array:
        return self._of("partition", count)

    def create_time(self, count: int) -> pa.Array:
        return self._of("create_time", count)

    def even(self, count: int) -> pa.Array:
        """0, 2, 4, ..."""
        return self._of("even", count)

    def _of(self, name: str, count: int) -> pa.Array:
        if count > self._length:
            length = self._length = 1 << max(count - 1, 1023).bit_length()
            self._columns = {
                "topic": pa.repeat(pa.scalar(self._topic, pa.string()), length),
                "partition": pa.array(np.full(length, self._partition, np.int32)),
                "create_time": pa.array(np.full(length, CREATE_TIME, np.int32)),
                "even": pa.array(np.arange(0, 2 * length, 2, dtype=np.int32)),
            }
        return self._columns[name].slice(0, count)


def _checked_offsets(header: BatchHeader) -> int:
    """The offset after the batch."""
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset > _LAST_OFFSET:
        raise ProtocolError(f"a batch of offsets {header.base_offset} to {header.last_offset}")
    return header.next_offset


def _rows(values: Any, rows: I64 | None) -> Any:
    return values if rows is None else values[rows]


def _bitmap(valid: npt.NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _timestamps(times_ms: I64) -> pa.Array:
    nulls = None
    if int(times_ms.max()) > _LARGEST_MS or int(times_ms.min()) < -_LARGEST_MS:
        nulls = (times_ms > _LARGEST_MS) | (times_ms < -_LARGEST_MS)
    return pa.Array.from_buffers(
        _TYPES["timestamp"],
        len(times_ms),
        [None if nulls is None else _bitmap(~nulls), pa.py_buffer(times_ms * 1000)],
    )


def _text(names: pa.Array) -> pa.Array:
    try:
        return pc.cast(names, pa.string())
    except pa.ArrowInvalid:  # rare; Java also uses U+FFFD
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
