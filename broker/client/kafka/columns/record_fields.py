"""The fields of records with known bounds, as arrays: each field of all records at once. Pure.

Every length is checked against its record before the bytes are read.

Tests: tests/client/kafka/columns/test_columns.py.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker.client.kafka.columns.record_walk import I64, U64, Spans, Varints
from protocol.errors import ProtocolError

# For fewer records than this, numpy's calls cost more than a loop over the records.
_FEW = 8


class Slices(NamedTuple):
    """For each field: the start and end of its bytes, and whether it is not null (``valid`` None: no field is null)."""

    starts: I64
    ends: I64
    valid: npt.NDArray[np.bool_] | None

    def of(self, rows: I64) -> "Slices":
        return Slices(self.starts[rows], self.ends[rows], None if self.valid is None else self.valid[rows])


class Fields(NamedTuple):
    """The fields of each record. ``header_counts``: the position of the number of its headers."""

    timestamp_deltas: I64
    offset_deltas: I64
    keys: Slices
    values: Slices
    header_counts: I64


class Headers(NamedTuple):
    """``counts`` is per record; names and values are those of all records, in their order."""

    counts: I64
    names: Slices
    values: Slices


def read_fields(varints: Varints, spans: Spans) -> Fields:
    """Raises ProtocolError for a record inconsistent with its lengths."""
    ends = spans.ends
    positions = spans.bodies + 1  # skip the attributes, which are unused
    words = varints.words(positions)
    timestamps, sizes = varints.read(positions, words, long=True)
    positions, words = _next(varints, positions, words, sizes)
    offsets, sizes = varints.read(positions, words)
    positions, words = _next(varints, positions, words, sizes)
    lengths, sizes = varints.read(positions, words)
    keys = _slices(positions + sizes, lengths, ends)
    positions = keys.ends
    lengths, sizes = varints.read(positions, varints.words(positions))
    values = _slices(positions + sizes, lengths, ends)
    return Fields(timestamps, offsets, keys, values, values.ends)


def _next(varints: Varints, positions: I64, words: U64, sizes: I64) -> tuple[I64, U64]:
    """Positions and words of the next varints. Shifting the words is enough if two bytes remain, which ``read``
    needs."""
    positions = positions + sizes
    # Two shifts by 3 bytes leave 2 of the 8.
    if int(sizes.max()) <= 3:
        return positions, words >> (sizes << 3).astype(np.uint64)
    return positions, varints.words(positions)


def _slices(starts: I64, lengths: I64, record_ends: I64) -> Slices:
    valid = None
    if int(lengths.min()) < 0:
        valid = lengths >= 0
        lengths = np.maximum(lengths, 0)
    ends = starts + lengths
    # After key and value, at least the number of headers follows.
    if (ends >= record_ends).any():
        raise ProtocolError("a record that is not as long as it says")
    return Slices(starts, ends, valid)


def read_headers(varints: Varints, fields: Fields, spans: Spans) -> Headers:
    """The headers of all records. Raises ProtocolError, also if a record does not end where it should."""
    positions, ends = fields.header_counts, spans.ends
    counts, sizes = varints.read(positions, varints.words(positions))
    positions = positions + sizes
    if (counts < 0).any() or (counts * 2 > ends - positions).any():
        raise ProtocolError("a record with more headers than it has bytes")
    if ((counts == 0) & (positions != ends)).any():
        raise ProtocolError("a record that is not as long as it says")
    walk = _HeaderWalk(varints, counts, positions, ends)
    walk.run()
    return walk.headers()


class _HeaderWalk:
    """Reads the headers of all records in step: every record's first header, then every record's second, ..."""

    def __init__(self, varints: Varints, counts: I64, positions: I64, ends: I64) -> None:
        self._varints = varints
        self._counts, self._ends = counts, ends
        self._positions = positions.copy()
        # The index of each record's first header among the headers of all records.
        self._places = np.cumsum(counts) - counts
        total = int(counts.sum())
        self._names, self._values = np.zeros((2, total), np.int64), np.zeros((2, total), np.int64)
        self._valid = np.ones(total, np.bool_)

    def run(self) -> None:
        rows_left = np.flatnonzero(self._counts)
        step = 0
        while len(rows_left) > _FEW:
            self._step(rows_left, step)
            step += 1
            rows_left = rows_left[self._counts[rows_left] > step]
        for row in rows_left.tolist():
            self._rest_of(row, step)
        if (self._positions != self._ends).any():
            raise ProtocolError("a record that is not as long as it says")

    def _step(self, rows: I64, step: int) -> None:
        places, ends = self._places[rows] + step, self._ends[rows]
        starts, lengths = self._length(self._positions[rows], ends)
        if int(lengths.min()) < 0:
            raise ProtocolError("a header without a name")
        after = starts + lengths
        self._names[:, places] = starts, after
        starts, lengths = self._length(after, ends)
        self._valid[places] = lengths >= 0
        after = starts + np.maximum(lengths, 0)
        if (after > ends).any():
            raise ProtocolError("a header that is longer than its record")
        self._values[:, places] = starts, after
        self._positions[rows] = after

    def _length(self, positions: I64, ends: I64) -> tuple[I64, I64]:
        if (positions >= ends).any():
            raise ProtocolError("a header that is longer than its record")
        lengths, sizes = self._varints.read(positions, self._varints.words(positions))
        return positions + sizes, lengths

    def _rest_of(self, row: int, step: int) -> None:
        """Read the headers of one record from ``step`` on. There may be tens of thousands, for which numpy would take
        seconds."""
        place = int(self._places[row])
        pos, end = int(self._positions[row]), int(self._ends[row])
        data = self._varints.bytes.data
        names: list[tuple[int, int]] = []
        values: list[tuple[int, int]] = []
        valid: list[bool] = []
        for _ in range(step, int(self._counts[row])):
            length, pos = _varint(data, pos, end)
            if length < 0:
                raise ProtocolError("a header without a name")
            names.append((pos, pos + length))
            length, pos = _varint(data, pos + length, end)
            valid.append(length >= 0)
            values.append((pos, pos + max(length, 0)))
            pos = values[-1][1]
            if pos > end:
                raise ProtocolError("a header that is longer than its record")
        these = slice(place + step, place + step + len(names))
        self._names[:, these] = np.array(names, np.int64).reshape(-1, 2).T
        self._values[:, these] = np.array(values, np.int64).reshape(-1, 2).T
        self._valid[these] = valid
        self._positions[row] = pos

    def headers(self) -> Headers:
        valid = None if self._valid.all() else self._valid
        return Headers(
            self._counts, Slices(self._names[0], self._names[1], None), Slices(self._values[0], self._values[1], valid)
        )


def _varint(data: memoryview, pos: int, end: int) -> tuple[int, int]:
    raw = shift = 0
    while pos < end and shift <= 28:
        byte = data[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw > 0xFFFFFFFF:
                raise ProtocolError("a varint of more than 32 bits")
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
    raise ProtocolError("a varint that ends too early")
