"""The assignor ``range``: contiguous ranges, the same for topics that can be joined."""

from uuid import UUID

from hypothesis import given as hypothesis_given

from broker.kafka.groups.consumer.assignors import assign_range as assign
from tests.kafka.groups.consumer.assignor_checks import TOPICS, check_complete, given, groups, moved

A, B = TOPICS[:2]


@hypothesis_given(groups())
def test_topic_ranges_differ_by_at_most_one(
    group: tuple[dict[UUID, int], list[frozenset[UUID]]],
) -> None:
    partitions, topics = group
    asked = given(partitions, topics)
    assigned = assign(asked)
    check_complete(asked, topics, assigned)
    for topic_id in asked.partitions:
        sizes = [len(held.get(topic_id, ())) for held, some in zip(assigned, topics, strict=True) if topic_id in some]
        assert max(sizes) - min(sizes) <= 1
        for held in assigned:
            mine = sorted(held.get(topic_id, ()))
            assert not mine or mine == list(range(mine[0], mine[-1] + 1))


@hypothesis_given(groups())
def test_nothing_moves_if_nothing_has_changed(group: tuple[dict[UUID, int], list[frozenset[UUID]]]) -> None:
    partitions, topics = group
    if len(set(topics)) > 1:
        return  # members' ranges of different topics may call for different orders
    assigned = assign(given(partitions, topics))
    assert moved(assigned, assign(given(partitions, topics, assigned))) == 0


def test_topics_with_equally_many_partitions_are_divided_alike() -> None:
    both = frozenset({A, B})
    assigned = assign(given({A: 7, B: 7}, [both] * 3))
    assert all(held[A] == held[B] for held in assigned)
    assert [sorted(held[A]) for held in assigned] == [[0, 1, 2], [3, 4], [5, 6]]
    assigned = assign(given({A: 7, B: 7}, [both] * 4, [*assigned[::-1], {}]))
    assert all(held[A] == held[B] for held in assigned)
    assert [sorted(held[A]) for held in assigned] == [[4, 5], [2, 3], [0, 1], [6]]


def test_members_without_a_partition_come_last() -> None:
    assert assign(given({A: 2}, [frozenset({A})] * 3)) == [{A: frozenset({0})}, {A: frozenset({1})}, {}]
