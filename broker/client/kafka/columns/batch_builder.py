"""Arrow columns to record batches, and the partitions of a column of keys. Pure, on the caller's thread.

No record becomes a Python object. numpy builds the bytes between keys and values (lengths, time, offset, number of
headers) for all records of a few batches at once, and Arrow joins these pieces with keys, values and headers, row by
row, into one column with the bytes of the batches' records. A producer later writes its id into the batches
(``set_producer``).

Keys are hashed by Kafka's murmur2 (``Utils.murmur2`` of the Java client), so that a key goes to the same partition from
every client. The hash mixes in four bytes at a time, then the rest; each step treats all keys that are long enough for
it together.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.client.kafka.columns.record_walk import I64, Rows, sizes_of, zigzag
from broker.client.kafka.errors import KafkaClientError, RecordTooLargeError
from protocol.kafka.records.batch import HEADER_SIZE
from protocol.kafka.records.compression import CODEC_NAMES
from protocol.kafka.records.records import enclose

U32 = npt.NDArray[np.uint32]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
# For fewer keys than this, numpy's calls cost more than a loop over the keys.
_FEW = 4


def murmur2(data: Any, starts: I64, lengths: I64) -> U32:
    """The hash of each ``data[start : start + length]``."""
    padded = np.zeros(len(data) + 4, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    # The four bytes at any position as one number.
    words: U32 = np.ndarray((len(data) + 1,), "<u4", padded.data, strides=(1,))
    hashes: U32 = _SEED ^ lengths.astype(np.uint32)
    rows_left = np.flatnonzero(lengths >= 4)
    step = 0
    while len(rows_left) > _FEW:
        mixed = words[starts[rows_left] + 4 * step] * _M
        mixed ^= mixed >> np.uint32(24)
        hashes[rows_left] = hashes[rows_left] * _M ^ mixed * _M
        step += 1
        rows_left = rows_left[lengths[rows_left] >= 4 * (step + 1)]
    for row in rows_left.tolist():
        start = int(starts[row]) + 4 * step
        end = int(starts[row]) + (int(lengths[row]) & ~3)
        hashes[row] = _rest(int(hashes[row]), padded[start:end].view("<u4").tolist())
    remaining = lengths & 3
    rows = np.flatnonzero(remaining)
    tails = words[starts[rows] + (lengths[rows] & ~3)] & (
        (np.uint32(1) << (8 * remaining[rows]).astype(np.uint32)) - np.uint32(1)
    )
    hashes[rows] = (hashes[rows] ^ tails) * _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _rest(value: int, words: list[int]) -> int:
    for word in words:
        mixed = word * 0x5BD1E995 & 0xFFFFFFFF
        mixed ^= mixed >> 24
        value = (value * 0x5BD1E995 ^ mixed * 0x5BD1E995) & 0xFFFFFFFF
    return value


def partition_of(hashes: U32, partitions: int) -> npt.NDArray[np.int32]:
    """Kafka's ``toPositive(hash) % partitions``."""
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


_NO_HEADERS = b"\x00"
_NULL = 1  # -1 in zig-zag
_LARGEST = (1 << 31) - 1 - HEADER_SIZE
# 1 MiB of records is built at once: it fits into the CPU's caches, and many small batches share the cost of the calls.
_TOGETHER = 1 << 20


@attrs.frozen(eq=False)
class Built:
    """A complete record batch of ``count`` records with its checksum, base offset 0 and no producer."""

    data: bytearray
    count: int


