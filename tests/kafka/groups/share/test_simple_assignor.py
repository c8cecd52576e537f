"""The assignor: properties of every assignment, stability, and growth of its cost."""

import itertools
import random
import uuid
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.kafka.groups.share import simple_assignor
from broker.kafka.groups.share.simple_assignor import NOTHING, Assignment, assign
from tests.loops import loop_over

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]
Subscriptions = dict[str, frozenset[uuid.UUID]]

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), max_size=4)
member_ids = st.sampled_from([f"m{number}" for number in range(9)])
subscriptions = st.dictionaries(member_ids, st.frozensets(st.sampled_from(TOPICS)), min_size=1)
uniform = st.builds(
    dict.fromkeys,
    st.sets(member_ids, min_size=1).map(sorted),
    st.frozensets(st.sampled_from(TOPICS), min_size=1),
)
any_subscriptions = st.one_of(subscriptions, uniform)


def flat(assignment: Assignment) -> set[tuple[uuid.UUID, int]]:
    return {(topic, partition) for topic, partitions in assignment.items() for partition in partitions}


def wanted(topics: frozenset[uuid.UUID], counts: Mapping[uuid.UUID, int]) -> set[tuple[uuid.UUID, int]]:
    return {(topic, partition) for topic in topics for partition in range(counts.get(topic, 0))}


def check(subscribed: Subscriptions, counts: Mapping[uuid.UUID, int], result: Mapping[str, Assignment]) -> None:
    assert result.keys() == subscribed.keys()
    members_of: dict[frozenset[uuid.UUID], list[str]] = {}
    for member, topics in subscribed.items():
        mine = flat(result[member])
        assert mine <= wanted(topics, counts), "only what it subscribes to"
        assert bool(mine) == bool(wanted(topics, counts)), "something, if there is something"
        assert sum(map(len, result[member].values())) == len(mine), "nothing twice"
        for partitions in result[member].values():
            assert list(partitions) == sorted(partitions)
        members_of.setdefault(topics, []).append(member)
    everything = set().union(*(wanted(topics, counts) for topics in subscribed.values()))
    assert set().union(*map(flat, result.values())) == everything, "every partition has a member"
    for members in members_of.values():
        sizes = [len(flat(result[member])) for member in members]
        assert max(sizes) - min(sizes) <= 1
        holders = Counter(partition for member in members for partition in flat(result[member]))
        if holders and max(sizes) == 1 and len(members) >= len(holders):
            assert max(holders.values()) - min(holders.values()) <= 1
        if len(members) <= len(holders):
            assert set(holders.values()) <= {1}, "nobody shares where each can have partitions alone"


@given(any_subscriptions, partition_counts)
def test_everything_is_read_and_balanced(subscribed: Subscriptions, counts: dict[uuid.UUID, int]) -> None:
    check(subscribed, counts, assign(subscribed, counts, {}))


@given(st.lists(st.tuples(any_subscriptions, partition_counts), min_size=2, max_size=5))
def test_properties_hold_after_changes_of_members_and_topics(
    steps: list[tuple[Subscriptions, dict[uuid.UUID, int]]],
) -> None:
    current: Mapping[str, Assignment] = {}
    for subscribed, counts in steps:
        current = assign(subscribed, counts, current)
        check(subscribed, counts, current)


@given(uniform, partition_counts)
def test_where_nothing_has_changed_nothing_moves(subscribed: Subscriptions, counts: dict[uuid.UUID, int]) -> None:
    current = assign(subscribed, counts, {})
    assert assign(subscribed, counts, current) == current


@given(subscriptions, partition_counts)
@settings(max_examples=300)
def test_assignment_with_several_subscriptions_comes_to_rest(
    subscribed: Subscriptions, counts: dict[uuid.UUID, int]
) -> None:
    current = assign(subscribed, counts, {})
    for _ in range(5):
        before, current = current, assign(subscribed, counts, current)
        if before == current:
            return
    pytest.fail("it moves for ever")


@loop_over(("members", "partitions"), [*itertools.product([1, 2, 3, 7, 10], [1, 2, 5, 10, 23])])
def test_joins_and_leaves_move_no_more_than_needed(members: int, partitions: int) -> None:
    counts, topics = {TOPICS[0]: partitions}, frozenset(TOPICS[:1])
    before = assign({f"m{number}": topics for number in range(members)}, counts, {})
    more = assign({f"m{number}": topics for number in range(members + 1)}, counts, before)
    # The new member's share, and nothing in exchange for a shared partition.
    lost = sum(len(flat(before[member]) - flat(more[member])) for member in before)
    gained = sum(len(flat(more[member]) - flat(before[member])) for member in before)
    assert lost <= -(-partitions // (members + 1))
    assert gained <= (1 if members >= partitions else 0)
    fewer = assign(dict.fromkeys(list(before)[1:], topics), counts, before)
    assert all(flat(before[member]) <= flat(fewer[member]) for member in fewer) or members > partitions


def test_member_of_several_subscriptions_does_not_get_everything() -> None:
    """Kafka's example: one member for each of two topics, and one for both. Kafka balances each topic by itself: 3, 3, 6."""
    one, two = TOPICS[:2]
    subscribed = {"first": frozenset({one}), "second": frozenset({two}), "both": frozenset({one, two})}
    result = assign(subscribed, {one: 6, two: 6}, {})
    assert sorted(len(flat(assignment)) for assignment in result.values()) == [3, 4, 5]


def test_partitions_that_are_gone_are_taken_away() -> None:
    topics = frozenset(TOPICS[:1])
    current = {"m": {TOPICS[0]: (0, 1, 2), TOPICS[1]: (0,)}}
    assert assign({"m": topics}, {TOPICS[0]: 2, TOPICS[1]: 1}, current) == {"m": {TOPICS[0]: (0, 1)}}
    assert assign({"m": topics}, {}, current) == {"m": NOTHING}


class Counting:
    """Counts the steps of the assignor by its executed lines."""

    def __init__(self) -> None:
        self.lines = 0

    def run(self, subscribed: Subscriptions, counts: dict[uuid.UUID, int], current: Mapping[str, Assignment]) -> int:
        import sys

        def trace(frame: object, event: str, _: object) -> object:
            if frame.f_code.co_filename != simple_assignor.__file__:  # type: ignore[attr-defined]
                return None
            self.lines += event == "line"
            return trace

        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            assign(subscribed, counts, current)
        finally:
            sys.settrace(None)
        return self.lines


@pytest.mark.parametrize(("members", "partitions"), [(10, 1), (1, 10), (5, 5)])
def test_cost_grows_with_members_and_partitions_not_product(members: int, partitions: int) -> None:
    def cost(factor: int) -> int:
        subscribed = {f"m{number}": frozenset(TOPICS[:1]) for number in range(members * factor)}
        counts = {TOPICS[0]: partitions * factor}
        return Counting().run(subscribed, counts, assign(subscribed, counts, {}))

    assert cost(40) < 2 * 10 * cost(4)


def test_member_order_does_not_decide_who_keeps_partitions() -> None:
    topics, counts = frozenset(TOPICS[:2]), {TOPICS[0]: 5, TOPICS[1]: 6}
    members = [f"m{number}" for number in range(4)]
    before = assign(dict.fromkeys(members, topics), counts, {})
    shuffled = random.Random(7).sample(members, len(members))
    assert assign(dict.fromkeys(shuffled, topics), counts, before) == before
