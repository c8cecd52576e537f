"""The acknowledged part of a log: everything before an offset, ranges of offsets above it, and parts of batches.

Pure; the caller holds the lock that guards it. It knows no protocol: Pulsar's cursors and Kafka's share groups can keep this.

- ``before``: every offset below it is acknowledged. Only ``reset`` moves it back.
- *Ranges*: sorted pairs of the first offset and the offset after the last. They neither overlap nor touch each other or
  ``before``. The offsets between them form a *hole*: they are still to be acknowledged.
- *Parts*: for each batch that covers several offsets and is acknowledged in part, the bits of the records that are still to be
  acknowledged. Bit 0 is the first record. No part lies before ``before`` or in a range.

Both tables are bounded. An acknowledgement that would make more holes or parts than the bound is refused with
``TooManyHoles`` and changes nothing: the record is still to be acknowledged and will be delivered again. (Pulsar drops what
exceeds its bound when it stores the state, and so loses acknowledgements silently: issue 25540.) An acknowledgement that makes
no further hole always succeeds.

An acknowledgement takes some microseconds, regardless of the number of ranges and parts and of the order. If it swallows many
ranges, it takes as long as making them took.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.delivery.sorted_offsets import SortedOffsets
from broker.errors import Refusal

# Pulsar's limits (managedLedgerMaxUnackedRangesToPersist, and the same for batches).
RANGES_MAX = 200_000
PARTS_MAX = 200_000
# Size of the bits of all parts. A batch of 1,000 records needs 125 bytes.
PART_BYTES_MAX = 16 * 1024 * 1024


class TooManyHoles(Refusal):
    """The bound of acknowledgements out of order is reached. Acknowledge the oldest records first."""


class Part(NamedTuple):
    records: int  # in the batch
    remaining: int  # bits of the records still to be acknowledged: some, not all; the highest belongs to the batch


class RangesSnapshot(NamedTuple):
    """Immutable."""

    starts: Sequence[int]
    end_of: Mapping[int, int]

    def bounds(self) -> tuple[Sequence[int], Sequence[int]]:
        """The first offset of each range, ascending, and the offset after the last of each."""
        return self.starts, list(map(self.end_of.__getitem__, self.starts))


class Acknowledged:
    """``ranges_max`` and ``parts_max`` bound the number of ranges and parts."""

    __slots__ = (
        "_end_of",
        "_order",
        "_part_bytes",
        "_parts",
        "_starts",
        "before",
        "beyond",
        "parts_max",
        "ranges_max",
        "version",
    )

    def __init__(self, before: int = 0, *, ranges_max: int = RANGES_MAX, parts_max: int = PARTS_MAX) -> None:
        self.before = before
        self.beyond = 0  # number of acknowledged offsets above ``before``; parts do not count
        self.ranges_max = ranges_max
        self.parts_max = parts_max
        self.version = 0  # counts the changes
        self._starts = SortedOffsets()  # of the ranges
        self._end_of: dict[int, int] = {}  # by the start
        self._parts: dict[int, Part] = {}  # by the first offset of the batch
        self._order = SortedOffsets()  # the keys of _parts
        self._part_bytes = 0

    # -- questions ----------------------------------------------------------------------------------------------------

    def covers(self, offset: int) -> bool:
        """Whether this offset is acknowledged. Parts do not count."""
        if offset < self.before:
            return True
        if not self._end_of:
            return False
        start = self._starts.at_or_before(offset)
        return start is not None and offset < self._end_of[start]

    def next_hole(self, offset: int) -> int:
        """The first unacknowledged offset at or after ``offset``."""
        if offset < self.before:
            return self.before
        if not self._end_of:
            return offset
        start = self._starts.at_or_before(offset)
        return offset if start is None else max(offset, self._end_of[start])

    def part(self, first: int) -> int | None:
        """The bits of a batch's records that are still to be acknowledged; None if that is all or none of them."""
        part = self._parts.get(first) if self._parts else None
        return None if part is None else part.remaining

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """First offset and the offset after the last, of each range, ascending."""
        return zip(*self.bounds(), strict=True)

    def bounds(self) -> tuple[Sequence[int], Sequence[int]]:
        """``ranges`` as two lists."""
        starts = list(self._starts)
        return starts, list(map(self._end_of.__getitem__, starts))

    def snapshot(self) -> "RangesSnapshot":
        """A copy of the ranges, so that ``bounds`` can be computed without the lock."""
        return RangesSnapshot(list(self._starts), self._end_of.copy())

    @property
    def range_count(self) -> int:
        return len(self._end_of)

    @property
    def parts(self) -> Mapping[int, Part]:
        """By the first offset of the batch."""
        return self._parts

    @property
    def end(self) -> int:
        """The offset after the last that is acknowledged."""
        last = self._starts.last
        return self.before if last is None else self._end_of[last]

    # -- changes ------------------------------------------------------------------------------------------------------

    def add(self, first: int, end: int) -> int:
        """Acknowledge the offsets from ``first`` to ``end - 1``. Returns how many were not acknowledged, as far as parts tell.

        Raises TooManyHoles.
        """
        return self._add(first, end, self.ranges_max)

    def add_absent(self, first: int, end: int) -> None:
        """``add`` for offsets that no record has. It is never refused, because nobody can acknowledge them later: the reader
        of the log bounds their number by ``crowded``."""
        self._add(first, end, 1 << 62)

    @property
    def crowded(self) -> bool:
        """There are twice as many ranges as acknowledgements can make: read no further until the consumers acknowledge."""
        return len(self._end_of) >= 2 * self.ranges_max

    def add_part(self, first: int, records: int, remaining: int) -> int:
        """Acknowledge the records of a batch whose bits are not set in ``remaining``. Returns how many were not acknowledged.

        ``records``: the number of records in the batch. Raises TooManyHoles.
        """
        if self.covers(first):
            return 0
        if remaining.bit_length() > records:
            remaining &= (1 << records) - 1
        known = self._parts.get(first)
        if known is not None:
            records = known.records
            remaining &= known.remaining
        if not remaining:
            return self._add(first, first + records, self.ranges_max)
        count = (records if known is None else known.remaining.bit_count()) - remaining.bit_count()
        if count == 0:
            return 0
        size = _size(remaining)
        if known is not None:
            size -= _size(known.remaining)
        elif len(self._parts) >= self.parts_max or self._part_bytes + size > PART_BYTES_MAX:
            raise TooManyHoles(f"Of {len(self._parts)} batches some records are acknowledged and others are not.")
        else:
            self._order.add(first)
        self._part_bytes += size
        self._parts[first] = Part(records, remaining)
        self.version += 1
        return count

    def until(self, offset: int) -> bool:
        """Acknowledge everything before the offset. Returns whether this changed anything."""
        if offset <= self.before:
            return False
        self._move(offset)
        self.version += 1
        return True

    def reset(self, before: int) -> None:
        """Acknowledge everything before the offset, and nothing else."""
        self.before = before
        self.beyond = 0
        self._starts.clear()
        self._end_of.clear()
        self._parts.clear()
        self._order.clear()
        self._part_bytes = 0
        self.version += 1

    def restore(self, ranges: Iterable[tuple[int, int]], parts: Iterable[tuple[int, int, int]]) -> None:
        """Fill a new object with stored ``ranges`` and ``parts`` (first offset, records, remaining bits), whatever the bounds
        are now. Raises ValueError if no valid state has these."""
        end = self.before
        for first, following in ranges:
            if not end < first < following:
                raise ValueError("ranges of offsets that overlap, or touch")
            self._end_of[first] = following
            self.beyond += following - first
            end = following
        self._starts.fill(list(self._end_of))
        for first, records, remaining in parts:
            last = self._order.last
            if self.covers(first) or (last is not None and first <= last):
                raise ValueError("a part of a batch that is acknowledged, or parts that are not ascending")
            if not 0 < remaining.bit_count() < records or remaining.bit_length() > records:
                raise ValueError("a part of a batch with nothing left, or all")
            self._order.add(first)
            self._parts[first] = Part(records, remaining)
            self._part_bytes += _size(remaining)

    def _add(self, first: int, end: int, ranges_max: int) -> int:
        before = self.before
        if first <= before:
            # The usual case: the oldest record is acknowledged first.
            if end <= before:
                return 0
            self.version += 1
            if not self._end_of and not self._parts:
                self.before = end
                return end - before
            count = end - before - self._within(before, end)
            self._move(end)
            return count
        starts, end_of = self._starts, self._end_of
        # The range that begins before this one and reaches it, or covers it.
        joined = starts.at_or_before(first)
        if joined is not None and end_of[joined] < first:
            joined = None
        following = starts.at_or_after(first)
        if joined is None and (following is None or following > end):
            if len(end_of) >= ranges_max:
                raise TooManyHoles(f"{len(end_of)} ranges of offsets are acknowledged out of order already.")
            count = end - first - self._within_parts(first, end)
            self._insert(first, end)
        else:
            if joined is not None and end_of[joined] >= end:
                return 0
            count = end - first - self._within(first, end)
            start, last = first, end
            if joined is not None:
                start = joined
                last = max(last, self._take_out(joined))
            while (following := starts.at_or_after(start)) is not None and following <= last:
                last = max(last, self._take_out(following))
            self._insert(start, last)
        if self._parts:
            self._drop_parts(first, end)
        self.version += 1
        return count

    def _insert(self, start: int, end: int) -> None:
        self._starts.add(start)
        self._end_of[start] = end
        self.beyond += end - start

    def _take_out(self, start: int) -> int:
        """Remove the range and return its end."""
        self._starts.remove(start)
        end = self._end_of.pop(start)
        self.beyond -= end - start
        return end

    def _within(self, first: int, end: int) -> int:
        """How many of these offsets are acknowledged already, in ranges or parts."""
        count = self._within_parts(first, end)
        start = self._starts.at_or_before(first)
        if start is None or self._end_of[start] <= first:
            start = self._starts.at_or_after(first)
        while start is not None and start < end:
            following = self._end_of[start]
            count += min(end, following) - max(first, start)
            start = self._starts.at_or_after(following)
        return count

    def _within_parts(self, first: int, end: int) -> int:
        count = 0
        if self._parts:
            batch = self._order.at_or_after(first)
            while batch is not None and batch < end:
                part = self._parts[batch]
                count += part.records - part.remaining.bit_count()
                batch = self._order.at_or_after(batch + 1)
        return count

    def _move(self, before: int) -> None:
        """Acknowledge everything before this offset, and drop the ranges and parts that it has reached."""
        starts = self._starts
        first = starts.first
        if first is not None and first <= before:
            # Ranges neither overlap nor touch, so none begins where another ends.
            taken = starts.take_until(before)
            ends = list(map(self._end_of.pop, taken))
            self.beyond -= sum(ends) - sum(taken)
            before = max(before, ends[-1])
        self.before = before
        if self._parts:
            self._drop_parts(0, before)

    def _drop_parts(self, first: int, end: int) -> None:
        """Drop the parts of batches that begin at these offsets, which are now acknowledged as a whole."""
        if first == 0:
            for batch in self._order.take_until(end - 1):
                self._part_bytes -= _size(self._parts.pop(batch).remaining)
            return
        following = self._order.at_or_after(first)
        while following is not None and following < end:
            self._order.remove(following)
            self._part_bytes -= _size(self._parts.pop(following).remaining)
            following = self._order.at_or_after(first)


def _size(bits: int) -> int:
    return bits.bit_length() // 8 + 1