def build(
    values: Any,
    keys: Any = None,
    headers: Any = None,
    timestamps_ms: Any = None,
    *,
    now_ms: int,
    compression: str = "none",
    max_batch_bytes: int = 1_000_000,
) -> list[Built]:
    """Record batches of at most ``max_batch_bytes`` each; a larger record gets a batch of its own.

    ``values`` and ``keys``: Arrow arrays, chunked or not, of binary or string of any kind, nulls allowed; ``headers``:
    list<struct<key: string, value: binary>>, null for no headers; ``timestamps_ms``: int64 of Arrow or numpy, with ``now_ms``
    in place of nulls and of a missing column. A batch that its codec would make larger is not compressed.

    Raises KafkaClientError for a header without a name, RecordTooLargeError for a record of 2 GiB; TypeError and ValueError
    for columns of other types or lengths.
    """
    if compression not in CODEC_NAMES:
        raise ValueError(f"no codec is called {compression!r}: there are {', '.join(CODEC_NAMES)}")
    columns = _Columns.of(values, keys, headers, timestamps_ms, now_ms)
    codec = CODEC_NAMES.index(compression)
    built: list[Built] = []
    for cuts in columns.cuts(max_batch_bytes):
        built += _batches(columns.slice(cuts[0], cuts[-1]), [cut - cuts[0] for cut in cuts], codec)
    return built


def partitions_for(keys: Any, partitions: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """The partition of each key by Kafka's hash. The hash is not defined for null, which gets the partition of an empty
    key."""
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    partition_numbers = [np.zeros(0, np.int32)]
    for chunk in chunks:
        if not len(chunk):
            continue
        column = _binary(_checked(chunk, "keys"))
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        first = int(bounds[0])
        lengths = np.diff(bounds)
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
        keys_data = b"" if data is None else memoryview(data)[first : int(bounds[-1])]
        partition_numbers.append(partition_of(murmur2(keys_data, bounds[:-1] - first, lengths), partitions))
    return np.concatenate(partition_numbers)


@attrs.frozen(eq=False)
class _Headers:
    """Headers of records: their number per record, and the size in bytes of each header."""

    counts: I64
    sizes: I64
    names: Any
    values: Any

    @classmethod
    def of(cls, lists: Any) -> "_Headers":
        if isinstance(lists, pa.ChunkedArray):
            lists = lists.combine_chunks()
        if (
            not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type))
            or lists.type.value_type.num_fields != 2
        ):
            raise TypeError(f"headers must be list<struct<key: string, value: binary>>, not {lists.type}")
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        names, values = (_checked(column, "headers") for column in lists.flatten().flatten())
        if names.null_count:
            raise KafkaClientError("A header has no name (its key is null): Kafka's headers must have one.")
        return cls(counts, _field_sizes(_lengths(names)) + _field_sizes(_lengths(values)), names, values)

    def per_record(self) -> I64:
        """The size in bytes of all headers of each record, without the number of headers."""
        after = np.concatenate([[0], np.cumsum(self.sizes)])
        last = np.cumsum(self.counts)
        sizes: I64 = after[last] - after[last - self.counts]
        return sizes

    def slice(self, first: int, counts: I64) -> "_Headers":
        section = slice(first, first + int(counts.sum()))
        length = section.stop - section.start
        return _Headers(counts, self.sizes[section], self.names.slice(first, length), self.values.slice(first, length))

    def pieces(self) -> list[Any]:
        """Two columns with a row for each record: the number of its headers, and the bytes of all its headers."""
        count = len(self.counts)
        numbers = Rows(count)
        raw = zigzag(self.counts)
        numbers.varint(raw, sizes_of(raw))
        ends = np.concatenate([[0], np.cumsum(self.per_record())]).astype(np.int32)
        if not len(self.sizes):
            return [_column(numbers)]
        fields = [piece for column in (self.names, self.values) for piece in (_length_column(column), _binary(column))]
        data = _joined(fields).data
        blobs = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
        return [_column(numbers), blobs]


