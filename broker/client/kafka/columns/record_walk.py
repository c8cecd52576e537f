"""Where the records of batches begin and end. Pure.

Each record starts with its own length, so in principle one must go from one to the next, which costs 100 ns a record in
Python. Small records without headers are found all at once instead: such a record ends with a zero (no headers), the next one
has its length in one or two bytes and then another zero (its attributes). What looks like that is a guess, and the proof comes
after: the guesses must tile every batch exactly, length by length, from its first byte to its last. Where they do not, the
guesses that no other one leads to are dropped, and if that is not enough the records are gone through one by one.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker.client.kafka.columns.varints import I64, U8, Varints
from protocol.errors import ProtocolError
from protocol.wire import BytesLike

SMALLEST_RECORD = 7  # seven one-byte fields
_IN_A_RECORD = np.arange(1, SMALLEST_RECORD)
_SMALLEST_BODY = 6

# Guessing looks at every byte (0.2 ns each), walking at every record (90 ns): they meet at about 450 bytes a record.
_GUESSING_PAYS_BELOW = 400
_GUESSING_PAYS_FROM = 32
# How often guesses that lead nowhere are dropped, before walking is quicker.
_ROUNDS = 3
# What guessing looks at fits into the processor's caches, 64 KiB at a time: ten times faster than a megabyte at a time.
_BLOCK = 1 << 16


Mask = npt.NDArray[np.bool_]


class Section(NamedTuple):
    """The records of one batch: where they start and end in a buffer, and how many they are (at least one)."""

    start: int
    end: int
    records: int


class Spans(NamedTuple):
    """Of each record: where what follows its length starts, and where it ends."""

    bodies: I64
    ends: I64


class RecordFinder:
    """Finds records, group after group of batches; keeps the memory that it needs for that, a byte for each of a group's."""

    def __init__(self) -> None:
        self._marks: Mask = np.zeros(0, np.bool_)
        self._reached: Mask = np.zeros(0, np.bool_)

    def spans(self, data: BytesLike, varints: Varints, sections: Sequence[Section]) -> Spans:
        """Of all records of ``sections``, ascending in ``data``. Raises ProtocolError unless they tile them exactly."""
        tiles = _Tiles(varints, sections)
        size = sum(section.end - section.start for section in sections)
        if _GUESSING_PAYS_FROM <= tiles.total and size < tiles.total * _GUESSING_PAYS_BELOW:
            found = self._guessed(varints.bytes, sections, tiles) if not varints.bytes[sections[-1].end - 1] else None
            if found is not None:
                return found
        starts: list[int] = []
        for section in sections:
            walk(data, section, starts)
        found = tiles.spans(tiles.records(np.array(starts, np.int64)))
        if found is None:
            raise ProtocolError("a record whose length is below what a record has")
        return found

    def _guessed(self, data: U8, sections: Sequence[Section], tiles: "_Tiles") -> Spans | None:
        size = len(data) + 9 & ~7  # whole words of eight, and one more than there are positions
        if len(self._marks) < size:
            self._marks, self._reached = np.zeros((2, size), np.bool_)
        marks = self._marks[:size]
        _mark(data, marks)
        for before, after in pairwise(sections):
            if before.end < after.start:
                marks[before.end : after.start] = False
        # The first record of nearly every batch has more zeros (its time and offset) behind its length.
        marks[tiles.starts[:, np.newaxis] + _IN_A_RECORD] = False
        marks[tiles.starts] = True
        try:
            records = tiles.records(_positions(marks))
        except ProtocolError:  # a guess at the very end
            return None
        for _ in range(_ROUNDS):
            if len(records.starts) <= tiles.total:
                break
            records = self._led_to(records, marks, tiles)
        return tiles.spans(records) if len(records.starts) == tiles.total else None

    def _led_to(self, records: "_Records", marks: Mask, tiles: "_Tiles") -> "_Records":
        """Only those that can be records, lead to another one (or to a batch's end), and that another one leads to."""
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
    """Appends where each record of ``section`` starts, going by the lengths alone."""
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
    """``section`` in parts of whole records and about ``size`` bytes: a huge batch must not need huge arrays."""
    found: list[Section] = []
    pos, end, count = section
    start, first = pos, 0
    for index in range(count):
        if pos >= end:
            raise ProtocolError("a batch whose records are longer than itself")
        if pos - start >= size:
            found.append(Section(start, pos, index - first))
            start, first = pos, index
        pos = _after(data, pos)
    found.append(Section(start, end, count - first))
    return found


class _Records(NamedTuple):
    """What may be records: where they start, where what follows their length starts, and where they end by that length."""

    starts: I64
    bodies: I64
    ends: I64


class _Tiles:
    """Whether records tile their sections."""

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

    def spans(self, records: _Records) -> Spans | None:
        """None unless each of ``total`` records ends where the next one starts, in all sections."""
        starts, bodies, ends = records
        following = np.empty_like(starts)
        following[:-1] = starts[1:]
        following[self._last] = self.ends
        if (starts[self._first] != self.starts).any() or (following != ends).any():
            return None
        return Spans(bodies, ends) if int((ends - bodies).min()) >= _SMALLEST_BODY else None


def _mark(data: U8, marks: Mask) -> None:
    """Where records seem to start: behind a zero, with a length of one byte and a zero, or of two bytes and a zero."""
    end = len(data)
    marks[0] = False
    marks[max(0, end - 3) :] = False
    for start in range(0, end, _BLOCK):
        block = data[start : start + _BLOCK + 3]
        zero, high = block == 0, block > 0x7F
        found = np.greater(zero[2:-1], high[1:-2])
        found |= np.greater(high[1:-2], high[2:-1]) & zero[3:]
        np.logical_and(found, zero[:-3], out=marks[start + 1 : start + 1 + len(found)])


def _positions(marks: Mask) -> I64:
    """Where ``marks`` is set. By words of eight first, as most have none: four times as fast."""
    words = np.flatnonzero(marks.view(np.uint64) != 0)
    inside = np.flatnonzero(marks.reshape(-1, 8).take(words, axis=0))
    found: I64 = words[inside >> 3] * 8 + (inside & 7)
    return found
