"""What of a log is acknowledged: everything before one offset, ranges of offsets above it, and parts of batches.

Pure; the caller holds whatever lock guards it. It knows no protocol: Pulsar's cursors and Kafka's share groups can keep this.

- ``before``: every offset below it is acknowledged. It never goes back but by ``reset``.
- *Ranges*, from the first offset to the one after the last, sorted, that neither overlap nor touch each other nor ``before``.
  What lies between them is a *hole*: it is still to be acknowledged.
- *Parts*: of a batch that covers several offsets and is not yet acknowledged as a whole, the bits of those of its records that
  are still to be acknowledged. Bit 0 is the first record. No part lies before ``before`` or in a range.

Both tables are bounded. An acknowledgement that would make one more hole, or one more part, than the bound is refused with
``TooManyHoles``, and then nothing has changed: the record is still to be acknowledged and is delivered again some day. (An
earlier implementation of this idea, Pulsar's, drops what is above the bound when it stores the state, and so loses
acknowledgements without a word: issue 25540.) Acknowledgements that make no further hole succeed all the same.

An acknowledgement costs a binary search, and a move of 8 bytes for each range above it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.errors import Refusal

# As many as Pulsar keeps (managedLedgerMaxUnackedRangesToPersist, and the same for batches).
RANGES_MAX = 200_000
PARTS_MAX = 200_000
# The bits of all parts. A batch of 1,000 records needs 125 bytes.
PART_BYTES_MAX = 16 * 1024 * 1024


class TooManyHoles(Refusal):
    """As much as can be remembered is acknowledged out of order. Acknowledge the oldest records first."""


class Part(NamedTuple):
    records: int  # that the batch has
    remaining: (
        int  # bits of those that are still to be acknowledged: some, not all, and the highest is one of the batch's
    )


class Acknowledged:
    """``ranges_max``: how many ranges there may be, ``parts_max`` how many parts."""

    __slots__ = ("_ends", "_order", "_part_bytes", "_parts", "_starts", "before", "parts_max", "ranges_max", "version")

    def __init__(self, before: int = 0, *, ranges_max: int = RANGES_MAX, parts_max: int = PARTS_MAX) -> None:
        self.before = before
        self.ranges_max = ranges_max
        self.parts_max = parts_max
        self.version = 0  # counts the changes
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._parts: dict[int, Part] = {}  # by the first offset of the batch
        self._order: list[int] = []  # the keys of _parts, sorted
        self._part_bytes = 0

    # -- questions ----------------------------------------------------------------------------------------------------

    def covers(self, offset: int) -> bool:
        """Whether this offset is acknowledged. Parts do not count."""
        if offset < self.before:
            return True
        starts = self._starts
        if not starts:
            return False
        at = bisect_right(starts, offset)
        return at > 0 and offset < self._ends[at - 1]

    def next_hole(self, offset: int) -> int:
        """The first offset from this one on that is not acknowledged."""
        if offset < self.before:
            return self.before
        at = bisect_right(self._starts, offset)
        return max(offset, self._ends[at - 1]) if at else offset

    def part(self, first: int) -> int | None:
        """The bits of a batch's records that are still to be acknowledged; None if that is all or none of them."""
        part = self._parts.get(first) if self._parts else None
        return None if part is None else part.remaining

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """First offset and the one after the last, of each range, ascending."""
        return zip(self._starts, self._ends, strict=True)

    def bounds(self) -> tuple[Sequence[int], Sequence[int]]:
        """The same as two lists, which must not be changed."""
        return self._starts, self._ends

    @property
    def range_count(self) -> int:
        return len(self._starts)

    @property
    def parts(self) -> Mapping[int, Part]:
        """By the first offset of the batch."""
        return self._parts

    @property
    def beyond(self) -> int:
        """How many offsets are acknowledged above ``before``."""
        return sum(self._ends) - sum(self._starts)

    @property
    def end(self) -> int:
        """The offset after the last that is acknowledged."""
        return self._ends[-1] if self._ends else self.before

    # -- changes ------------------------------------------------------------------------------------------------------

    def add(self, first: int, end: int) -> int:
        """Acknowledge the offsets from ``first`` to the one before ``end``. How many of them were not, as far as parts say.

        Raises TooManyHoles.
        """
        return self._add(first, end, self.ranges_max)

    def add_absent(self, first: int, end: int) -> None:
        """The same for offsets that no record has. It is never refused, because nobody can acknowledge them later: whoever
        reads the log bounds how many of these there are, by ``crowded``."""
        self._add(first, end, 1 << 62)

    @property
    def crowded(self) -> bool:
        """There are twice as many ranges as acknowledgements can make: read no further until the consumers acknowledge."""
        return len(self._starts) >= 2 * self.ranges_max

    def add_part(self, first: int, records: int, remaining: int) -> int:
        """Acknowledge the records of a batch whose bits are not set in ``remaining``. How many of them were not acknowledged.

        ``records``: how many the batch has. Raises TooManyHoles.
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
            insort(self._order, first)
        self._part_bytes += size
        self._parts[first] = Part(records, remaining)
        self.version += 1
        return count

    def until(self, offset: int) -> bool:
        """Acknowledge everything before the offset. Whether that was not the case already."""
        if offset <= self.before:
            return False
        self.before = offset
        self._absorb()
        if self._order:
            self._drop_parts(0, self.before)
        self.version += 1
        return True

    def reset(self, before: int) -> None:
        """Everything before the offset is acknowledged, and nothing else."""
        self.before = before
        self._starts.clear()
        self._ends.clear()
        self._parts.clear()
        self._order.clear()
        self._part_bytes = 0
        self.version += 1

    def restore(self, ranges: Iterable[tuple[int, int]], parts: Iterable[tuple[int, int, int]]) -> None:
        """Once, on a new one: what ``ranges`` and ``parts`` (first offset, records, remaining bits) have said, whatever the
        bounds are now. Raises ValueError if that cannot have been."""
        end = self.before
        for first, following in ranges:
            if not end < first < following:
                raise ValueError("ranges of offsets that overlap, or touch")
            self._starts.append(first)
            self._ends.append(following)
            end = following
        for first, records, remaining in parts:
            if self.covers(first) or (self._order and first <= self._order[-1]):
                raise ValueError("a part of a batch that is acknowledged, or parts that are not ascending")
            if not 0 < remaining.bit_count() < records or remaining.bit_length() > records:
                raise ValueError("a part of a batch with nothing left, or all")
            self._order.append(first)
            self._parts[first] = Part(records, remaining)
            self._part_bytes += _size(remaining)

    def _add(self, first: int, end: int, ranges_max: int) -> int:
        before = self.before
        starts, ends = self._starts, self._ends
        if first <= before:
            # The usual case: the oldest record is acknowledged first.
            if end <= before:
                return 0
            count = end - before
            if starts or self._order:
                count -= self._within(before, end)
                self.before = end
                self._absorb()
                self._drop_parts(0, self.before)
            else:
                self.before = end
            self.version += 1
            return count
        # The ranges that touch or overlap this one: ends[low:] are at or after its start, starts[:high] at or before its end.
        low = bisect_left(ends, first)
        high = bisect_right(starts, end)
        if low == high:
            if len(starts) >= ranges_max:
                raise TooManyHoles(f"{len(starts)} ranges of offsets are acknowledged out of order already.")
            count = end - first - (self._within(first, end) if self._order else 0)
            starts.insert(low, first)
            ends.insert(low, end)
        else:
            count = end - first - self._within(first, end)
            if count == 0:
                return 0
            starts[low:high] = [min(first, starts[low])]
            ends[low:high] = [max(end, ends[high - 1])]
        if self._order:
            self._drop_parts(first, end)
        self.version += 1
        return count

    def _within(self, first: int, end: int) -> int:
        """How many of these offsets are acknowledged already, in ranges or parts."""
        count = 0
        low = bisect_right(self._ends, first)
        high = bisect_left(self._starts, end)
        for at in range(low, high):
            count += min(end, self._ends[at]) - max(first, self._starts[at])
        order = self._order
        for batch in order[bisect_left(order, first) : bisect_left(order, end)]:
            part = self._parts[batch]
            count += part.records - part.remaining.bit_count()
        return count

    def _absorb(self) -> None:
        """``before`` has moved: join the ranges that it has reached."""
        starts, ends = self._starts, self._ends
        if not starts or starts[0] > self.before:
            return
        passed = bisect_right(starts, self.before)
        self.before = max(self.before, ends[passed - 1])
        del starts[:passed]
        del ends[:passed]

    def _drop_parts(self, first: int, end: int) -> None:
        """The batches that begin at one of these offsets are acknowledged as a whole."""
        order = self._order
        low = bisect_left(order, first)
        high = bisect_left(order, end)
        for offset in order[low:high]:
            self._part_bytes -= _size(self._parts.pop(offset).remaining)
        del order[low:high]


def _size(bits: int) -> int:
    return bits.bit_length() // 8 + 1