@attrs.frozen(eq=False)
class _Columns:
    """The rows to write. The length of a null is -1."""

    values: Any
    value_lengths: I64
    keys: Any
    key_lengths: I64 | None
    headers: _Headers | None
    first_header: I64 | None  # of each record
    times: I64 | None
    now_ms: int

    @classmethod
    def of(cls, values: Any, keys: Any, headers: Any, timestamps_ms: Any, now_ms: int) -> "_Columns":
        for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps_ms)):
            if column is not None and len(column) != len(values):
                raise ValueError(f"{len(column)} {name} for {len(values)} values")
        values = _checked(values, "values")
        keys = None if keys is None else _checked(keys, "keys")
        parsed = None if headers is None else _Headers.of(headers)
        if parsed is not None and not len(parsed.sizes):
            parsed = None
        return cls(
            values,
            _lengths(values),
            keys,
            None if keys is None else _lengths(keys),
            parsed,
            None if parsed is None else np.cumsum(parsed.counts) - parsed.counts,
            None if timestamps_ms is None else _times(timestamps_ms, now_ms),
            now_ms,
        )

    def cuts(self, max_batch_bytes: int) -> Iterator[list[int]]:
        """The rows at which batches begin, and the end of the last batch, a few batches at a time.

        They follow from an upper bound on the bytes of each row.
        """
        count = len(self.values)
        if not count:
            return
        sizes = _field_sizes(self.value_lengths)
        sizes += 1 if self.key_lengths is None else _field_sizes(self.key_lengths)
        if self.headers is not None:
            sizes += self.headers.per_record() + sizes_of(zigzag(self.headers.counts))
        else:
            sizes += 1
        if self.times is not None:
            apart = int(self.times.max()) - int(self.times.min())
            sizes += min(10, (apart << 1).bit_length() // 7 + 1)
        else:
            sizes += 1
        sizes += 1 + ((count << 1).bit_length() // 7 + 1)  # attributes and offset
        sizes += sizes_of(zigzag(sizes))
        if int(sizes.max()) > _LARGEST:
            raise RecordTooLargeError(f"A record of {int(sizes.max())} bytes is larger than a record batch can be.")
        ends = np.cumsum(sizes)
        limit = min(max_batch_bytes - HEADER_SIZE, _LARGEST)
        before = start = 0
        cuts = [start]
        while start < count:
            done = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + limit, "right")))
            if start > cuts[0] and int(ends[stop - 1]) - before > _TOGETHER:
                yield cuts
                before, cuts = done, [start]
            start = stop
            cuts.append(stop)
        yield cuts

    def slice(self, start: int, stop: int) -> "_Columns":
        rows = slice(start, stop)
        headers = None
        if self.headers is not None and self.first_header is not None:
            headers = self.headers.slice(int(self.first_header[start]), self.headers.counts[rows])
            if not len(headers.sizes):
                headers = None
        return _Columns(
            self.values.slice(start, stop - start),
            self.value_lengths[rows],
            None if self.keys is None else self.keys.slice(start, stop - start),
            None if self.key_lengths is None else self.key_lengths[rows],
            headers,
            None,
            None if self.times is None else self.times[rows],
            self.now_ms,
        )


def _batches(columns: _Columns, cuts: Sequence[int], codec: int) -> list[Built]:
    """The batches of all rows of ``columns``. They begin at the ``cuts``; the last cut is the end of the rows."""
    counts = np.diff(cuts)
    starts = np.array(cuts[:-1])
    base_times = latest_times = np.full(len(counts), columns.now_ms)
    deltas = None
    if columns.times is not None:
        base_times, latest_times = columns.times[starts], np.maximum.reduceat(columns.times, starts)
        deltas = columns.times - np.repeat(base_times, counts)
    offsets = np.arange(cuts[-1]) - np.repeat(starts, counts)
    joined = _joined(_pieces(columns, offsets, deltas))
    section_ends = joined.ends[cuts].tolist()
    built: list[Built] = []
    rows = zip(counts.tolist(), base_times.tolist(), latest_times.tolist(), pairwise(section_ends), strict=True)
    for count, base, latest, (start, end) in rows:
        built.append(Built(enclose(joined.data[start:end], count, base, latest, codec), count))
    return built


