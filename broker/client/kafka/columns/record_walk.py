"""Finds where the records of batches begin and end; reads and writes Kafka's zig-zag varints, thousands at a time.
Pure.

Each record starts with its own length, so the direct way is to step from record to record, which costs 100 ns a record
in Python. Two faster ways are tried first:

- Records of equal lengths (``even_records``). If all values of a topic have the same size, so do its records, except
  for the bytes that larger offsets and times take. A batch of thousands of such records consists of a few runs of
  equally long records. In a run, the length at the start of the first record is repeated at equal distances. One
  comparison finds all its repetitions, and proves that a record begins at each of them and ends at the next.
- Small records without headers: such a record ends with a zero (no headers), and the next record begins with a length
  of one or two bytes and another zero (its attributes). Every place that looks like that is a guess. Then the lengths
  are followed from guess to guess, and guesses that they pass over are dropped. The remaining guesses are proved: the
  records must tile every batch exactly, length by length, from its first byte to its last.

If both fail, or if there are too many guesses, the records are walked one by one.

Nearly all varints of a record batch have one or two bytes: a table of 65,536 entries decodes those in a few numpy
calls; only longer varints are decoded byte by byte.

Tests: tests/client/kafka/columns/test_columns.py,
tests/client/kafka/columns/test_batch_builder.py.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.errors import ProtocolError
from protocol.wire import BytesLike

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

_WORD = 8


def _table() -> npt.NDArray[np.int32]:
    """Indexed by the first two bytes of a varint (little-endian): value << 2 | size, or 0 if it has more than two bytes."""
    both = np.arange(1 << 16, dtype=np.int32)
    first, second = both & 0xFF, both >> 8
    raw = np.where(first < 0x80, first, first & 0x7F | second << 7)
    value = raw >> 1 ^ -(raw & 1)
    size = np.where(first < 0x80, 1, np.where(second < 0x80, 2, 0))
    table: npt.NDArray[np.int32] = np.where(size > 0, value << 2 | size, 0).astype(np.int32)
    return table


_TABLE = _table()
_VARINT_BYTES, _VARLONG_BYTES = 5, 10
# The largest value of the last of these bytes: 4 of 32 bits, 1 of 64.
_LAST_BYTE = {_VARINT_BYTES: 0x0F, _VARLONG_BYTES: 0x01}


class Varints:
    """Reads varints of ``data``. Positions must not be negative. Raises ProtocolError for a varint that ends outside the data."""

    def __init__(self, data: BytesLike) -> None:
        if len(data) < _WORD:
            data = bytes(data) + bytes(_WORD)
        self.bytes: U8 = np.frombuffer(data, np.uint8)
        # The eight bytes at each position as one number. The numbers overlap: this is a view.
        self._words: U64 = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))

    def words(self, positions: I64) -> U64:
        """The eight bytes from each position on, the first byte lowest, with zeros after the end of the data."""
        last = len(self._words) - 1
        try:
            if positions[-1] <= last:
                return self._words[positions]
        except IndexError:
            raise ProtocolError("a record that ends too early") from None
        words = self._words[np.minimum(positions, last)]
        late = np.flatnonzero(positions > last)
        beyond = np.minimum(positions[late] - last, _WORD - 1)
        words[late] >>= (beyond * 8).astype(np.uint64)
        return words

    def read(self, positions: I64, words: U64, *, long: bool = False) -> tuple[I64, I64]:
        """Values and sizes in bytes of the varints at ``positions``; ``words`` holds at least their first two bytes.

        ``long``: varints of 64 bits instead of 32.
        """
        entries = _TABLE.take(words.astype(np.uint16))
        sizes = (entries & 3).astype(np.int64)
        values = (entries >> 2).astype(np.int64)
        if not entries.all():
            longer = np.flatnonzero(entries == 0)
            values[longer], sizes[longer] = self._read_long(
                positions[longer], _VARLONG_BYTES if long else _VARINT_BYTES
            )
        return values, sizes

    def _read_long(self, positions: I64, most: int) -> tuple[I64, I64]:
        count, end = len(positions), len(self.bytes)
        raw = np.zeros(count, np.uint64)
        sizes = np.zeros(count, np.int64)
        unfinished = np.arange(count)
        for size in range(1, most + 1):
            at = positions[unfinished] + (size - 1)
            if int(at.max()) >= end:
                raise ProtocolError("a varint that ends too early")
            byte = self.bytes[at]
            raw[unfinished] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * (size - 1))
            more = byte > 0x7F
            sizes[unfinished[~more]] = size
            unfinished = unfinished[more]
            if not len(unfinished):
                if size == most and byte.max() > _LAST_BYTE[most]:
                    raise ProtocolError("a varint of too many bits")
                return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), sizes
        raise ProtocolError(f"a varint of more than {most} bytes")


def zigzag(values: npt.NDArray[Any]) -> U64:
    wide = values.astype(np.int64, copy=False)
    if len(wide) and int(wide.min()) >= 0:  # nearly always
        return (wide << 1).view(np.uint64)
    return (wide << 1 ^ wide >> 63).view(np.uint64)


def sizes_of(raw: U64) -> I64:
    """The size in bytes of each zig-zag value as a varint."""
    largest = int(raw.max()) if len(raw) else 0
    smallest = int(raw.min()) if len(raw) else 0
    # The bits that all values need are not compared value by value.
    bits = 7
    while smallest >> bits and bits < 64:
        bits += 7
    sizes = np.full(len(raw), bits // 7, np.int64)
    while bits < 64 and largest >> bits:
        sizes += raw >= np.uint64(1 << bits)
        bits += 7
    return sizes


class Rows:
    """Rows of bytes, built column by column from varints and single bytes. ``flat`` returns all rows one after the
    other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[U8 | int] = []
        self._used: list[npt.NDArray[np.bool_] | None] = []  # None: the column is used in every row
        self.sizes: I64 = np.zeros(count, np.int64)

    def byte(self, value: int) -> None:
        self._columns.append(value)
        self._used.append(None)
        self.sizes += 1

    def varint(self, raw: U64, sizes: I64) -> None:
        """``raw``: zig-zag values. ``sizes``: ``sizes_of(raw)``."""
        least, width = int(sizes.min()), int(sizes.max())
        for i in range(width):
            column = (raw >> np.uint64(7 * i) if i else raw).astype(np.uint8)
            if i < least - 1:
                column |= np.uint8(0x80)
            elif i < width - 1:
                column &= np.uint8(0x7F)
                column |= (sizes > i + 1).view(np.uint8) << np.uint8(7)
            self._columns.append(column)
            self._used.append(sizes > i if i >= least else None)
        self.sizes += sizes

    def flat(self) -> U8:
        matrix = np.empty((self._count, len(self._columns)), np.uint8)
        for i, column in enumerate(self._columns):
            matrix[:, i] = column
        if all(used is None for used in self._used):
            return matrix.reshape(-1)
        keep = np.ones(matrix.shape, np.bool_)
        for i, used in enumerate(self._used):
            if used is not None:
                keep[:, i] = used
        return matrix[keep]


