"""The assignor of share groups, Kafka's ``simple``: the partitions that each member reads. Pure.

Properties of every result:

- A partition that some member subscribes to has a member. A member gets no partition that it does not subscribe to.
- A member has a partition if there is one that it subscribes to. Where there are more members than partitions, they are shared.
- Members that subscribe to the same topics form a *class*. Within a class the numbers of partitions differ by at most one; and if
  its members share partitions, so do the numbers of members.
- A member keeps its partitions, unless that is against the other rules.

A run costs O(members + partitions + topics named by the classes), times a logarithm. If all members subscribe to the same
topics, which is the usual case, there is one class. Otherwise each partition has a class as its home, and the loads of the
classes are evened out roughly: exact balance would take a search.
"""

import heapq
from collections.abc import Iterable, Mapping
from uuid import UUID

# Partition numbers by topic id, in ascending order.
Assignment = Mapping[UUID, tuple[int, ...]]
NOTHING: Assignment = {}


def assign(
    subscriptions: Mapping[str, frozenset[UUID]], partitions: Mapping[UUID, int], current: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """The partitions of each member. ``subscriptions``: topic ids by member; ``partitions``: the number of each topic's."""
    numbers = _Numbers(partitions)
    classes: dict[frozenset[UUID], list[str]] = {}
    for member, topics in subscriptions.items():
        classes.setdefault(topics, []).append(member)
    kept = {
        member: numbers.of_assignment(current.get(member, NOTHING), topics) for member, topics in subscriptions.items()
    }
    result: dict[str, list[int]] = {}
    for share, members in _shares(classes, numbers, kept):
        if len(members) <= len(share):
            result.update(_deal_one_holder(share, members, kept, numbers.total))
        else:
            result.update(_deal_one_each(share, members, kept))
    return {member: numbers.assignment(result[member]) for member in subscriptions}


class _Numbers:
    """All partitions numbered from 0 on, because that is faster than pairs."""

    def __init__(self, partitions: Mapping[UUID, int]) -> None:
        self._ranges: dict[UUID, range] = {}
        start = 0
        for topic, count in partitions.items():
            self._ranges[topic] = range(start, start + count)
            start += count
        self.total = start
        self._topic_of = [topic for topic, numbers in self._ranges.items() for _ in numbers]

    def of_topic(self, topic: UUID) -> range:
        return self._ranges.get(topic, range(0))

    def of_assignment(self, assignment: Assignment, topics: frozenset[UUID]) -> list[int]:
        """The partitions of an assignment that exist, and belong to these topics."""
        held: list[int] = []
        for topic, partitions in assignment.items():
            numbers = self._ranges.get(topic)
            if numbers is not None and topic in topics:
                held += [numbers.start + partition for partition in partitions if partition < len(numbers)]
        return held

    def assignment(self, numbers: Iterable[int]) -> Assignment:
        by_topic: dict[UUID, list[int]] = {}
        for number in sorted(numbers):
            topic = self._topic_of[number]
            by_topic.setdefault(topic, []).append(number - self._ranges[topic].start)
        return {topic: tuple(partitions) for topic, partitions in by_topic.items()}


def _shares(
    classes: Mapping[frozenset[UUID], list[str]], numbers: _Numbers, kept: Mapping[str, list[int]]
) -> list[tuple[list[int], list[str]]]:
    """The partitions of each class, and its members."""
    groups = list(classes.items())
    if len(groups) == 1:
        topics, members = groups[0]
        return [([number for topic in topics for number in numbers.of_topic(topic)], members)]
    home = _homes(groups, numbers, kept)
    shares: list[list[int]] = [[] for _ in groups]
    for number, index in enumerate(home):
        if index >= 0:
            shares[index].append(number)
    for index, (topics, members) in enumerate(groups):
        if len(shares[index]) < len(members):
            _borrow(shares[index], index, topics, members, numbers, kept)
    return [(share, members) for share, (_, members) in zip(shares, groups, strict=True)]


def _homes(
    groups: list[tuple[frozenset[UUID], list[str]]], numbers: _Numbers, kept: Mapping[str, list[int]]
) -> list[int]:
    """By partition: the class that must read it; -1 if nobody subscribes to it."""
    home = [-1] * numbers.total
    sizes = [len(members) for _, members in groups]
    loads = [0] * len(groups)
    subscribers: dict[UUID, list[int]] = {}
    for index, (topics, members) in enumerate(groups):
        for topic in topics:
            subscribers.setdefault(topic, []).append(index)
        for member in members:
            for number in kept[member]:
                if home[number] < 0:
                    home[number] = index
                    loads[index] += 1
    for topic, indexes in subscribers.items():
        _even_out(numbers.of_topic(topic), indexes, home, loads, sizes)
    return home


def _even_out(partitions: range, indexes: list[int], home: list[int], loads: list[int], sizes: list[int]) -> None:
    """Give the partitions of a topic to the classes that subscribe to it: partitions without a home to the least loaded, and a
    partition of another class only if that improves the balance."""
    # (load for each member, class). An item is out of date when the load of its class has changed meanwhile.
    heap = [(loads[index] / sizes[index], index) for index in indexes]
    heapq.heapify(heap)
    for number in partitions:
        while heap[0][0] != loads[heap[0][1]] / sizes[heap[0][1]]:
            heapq.heapreplace(heap, (loads[heap[0][1]] / sizes[heap[0][1]], heap[0][1]))
        least, before = heap[0][1], home[number]
        if before >= 0:
            if (loads[least] + 1) / sizes[least] >= loads[before] / sizes[before]:
                continue
            loads[before] -= 1
            heapq.heappush(heap, (loads[before] / sizes[before], before))
        home[number] = least
        loads[least] += 1


def _borrow(
    share: list[int],
    index: int,
    topics: frozenset[UUID],
    members: list[str],
    numbers: _Numbers,
    kept: Mapping[str, list[int]],
) -> None:
    """A class with more members than partitions reads partitions of other classes too: first its members' partitions."""
    present = set(share)

    def take(number: int) -> None:
        if number not in present and len(share) < len(members):
            present.add(number)
            share.append(number)

    for member in members:
        for number in kept[member]:
            take(number)
    ranges = [numbers.of_topic(topic) for topic in topics]
    if not ranges:
        return
    # Classes begin in different places, so that they do not all borrow the same partitions.
    start = index % len(ranges)
    for partitions in ranges[start:] + ranges[:start]:
        if len(share) >= len(members):
            return
        first = index % len(partitions) if partitions else 0
        for offset in range(min(len(partitions), len(members))):
            take(partitions[(first + offset) % len(partitions)])


def _deal_one_holder(
    share: list[int], members: list[str], kept: Mapping[str, list[int]], total: int
) -> dict[str, list[int]]:
    """At least as many partitions as members: each partition has one member."""
    is_free = bytearray(total)
    for number in share:
        is_free[number] = 1
    held: dict[str, list[int]] = {}
    for member in members:
        mine = held[member] = []
        for number in kept[member]:
            if is_free[number]:
                is_free[number] = 0
                mine.append(number)
    least, more = divmod(len(share), len(members))
    # Members with the most partitions keep one more than the others.
    for rank, member in enumerate(sorted(members, key=lambda holder: -len(held[holder]))):
        mine = held[member]
        for number in mine[least + (rank < more) :]:
            is_free[number] = 1
        del mine[least + (rank < more) :]
    free = [number for number in share if is_free[number]]
    free.reverse()
    for rank, member in enumerate(sorted(members, key=lambda holder: -len(held[holder]))):
        mine = held[member]
        for _ in range(least + (rank < more) - len(mine)):
            mine.append(free.pop())
    return held


def _deal_one_each(share: list[int], members: list[str], kept: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """More members than partitions: each member has one partition, if there is any."""
    if not share:
        return {member: [] for member in members}
    holders: dict[int, list[str]] = {number: [] for number in share}
    homeless: list[str] = []
    for member in members:
        number = next((number for number in kept[member] if number in holders), None)
        (homeless if number is None else holders[number]).append(member)
    least, more = divmod(len(members), len(share))
    room: list[tuple[int, int]] = []
    for rank, number in enumerate(sorted(share, key=lambda partition: -len(holders[partition]))):
        present, most = holders[number], least + (rank < more)
        homeless += present[most:]
        del present[most:]
        if len(present) < most:
            room.append((number, most - len(present)))
    homeless.reverse()
    for number, count in room:
        for _ in range(count):
            holders[number].append(homeless.pop())
    return {member: [number] for number, present in holders.items() for member in present}
