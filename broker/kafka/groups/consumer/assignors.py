"""The assignors of the coordinator, by name: ``uniform`` and ``range``, as Kafka's. Pure functions.

Their input (``AssignorInput``) has the members, their subscriptions, and their previous partitions. Members are numbers here.
Racks are ignored: there is one broker.

``range`` gives each member a contiguous range of every topic that it subscribes to. Members have the same order for every topic,
so topics with equally many partitions and the same subscribers are divided alike and can be joined. Members keep the order of
their previous ranges, and new members come after them, so a change moves only partitions at the borders of ranges. It costs
O(members * log(members) + subscriptions + partitions).

``uniform`` gives every member as many partitions as any other, as far as subscriptions allow, with as few moves as possible.

If all members subscribe to the same topics, the numbers of partitions of two members differ by at most 1, and only a member's
surplus moves. It costs O(members + partitions).

Otherwise the partitions of each topic in turn are spread over its subscribers so that their totals become as level as possible,
like water in vessels. That is repeated until nothing changes, so in the end no single partition could move to a member that has
two fewer. A round costs O(subscriptions * log(subscribers) + partitions), and there are at most ``_ROUNDS_MAX`` rounds.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

import attrs

from broker.kafka.groups.consumer.values import Assignment


@attrs.frozen(eq=False)
class Subscribers:
    """Members that subscribe to the same topics, in ascending order."""

    topic_ids: tuple[UUID, ...]
    members: tuple[int, ...]


@attrs.frozen(eq=False)
class AssignorInput:
    """``previous``: each member's previous partitions; its length is the number of members. Members share no partition.

    ``partitions``: the number of partitions of each subscribed topic. Members are sorted by instance id, members without an
    instance id last, and by member id.
    """

    partitions: dict[UUID, int]
    subscribers: tuple[Subscribers, ...]
    previous: list[Assignment]

    def topic_subscribers(self) -> dict[UUID, list[int]]:
        """The members that subscribe to each topic, in ascending order."""
        members_of: dict[UUID, list[int]] = {topic_id: [] for topic_id in self.partitions}
        for each in self.subscribers:
            for topic_id in each.topic_ids:
                members_of[topic_id].extend(each.members)
        if len(self.subscribers) > 1:
            for members in members_of.values():
                members.sort()
        return members_of


def assign_range(given: AssignorInput) -> list[dict[UUID, frozenset[int]]]:
    """The partitions of each member."""
    place = {member: place for place, member in enumerate(_order(given))}
    assigned: list[dict[UUID, frozenset[int]]] = [{} for _ in given.previous]
    for topic_id, members in given.topic_subscribers().items():
        if not members:
            continue
        members.sort(key=place.__getitem__)
        quota, extra = divmod(given.partitions[topic_id], len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + quota + (number < extra)
            if end == start:
                break  # more members than partitions
            assigned[member][topic_id] = frozenset(range(start, end))
            start = end
    return assigned


def _order(given: AssignorInput) -> list[int]:
    """Members by the start of their previous ranges, as a share of the topic. Members without ranges come last."""
    starts = []
    for previous in given.previous:
        start = 1.0
        for topic_id, partitions in previous.items():
            count = given.partitions.get(topic_id)
            if count:
                start = min(start, min(partitions) / count)
        starts.append(start)
    return sorted(range(len(starts)), key=starts.__getitem__)


_ROUNDS_MAX = 10

_Holdings = list[dict[UUID, set[int]]]


def assign_uniform(given: AssignorInput) -> list[dict[UUID, frozenset[int]]]:
    """The partitions of each member."""
    if len(given.subscribers) == 1:
        return _assign_homogeneous(given, given.subscribers[0].topic_ids)
    return _assign_heterogeneous(given)


# All subscribe to the same topics -----------------------------------------------------------------------------------------


def _assign_homogeneous(given: AssignorInput, topic_ids: tuple[UUID, ...]) -> list[dict[UUID, frozenset[int]]]:
    left = {topic_id: set(range(given.partitions[topic_id])) for topic_id in topic_ids}
    quota, extra = divmod(sum(map(len, left.values())), len(given.previous))
    holdings: list[dict[UUID, frozenset[int]]] = []
    needs: list[int] = []
    for previous in given.previous:
        kept = _valid(previous.items(), left)
        count = sum(map(len, kept.values()))
        allowed = quota
        if count > quota and extra:
            allowed += 1
            extra -= 1
        if count > allowed:
            kept = _reduce(kept, allowed)
        for topic_id, partitions in kept.items():
            left[topic_id] -= partitions
        holdings.append(kept)
        needs.append(allowed - min(count, allowed))
    for member in range(len(needs)):  # the rest of the larger quotas, for members with at most the quota
        if not extra:
            break
        if sum(map(len, holdings[member].values())) + needs[member] == quota:
            needs[member] += 1
            extra -= 1
    given_out: dict[int, dict[UUID, set[int]]] = {}
    takers = _takers(needs)
    for topic_id, unassigned in left.items():
        for partition in sorted(unassigned):
            given_out.setdefault(next(takers), {}).setdefault(topic_id, set()).add(partition)
    for member, new in given_out.items():
        kept = holdings[member]
        for topic_id, added in new.items():
            kept[topic_id] = kept.get(topic_id, frozenset()) | added
    return holdings


def _valid(previous: Iterable[tuple[UUID, frozenset[int]]], left: dict[UUID, set[int]]) -> dict[UUID, frozenset[int]]:
    """The member's previous partitions that are still free."""
    kept = {}
    for topic_id, partitions in previous:
        free = left.get(topic_id)
        if free is not None:
            still = partitions if partitions <= free else partitions & free
            if still:
                kept[topic_id] = still
    return kept