def _pieces(columns: _Columns, offset_deltas: I64, time_deltas: I64 | None) -> list[Any]:
    """The pieces of each row, column by column."""
    count = len(offset_deltas)
    values, keys, headers = columns.value_lengths, columns.key_lengths, columns.headers
    offsets, value_lengths = zigzag(offset_deltas), zigzag(values)
    offset_sizes, value_sizes = sizes_of(offsets), sizes_of(value_lengths)
    lengths = 1 + offset_sizes + value_sizes + np.maximum(values, 0)
    if time_deltas is not None:
        times = zigzag(time_deltas)
        time_sizes = sizes_of(times)
        lengths += time_sizes
    else:
        lengths += 1
    if keys is not None:
        key_lengths = zigzag(keys)
        key_sizes = sizes_of(key_lengths)
        lengths += key_sizes + np.maximum(keys, 0)
    else:
        lengths += 1
    lengths += 1 if headers is None else headers.per_record() + sizes_of(zigzag(headers.counts))
    before = Rows(count)
    raw = zigzag(lengths)
    before.varint(raw, sizes_of(raw))
    before.byte(0)  # attributes
    if time_deltas is not None:
        before.varint(times, time_sizes)
    else:
        before.byte(0)
    before.varint(offsets, offset_sizes)
    if keys is not None:
        before.varint(key_lengths, key_sizes)
        between = Rows(count)
        between.varint(value_lengths, value_sizes)
        pieces = [_column(before), _binary(columns.keys), _column(between)]
    else:
        before.byte(_NULL)
        before.varint(value_lengths, value_sizes)
        pieces = [_column(before)]
    pieces.append(_binary(columns.values))
    return pieces + ([pa.scalar(_NO_HEADERS)] if headers is None else headers.pieces())


class _Joined(NamedTuple):
    """Rows of bytes, one after the other without gaps."""

    data: memoryview
    ends: I64  # the first number is 0, the start of the first row


def _joined(pieces: list[Any]) -> _Joined:
    joined = pc.binary_join_element_wise(*pieces, b"", null_handling="replace", null_replacement=b"")
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(joined) + 1].astype(np.int64)
    return _Joined(memoryview(data), ends)


def _column(rows: Rows) -> pa.Array:
    ends = np.zeros(len(rows.sizes) + 1, np.int32)
    np.cumsum(rows.sizes, out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(rows.sizes), [None, pa.py_buffer(ends), pa.py_buffer(rows.flat())])


def _length_column(column: Any) -> pa.Array:
    raw = zigzag(_lengths(column))
    rows = Rows(len(raw))
    rows.varint(raw, sizes_of(raw))
    return _column(rows)


def _field_sizes(lengths: I64) -> I64:
    """The sizes of keys or values with these lengths, including the length fields."""
    return sizes_of(zigzag(lengths)) + np.maximum(lengths, 0)


def _lengths(column: Any) -> I64:
    """The lengths in bytes, -1 for null."""
    lengths = pc.binary_length(column)
    if column.null_count:
        lengths = pc.fill_null(lengths, -1)
    numbers: I64 = lengths.to_numpy().astype(np.int64)
    return numbers


def _checked(column: Any, what: str) -> Any:
    """The column as binary or large binary, at no cost for binary and text."""
    kind, types = column.type, pa.types
    if types.is_binary(kind) or types.is_large_binary(kind):
        return column
    if types.is_string(kind):
        return pc.cast(column, pa.binary())
    texts = types.is_large_string(kind) or types.is_string_view(kind)
    if texts or types.is_binary_view(kind) or types.is_fixed_size_binary(kind) or types.is_null(kind):
        return pc.cast(column, pa.large_binary())
    raise TypeError(f"{what} must be binary or string, not {kind}")


def _binary(column: Any) -> pa.Array:
    """The column as one array of plain binary, which holds up to 2 GiB; the records built at once are smaller."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_binary(column.type):
        return column
    try:
        return pc.cast(column, pa.binary())
    except pa.ArrowInvalid:
        # A slice of a large array after its first 2 GiB: the slice has few bytes, but large offsets.
        return pc.cast(column.take(pa.array(np.arange(len(column)))), pa.binary())


def _times(timestamps_ms: Any, now_ms: int) -> I64:
    if isinstance(timestamps_ms, (pa.Array, pa.ChunkedArray)):
        if timestamps_ms.null_count:
            timestamps_ms = pc.fill_null(timestamps_ms, now_ms)
        timestamps_ms = timestamps_ms.to_numpy()
    times: I64 = np.asarray(timestamps_ms, np.int64)
    return times
