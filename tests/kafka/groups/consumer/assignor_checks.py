"""Groups for assignors, and properties of every assignment, checked independently of the algorithm."""

from collections import Counter
from uuid import UUID

from hypothesis import strategies as st

from broker.kafka.groups.consumer.assignors import AssignorInput, Subscribers
from broker.kafka.groups.consumer.values import Assignment

TOPICS = [UUID(int=number + 1) for number in range(6)]
Assigned = list[dict[UUID, frozenset[int]]]


def given(
    partitions: dict[UUID, int], topics: list[frozenset[UUID]], previous: list[Assignment] | None = None
) -> AssignorInput:
    """``topics``: each member's subscription."""
    by_topics: dict[tuple[UUID, ...], list[int]] = {}
    for member, topic_ids in enumerate(topics):
        by_topics.setdefault(tuple(sorted(topic_ids & partitions.keys())), []).append(member)
    used = {topic_id: count for topic_id, count in partitions.items() if any(topic_id in each for each in topics)}
    return AssignorInput(
        used,
        tuple(Subscribers(topic_ids, tuple(members)) for topic_ids, members in by_topics.items()),
        previous or [{} for _ in topics],
    )


@st.composite
def groups(draw: st.DrawFn, *, is_homogeneous: bool | None = None) -> tuple[dict[UUID, int], list[frozenset[UUID]]]:
    """Partitions of topics, and each member's subscription."""
    partitions = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1))
    some = st.frozensets(st.sampled_from(TOPICS))
    if is_homogeneous or (is_homogeneous is None and draw(st.booleans())):
        return partitions, [draw(some)] * draw(st.integers(1, 8))
    return partitions, draw(st.lists(some, min_size=1, max_size=8))


def check_complete(group: AssignorInput, topics: list[frozenset[UUID]], assigned: Assigned) -> None:
    """Every subscribed partition has one owner, who subscribes to it."""
    assert len(assigned) == len(topics)
    owners = Counter((topic_id, each) for held in assigned for topic_id, some in held.items() for each in some)
    assert owners == Counter(
        {(topic_id, each): 1 for topic_id, count in group.partitions.items() for each in range(count)}
    )
    for held, subscribed in zip(assigned, topics, strict=True):
        assert held.keys() <= subscribed
        assert all(held.values()), "an empty set of partitions"


def count(held: Assignment) -> int:
    return sum(map(len, held.values()))


def check_balanced(group: AssignorInput, topics: list[frozenset[UUID]], assigned: Assigned) -> None:
    """No partition could move to a subscriber that has two fewer than its owner, or more."""
    loads = list(map(count, assigned))
    for owner, held in enumerate(assigned):
        for topic_id in held:
            for other, subscribed in enumerate(topics):
                assert topic_id not in subscribed or loads[owner] - loads[other] < 2, (loads, topic_id, owner, other)


def moved(before: Assigned, after: Assigned) -> int:
    """Partitions that an earlier owner has lost to another member."""
    return sum(
        len(some - held.get(topic_id, frozenset()))
        for was, held in zip(before, after, strict=True)
        for topic_id, some in was.items()
    )
