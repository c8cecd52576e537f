"""Divides the hashes of keys among the consumers of a Key_Shared subscription. Pure.

Three classes share an interface. *Hashes* here are 1 to 65,535, reduced from the hashes of keys (``reduce``); 0 is not used.
``join`` and ``leave`` return the ranges (first and last hash of each) that change their owner.

- ``Points``, the default: consistent hashing. Each consumer has 100 points on a ring, and a hash belongs to the next point. A
  new consumer takes a little from each other consumer, and gives it back when it leaves.
- ``Halves``: each consumer owns one range; a new consumer gets the lower half of the largest.
- ``Sticky``: each consumer names its ranges. Hashes outside all ranges have no owner.

Costs: ``owner`` takes a binary search. ``join`` and ``leave`` take a step for each point (100) or range, and each step moves at
most half a megabyte in memory, however many consumers there are; ``Halves`` checks all ranges.

The hash function of the points is our own choice, because nobody else computes them. The hash function of keys is Pulsar's
(Murmur3), because consumers with sticky ranges rely on it.

Tests: tests/pulsar/dispatch/test_key_ranges.py.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from hashlib import shake_128
from heapq import heappop, heappush
from struct import unpack
from typing import Protocol

from broker.pulsar.dispatch.dispatcher import Consumer, DispatchSettings
from broker.pulsar.refusals import ConsumerAssignError

LAST = 65_535

Ranges = Sequence[tuple[int, int]]


class KeyRanges(Protocol):
    def reduce(self, sticky_hash: int) -> int:
        """The hash of an entry, from the hash of its key."""

    def owner(self, hash: int) -> Consumer | None: ...

    def join(self, consumer: Consumer) -> Ranges:
        """Raises ConsumerAssignError; then nothing has changed."""

    def leave(self, consumer: Consumer) -> Ranges: ...


class Points:
    """``points``: the number of points of each consumer."""

    __slots__ = ("_holders", "_names", "_number", "_points", "_points_each", "_sorted")

    def __init__(self, points: int) -> None:
        self._points_each = points
        self._sorted: list[int] = []
        self._holders: dict[int, list[Consumer]] = {}  # by point; the first owns it
        self._points: dict[Consumer, list[int]] = {}
        # Consumers may have the same name: each takes the smallest number that no other consumer of its name has.
        self._names: dict[str, tuple[list[int], int]] = {}  # name -> free numbers (a heap), count of numbers given out
        self._number: dict[Consumer, int] = {}

    def reduce(self, sticky_hash: int) -> int:
        return sticky_hash % LAST + 1

    def owner(self, hash: int) -> Consumer | None:
        points = self._sorted
        if not points:
            return None
        at = bisect_left(points, hash)
        return self._holders[points[at] if at < len(points) else points[0]][0]

    def join(self, consumer: Consumer) -> Ranges:
        moved: list[tuple[int, int]] = []
        self._points[consumer] = points = self._points_of(consumer)
        for point in points:
            holders = self._holders.get(point)
            if holders is not None:
                holders.append(consumer)
                continue
            self._holders[point] = [consumer]
            at = bisect_left(self._sorted, point)
            self._sorted.insert(at, point)
            moved += self._arc(at)
        return moved

    def leave(self, consumer: Consumer) -> Ranges:
        moved: list[tuple[int, int]] = []
        for point in self._points.pop(consumer):
            holders = self._holders[point]
            owned = holders[0] is consumer
            holders.remove(consumer)
            if owned:
                at = bisect_left(self._sorted, point)
                moved += self._arc(at)
                if not holders:
                    del self._holders[point], self._sorted[at]
        free, given = self._names[consumer.name]
        heappush(free, self._number.pop(consumer))
        if len(free) == given:
            del self._names[consumer.name]
        return moved

    def _arc(self, at: int) -> Ranges:
        """The hashes that belong to the point with this index."""
        points = self._sorted
        if at:
            return [(points[at - 1] + 1, points[at])]
        return [(1, points[0]), (points[-1] + 1, LAST)]

    def _points_of(self, consumer: Consumer) -> list[int]:
        free, given = self._names.get(consumer.name, ([], 0))
        if free:
            number = heappop(free)
        else:
            number, given = given, given + 1
        self._names[consumer.name] = free, given
        self._number[consumer] = number
        count = self._points_each
        digest = shake_128(f"{consumer.name}\0{number}".encode()).digest(4 * count)
        return sorted({value % LAST + 1 for value in unpack(f"<{count}I", digest)})


class Halves:
    __slots__ = ("_consumers", "_ends")

    def __init__(self) -> None:
        # Each range ends with its own hash and begins after the end of the previous range.
        self._ends: list[int] = []
        self._consumers: list[Consumer] = []

    def reduce(self, sticky_hash: int) -> int:
        return sticky_hash % (LAST + 1) or 1

    def owner(self, hash: int) -> Consumer | None:
        return self._consumers[bisect_left(self._ends, hash)] if self._ends else None

    def join(self, consumer: Consumer) -> Ranges:
        ends = self._ends
        if not ends:
            ends.append(LAST)
            self._consumers.append(consumer)
            return [(1, LAST)]
        starts = [0, *ends[:-1]]
        width, at = max((end - start, -at) for at, (start, end) in enumerate(zip(starts, ends, strict=True)))
        at = -at
        if width < 2:
            raise ConsumerAssignError("There are as many consumers as hashes of keys.")
        middle = starts[at] + width // 2
        ends.insert(at, middle)
        self._consumers.insert(at, consumer)
        return [(starts[at] + 1, middle)]

    def leave(self, consumer: Consumer) -> Ranges:
        at = self._consumers.index(consumer)
        start, end = self._ends[at - 1] if at else 0, self._ends[at]
        del self._consumers[at]
        # The next range takes it over, or the previous range if it was the last.
        if at < len(self._ends) - 1:
            del self._ends[at]
        else:
            self._ends.pop()
            if self._ends:
                self._ends[-1] = LAST
        return [(start + 1, end)]


class Sticky:
    __slots__ = ("_consumers", "_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._consumers: list[Consumer] = []

    def reduce(self, sticky_hash: int) -> int:
        return sticky_hash % (LAST + 1) or 1

    def owner(self, hash: int) -> Consumer | None:
        at = bisect_right(self._starts, hash) - 1
        return self._consumers[at] if at >= 0 and hash <= self._ends[at] else None

    def join(self, consumer: Consumer) -> Ranges:
        ranges = sorted(consumer.ranges)
        if not ranges:
            raise ConsumerAssignError("A consumer of a sticky Key_Shared subscription names the ranges of its hashes.")
        end = -1
        for first, last in ranges:
            if not 0 <= first <= last <= LAST:
                raise ConsumerAssignError(f"{first} to {last} is not a range of hashes from 0 to {LAST}.")
            at = bisect_right(self._starts, last) - 1
            if first <= end or (at >= 0 and first <= self._ends[at]):
                raise ConsumerAssignError(f"The range of hashes from {first} to {last} is taken already.")
            end = last
        # One merge, however many there are.
        triples = list(zip(self._starts, self._ends, self._consumers, strict=True))
        triples += [(first, last, consumer) for first, last in ranges]
        self._set(sorted(triples, key=_start))
        return ranges

    def leave(self, consumer: Consumer) -> Ranges:
        triples = list(zip(self._starts, self._ends, self._consumers, strict=True))
        self._set([triple for triple in triples if triple[2] is not consumer])
        return sorted(consumer.ranges)

    def _set(self, triples: list[tuple[int, int, Consumer]]) -> None:
        self._starts = [first for first, _, _ in triples]
        self._ends = [last for _, last, _ in triples]
        self._consumers = [consumer for _, _, consumer in triples]


def key_ranges(settings: DispatchSettings, *, sticky: bool) -> KeyRanges:
    if sticky:
        return Sticky()
    return Points(settings.hash_points) if settings.consistent_hashing else Halves()


def _start(triple: tuple[int, int, Consumer]) -> int:
    return triple[0]