def _reduce(kept: dict[UUID, frozenset[int]], allowed: int) -> dict[UUID, frozenset[int]]:
    """Keep only ``allowed`` partitions, of all topics in equal measure."""
    order = sorted(
        (rank, number, partition)
        for number, partitions in enumerate(kept.values())
        for rank, partition in enumerate(sorted(partitions))
    )
    topic_ids = list(kept)
    reduced: dict[UUID, set[int]] = {}
    for _, number, partition in order[:allowed]:
        reduced.setdefault(topic_ids[number], set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in reduced.items()}


def _takers(needs: list[int]) -> Iterator[int]:
    """The members that need partitions, in turns, each as often as it needs."""
    left = needs.copy()
    waiting = [member for member, need in enumerate(left) if need]
    while waiting:
        for member in waiting:
            yield member
            left[member] -= 1
        waiting = [member for member in waiting if left[member]]


# Different subscriptions --------------------------------------------------------------------------------------------------


def _assign_heterogeneous(given: AssignorInput) -> list[dict[UUID, frozenset[int]]]:
    subscribers = given.topic_subscribers()
    left = {topic_id: set(range(count)) for topic_id, count in given.partitions.items()}
    holdings: _Holdings = [{} for _ in given.previous]
    for each in given.subscribers:
        topic_ids = set(each.topic_ids)
        for member in each.members:
            mine = ((topic_id, had) for topic_id, had in given.previous[member].items() if topic_id in topic_ids)
            for topic_id, partitions in _valid(mine, left).items():
                holdings[member][topic_id] = set(partitions)
                left[topic_id] -= partitions
    loads = [sum(map(len, held.values())) for held in holdings]
    # Topics with few subscribers first: the others can be spread around them.
    topics = sorted(subscribers, key=lambda topic_id: len(subscribers[topic_id]))
    for _ in range(_ROUNDS_MAX):
        moved = False
        for topic_id in topics:
            if subscribers[topic_id]:
                moved |= _level(topic_id, subscribers[topic_id], left[topic_id], holdings, loads)
        if not moved:
            break
    return [
        {topic_id: frozenset(partitions) for topic_id, partitions in held.items() if partitions} for held in holdings
    ]


def _level(topic_id: UUID, members: list[int], left: set[int], holdings: _Holdings, loads: list[int]) -> bool:
    """Spread a topic's partitions over its subscribers, given their loads from other topics. False if nothing moves."""
    nothing: set[int] = set()
    counts = [len(holdings[member].get(topic_id, nothing)) for member in members]
    bases = [loads[member] - count for member, count in zip(members, counts, strict=True)]
    wanted = _fill(bases, counts, sum(counts) + len(left))
    if wanted == counts:
        return False
    for member, count, want in zip(members, counts, wanted, strict=True):
        if want < count:
            held = holdings[member][topic_id]
            surplus = sorted(held)[want:]
            held.difference_update(surplus)
            left.update(surplus)
            loads[member] += want - count
    pool = iter(sorted(left))
    for member, count, want in zip(members, counts, wanted, strict=True):
        if want > count:
            held = holdings[member].setdefault(topic_id, set())
            held.update(next(pool) for _ in range(want - count))
            loads[member] += want - count
    left.clear()
    return True


def _fill(bases: list[int], counts: list[int], total: int) -> list[int]:
    """The shares of ``total`` that make the sums with ``bases`` as level as possible. Among equally good results, the nearest to
    ``counts``."""
    ascending = sorted(bases)
    below = 0  # amount filled in when the level has reached ascending[number - 1]
    number = 0
    level = ascending[0]
    for number, base in enumerate(ascending):
        needed = (base - level) * number
        if below + needed > total:
            break
        below += needed
        level = base
    else:
        number = len(ascending)
    rise, rest = divmod(total - below, number)
    level += rise
    wanted = [max(0, level - base) for base in bases]
    eligible = [each for each, base in enumerate(bases) if base <= level]
    eligible.sort(key=lambda each: counts[each] <= wanted[each])  # a member with a larger count keeps it
    for each in eligible[:rest]:
        wanted[each] += 1
    return wanted


Assignor = Callable[[AssignorInput], list[dict[UUID, frozenset[int]]]]

ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