# Finding a run costs as much as 50 to 100 records cost otherwise.
_SHORTEST_BATCH = 256
_SHORTEST_RUN = 64
# The most records that are compared with the first record of a run. Without a bound, the time for a batch of many short
# runs would grow with the square of its records.
_COMPARED = 4096

_LONGEST_VARINT = 5


def even_records(data: U8, sections: Sequence[tuple[int, int, int]]) -> tuple[I64, I64] | None:
    """For each record of the ``sections`` (start, end, records): the position after its length, and its end.

    None if the records do not tile the sections in long runs of equal lengths. Whether they tile them at all is left to
    the other ways.
    """
    bodies: list[I64] = []
    ends: list[I64] = []
    for section in sections:
        if section[2] < _SHORTEST_BATCH or not _append_runs(data, section, bodies, ends):
            return None
    return np.concatenate(bodies), np.concatenate(ends)


def _append_runs(data: U8, section: tuple[int, int, int], bodies: list[I64], ends: list[I64]) -> bool:
    pos, end, left = section
    runs = 0
    while left:
        body, size = _length_at(data, pos, end)
        step = body - pos + size
        most = min(left, (end - pos) // step, _COMPARED) if size > 0 else 0
        if not most:
            return False
        # A row for each record, if all of them are as long as the first.
        rows = data[pos : pos + most * step].reshape(most, step)
        same = rows[:, 0] == rows[0, 0]
        for column in range(1, body - pos):
            same &= rows[:, column] == rows[0, column]
        count = most if same.all() else int(same.argmin())
        after = np.arange(pos + step, pos + (count + 1) * step, step)
        ends.append(after)
        bodies.append(after - size)
        pos += count * step
        left -= count
        runs += 1
        if section[2] - left < runs * _SHORTEST_RUN:
            return False
    return pos == end


def _length_at(data: U8, pos: int, end: int) -> tuple[int, int]:
    """The position after the varint at ``pos``, and its value; 0 if there is no varint."""
    raw = 0
    for index, byte in enumerate(data[pos : min(pos + _LONGEST_VARINT, end)].tolist()):
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return pos + index + 1, raw >> 1 ^ -(raw & 1)
    return pos, 0


SMALLEST_RECORD = 7  # seven one-byte fields
_IN_A_RECORD = np.arange(1, SMALLEST_RECORD)
_SMALLEST_BODY = 6

# Guessing costs 0.2 ns a byte, walking 90 ns a record: they are equal at about 450 bytes a record.
_GUESSING_PAYS_BELOW = 400
_GUESSING_PAYS_FROM = 32
# The most guesses for each record, and the most rounds of dropping wrong guesses; beyond that, walking is faster.
_MOST_GUESSES = 6
_ROUNDS = 3
# If at most one guess in this many is wrong, the wrong guesses are dropped one by one.
_FEW_WRONG = 16
# Guessing reads 64 KiB at a time, which fits into the CPU's caches: ten times faster than a megabyte at a time.
_BLOCK = 1 << 16


Mask = npt.NDArray[np.bool_]


class Section(NamedTuple):
    """The records of one batch: their start and end in a buffer, and their number (at least one)."""

    start: int
    end: int
    records: int


class Spans(NamedTuple):
    """For each record: the position after its length, and its end."""

    bodies: I64
    ends: I64


class RecordFinder:
    """Finds records, group after group of batches. Its working memory, a byte for each byte of a group, is kept for the
    next."""

    def __init__(self) -> None:
        self._marks: Mask = np.zeros(0, np.bool_)
        self._reached: Mask = np.zeros(0, np.bool_)

    def spans(self, data: BytesLike, varints: Varints, sections: Sequence[Section]) -> Spans:
        """The spans of all records of the ascending ``sections``. Raises ProtocolError unless the records tile the sections."""
        even = even_records(varints.bytes, sections)
        if even is not None and int((even[1] - even[0]).min()) >= _SMALLEST_BODY:
            return Spans(*even)
        tiles = _Tiles(varints, sections)
        size = sum(section.end - section.start for section in sections)
        if _GUESSING_PAYS_FROM <= tiles.total and size < tiles.total * _GUESSING_PAYS_BELOW:
            # Guesses need the last record to end with a zero, like all others.
            spans = self._guessed(varints.bytes, sections, tiles) if not varints.bytes[sections[-1].end - 1] else None
            if spans is not None:
                return spans
        starts: list[int] = []
        for section in sections:
            walk(data, section, starts)
        spans = tiles.spans(tiles.records(np.array(starts, np.int64)))
        if spans is None:
            raise ProtocolError("a record whose length is below what a record has")
        return spans

    def _guessed(self, data: U8, sections: Sequence[Section], tiles: "_Tiles") -> Spans | None:
        size = len(data) + 9 & ~7  # whole words of eight bytes, and at least one more than the positions
        if len(self._marks) < size:
            self._marks, self._reached = np.zeros((2, size), np.bool_)
        marks = self._marks[:size]
        _mark(data, marks)
        for before, after in pairwise(sections):
            if before.end < after.start:
                marks[before.end : after.start] = False
        # The first record of nearly every batch has further zeros (its time and offset) after its length.
        marks[tiles.starts[:, np.newaxis] + _IN_A_RECORD] = False
        marks[tiles.starts] = True
        if np.count_nonzero(marks) > tiles.total * _MOST_GUESSES:
            return None
        try:
            records = tiles.records(_positions(marks))
        except ProtocolError:  # a guess at the very end
            return None
        few_wrong = tiles.total + tiles.total // _FEW_WRONG
        for _ in range(_ROUNDS):
            if len(records.starts) <= few_wrong:
                break
            records = self._chained(records, marks, tiles)
        if tiles.total < len(records.starts) <= few_wrong:
            records = tiles.followed(records)
        return tiles.spans(records) if len(records.starts) == tiles.total else None

    def _chained(self, records: "_Records", marks: Mask, tiles: "_Tiles") -> "_Records":
        """Guesses that are long enough, end at another guess or at a batch's end, and begin where another guess ends."""
        starts, bodies, ends = records
        inside = np.minimum(np.maximum(ends, 0), len(marks) - 1)
        reached = self._reached
        reached[inside] = True
        reached[tiles.starts] = True
        marks[tiles.ends] = True
        keep = marks[inside] & reached[starts] & (ends - bodies >= _SMALLEST_BODY)
        reached[inside] = False
        reached[tiles.starts] = False
        marks[starts] = keep
        return _Records(starts[keep], bodies[keep], ends[keep])


def walk(data: BytesLike, section: Section, starts: list[int]) -> None:
    """Appends the start of each record of ``section``, by the lengths alone."""
    pos, end, count = section
    append = starts.append
    try:
        for _ in range(count):
            append(pos)
            first = data[pos]
            if first < 0x80:
                pos += (first >> 1) + 1
            else:
                second = data[pos + 1]
                if second < 0x80:
                    pos += ((first & 0x7F | second << 7) >> 1) + 2
                else:
                    pos = _after(data, pos)
    except IndexError:
        pos = end + 1
    if pos > end:
        raise ProtocolError("a batch whose records are longer than itself")
    if pos < end:
        raise ProtocolError("a batch with more in it than its records")


def _after(data: BytesLike, pos: int) -> int:
    raw = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return pos + (raw >> 1)
        shift += 7
        if shift > 28:
            raise ProtocolError("a varint of more than 5 bytes")


def pieces(data: BytesLike, section: Section, size: int) -> list[Section]:
    """``section`` in parts of complete records and about ``size`` bytes, so that a huge batch does not need huge
    arrays."""
    parts: list[Section] = []
    pos, end, count = section
    start, first = pos, 0
    try:
        for index in range(count):
            if pos >= end:
                raise ProtocolError("a batch whose records are longer than itself")
            if pos - start >= size:
                parts.append(Section(start, pos, index - first))
                start, first = pos, index
            pos = _after(data, pos)
    except IndexError:
        raise ProtocolError("a batch whose records are longer than itself") from None
    parts.append(Section(start, end, count - first))
    return parts


class _Records(NamedTuple):
    """Guessed records: their starts, the positions after their lengths, and the ends that follow from the lengths."""

    starts: I64
    bodies: I64
    ends: I64


class _Tiles:
    """Checks whether records tile their sections."""

    def __init__(self, varints: Varints, sections: Sequence[Section]) -> None:
        table = np.array(sections, np.int64)
        self.total = int(table[:, 2].sum())
        self.starts, self.ends = table[:, 0], table[:, 1]
        self._varints = varints
        after = np.cumsum(table[:, 2])
        self._first, self._last = after - table[:, 2], after - 1

    def records(self, starts: I64) -> _Records:
        lengths, sizes = self._varints.read(starts, self._varints.words(starts))
        bodies = starts + sizes
        return _Records(starts, bodies, bodies + lengths)

    def followed(self, records: _Records) -> _Records:
        """The guesses that are reached by following lengths. A few of them may still be wrong.

        Only guesses that do not end at the next guess are examined, one by one.
        """
        starts, _, ends = records
        apart = np.flatnonzero(ends[:-1] != starts[1:])
        targets = ends[apart]
        # The last record of a section leads to the next section; that of the last section leads beyond all guesses.
        sections = np.searchsorted(self.ends[:-1], targets)
        at_end = self.ends[sections] == targets
        targets[at_end] = np.append(self.starts[1:], self.ends[-1])[sections[at_end]]
        followers = np.searchsorted(starts, targets)
        keep = np.ones(len(starts), np.bool_)
        reached = 0
        for index, follower in zip(apart.tolist(), followers.tolist(), strict=True):
            if index >= reached:
                keep[index + 1 : follower] = False
                reached = follower
        return _Records(starts[keep], records.bodies[keep], ends[keep])

    def spans(self, records: _Records) -> Spans | None:
        """None unless each of ``total`` records ends where the next record starts, in all sections."""
        starts, bodies, ends = records
        following = np.empty_like(starts)
        following[:-1] = starts[1:]
        following[self._last] = self.ends
        if (starts[self._first] != self.starts).any() or (following != ends).any():
            return None
        return Spans(bodies, ends) if int((ends - bodies).min()) >= _SMALLEST_BODY else None


def _mark(data: U8, marks: Mask) -> None:
    """Set ``marks`` where a record seems to start: after a zero, with a length of one or two bytes and then a zero."""
    end = len(data)
    marks[0] = False
    marks[max(0, end - 3) :] = False
    for start in range(0, end, _BLOCK):
        zero = data[start : start + _BLOCK + 3] == 0
        guesses = zero[2:-1] | zero[3:]
        np.logical_and(guesses, zero[:-3], out=marks[start + 1 : start + 1 + len(guesses)])


def _positions(marks: Mask) -> I64:
    """The positions at which ``marks`` is set. Most bytes are unset, so words of eight are tested first: four times
    faster."""
    words = np.flatnonzero(marks.view(np.uint64) != 0)
    inside = np.flatnonzero(marks.reshape(-1, 8).take(words, axis=0))
    positions: I64 = words[inside >> 3] * 8 + (inside & 7)
    return positions
