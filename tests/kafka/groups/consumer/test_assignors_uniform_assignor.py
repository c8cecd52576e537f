"""The assignor ``uniform``: complete, level, and with as few moves as possible."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from broker.kafka.groups.consumer.assignors import assign_uniform as assign
from tests.kafka.groups.consumer.assignor_checks import (
    TOPICS,
    check_balanced,
    check_complete,
    count,
    given,
    groups,
    moved,
)

A, B, C = TOPICS[:3]


@hypothesis_given(groups())
def test_partitions_have_one_owner_and_members_equal_shares(
    group: tuple[dict[UUID, int], list[frozenset[UUID]]],
) -> None:
    partitions, topics = group
    asked = given(partitions, topics)
    assigned = assign(asked)
    check_complete(asked, topics, assigned)
    check_balanced(asked, topics, assigned)


@hypothesis_given(groups(), st.data())
def test_shares_stay_equal_after_any_changes(group: tuple[dict[UUID, int], list[frozenset[UUID]]], data: Any) -> None:
    partitions, topics = group
    assigned = assign(given(partitions, topics))
    for _ in range(3):
        partitions, topics = data.draw(groups())
        # Members keep their numbers, further members are new, and some may have gone.
        previous = (assigned + [{}] * len(topics))[: len(topics)]
        asked = given(partitions, topics, previous)
        assigned = assign(asked)
        check_complete(asked, topics, assigned)
        check_balanced(asked, topics, assigned)


@hypothesis_given(groups())
def test_nothing_moves_if_nothing_has_changed(group: tuple[dict[UUID, int], list[frozenset[UUID]]]) -> None:
    partitions, topics = group
    assigned = assign(given(partitions, topics))
    assert assign(given(partitions, topics, assigned)) == assigned


@hypothesis_given(groups(is_homogeneous=True))
def test_joining_member_costs_others_only_its_share(
    group: tuple[dict[UUID, int], list[frozenset[UUID]]],
) -> None:
    partitions, topics = group
    before = assign(given(partitions, topics))
    after = assign(given(partitions, [*topics, topics[0]], [*before, {}]))
    assert moved(before, after[:-1]) == count(after[-1])


@hypothesis_given(groups(is_homogeneous=True))
def test_member_that_leaves_costs_the_others_nothing(
    group: tuple[dict[UUID, int], list[frozenset[UUID]]],
) -> None:
    partitions, topics = group
    before = assign(given(partitions, [*topics, topics[0]]))[:-1]
    assert moved(before, assign(given(partitions, topics, before))) == 0


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_topics_are_spread_over_members(members: int) -> None:
    assigned = assign(given({A: members, B: members, C: members}, [frozenset({A, B, C})] * members))
    assert all(len(held) == 3 and count(held) == 3 for held in assigned)


def test_surplus_is_given_up_from_all_topics() -> None:
    before = assign(given({A: 4, B: 4}, [frozenset({A, B})]))
    after = assign(given({A: 4, B: 4}, [frozenset({A, B})] * 2, [*before, {}]))
    assert [{topic_id: len(some) for topic_id, some in held.items()} for held in after] == [{A: 2, B: 2}] * 2


def test_member_that_subscribes_to_nothing_gets_nothing() -> None:
    assert assign(given({A: 2}, [frozenset(), frozenset({A})])) == [{}, {A: frozenset({0, 1})}]
    assert assign(given({A: 2}, [frozenset()])) == [{}]
