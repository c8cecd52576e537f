"""Offsets that a group's node keeps for a transaction of another node: after its decision, a crash, and an answer that is
too late."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.transactions.transaction import Claim
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.nodes_harness import COUNT, OneNode, TwoNodes, name_at
from tests.kafka.transactions.transaction_harness import Answer

NOBODY = Committer("", None, -1)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoNodes]:
    nodes = TwoNodes(tmp_path)
    yield nodes
    nodes.close()


def begin(two: TwoNodes, place: int, name: str) -> Claim:
    asked = Answer()
    two.nodes[place].transactions.init(name, 60_000, None, asked)
    two.settle()
    return asked.claim


def commit(node: OneNode, name: str, claim: Claim, group: str, offset: int, *, adds: bool = True) -> Answer:
    answer = Answer()
    assert node.transactions.pending_offsets is not None
    offsets = {("t", 0): CommittedOffset(offset, -1, "", 1000)}
    node.transactions.pending_offsets.commit(name, claim, group, NOBODY, offsets, answer, adds=adds)
    return answer


def end(two: TwoNodes, place: int, name: str, claim: Claim, commits: bool) -> Claim:
    answer = Answer()
    two.nodes[place].transactions.version_2.end(name, claim, commits, answer)
    two.settle()
    return answer.claim


def stored(node: OneNode, group: str) -> tuple[int | None, bool]:
    """The committed offset, and whether a transaction may change it."""
    error, [(_, [(_, found)])] = node.groups.offsets.fetch(group, [("t", [0])])
    assert ErrorCode.none == error
    unstable = node.groups.offsets.unstable(group, [("t", [0])])
    return None if found is None else found.offset, bool(unstable)


def pending(two: TwoNodes) -> list[tuple[str, int]]:
    return [(row.group, row.offset) for row in two.nodes[0].catalogue.load_pending_offsets()]


@pytest.mark.parametrize("place", range(COUNT))
def test_offsets_count_when_the_decision_has_come(two: TwoNodes, place: int) -> None:
    name, group, node = name_at(place, "x"), name_at(1, "g"), two.nodes[1]
    claim = begin(two, place, name)
    for offset, commits, expected in ((5, True, 5), (6, False, 5), (7, True, 7)):
        before = stored(node, group)[0]
        answer = commit(node, name, claim, group, offset)
        two.settle()
        assert ErrorCode.none == answer.error
        assert (before, True) == stored(node, group)
        assert [(group, offset)] == pending(two)
        claim = end(two, place, name, claim, commits)
        assert (expected, False) == stored(node, group)
        assert [] == pending(two)
    free_bytes = node.groups.memory.free_bytes
    answer = commit(node, name, claim, group, 8)
    two.settle()
    assert free_bytes > node.groups.memory.free_bytes
    end(two, place, name, claim, False)
    assert free_bytes == node.groups.memory.free_bytes


def test_pending_offsets_are_there_after_a_crash_of_the_groups_node(two: TwoNodes) -> None:
    name, group = name_at(0, "x"), name_at(1, "g")
    claim = begin(two, 0, name)
    answer = commit(two.nodes[1], name, claim, group, 5)
    two.settle()
    assert ErrorCode.none == answer.error
    two.nodes[1].crash()
    assert (None, True) == stored(two.nodes[1], group)
    end(two, 0, name, claim, True)
    assert (5, False) == stored(two.nodes[1], group)
    two.nodes[1].crash()
    assert (5, False) == stored(two.nodes[1], group)


@pytest.mark.parametrize("place", range(COUNT))
def test_the_group_has_to_take_part_before_version_2(two: TwoNodes, place: int) -> None:
    name, group, node = name_at(place, "x"), name_at(1, "g"), two.nodes[1]
    claim = begin(two, place, name)
    refused = commit(node, name, claim, group, 5, adds=False)
    two.settle()
    assert ErrorCode.invalid_txn_state == refused.error
    added = Answer()
    two.nodes[place].transactions.add_group(name, claim, group, added)
    two.settle()
    accepted = commit(node, name, claim, group, 5, adds=False)
    two.settle()
    assert [ErrorCode.none] * 2 == [added.error, accepted.error]


def test_an_answer_that_is_older_than_the_decision_adds_nothing(two: TwoNodes) -> None:
    name, group, node = name_at(0, "x"), name_at(1, "g"), two.nodes[1]
    claim = begin(two, 0, name)
    answer = commit(node, name, claim, group, 5)
    node.road.send()
    assert node.road.awaited is not None
    node.road.handle(node.road.awaited)
    while two.nodes[0].turn():
        pass
    two.nodes[0].transactions.time_out(name, Answer())
    while two.nodes[0].turn():
        pass
    back = two.nodes[0].road
    back.send()
    assert back.awaited is not None
    back.handle(back.awaited)
    while node.turn():
        pass
    node.road.answer()
    two.settle()
    assert ErrorCode.coordinator_not_available == answer.error
    assert (None, False) == stored(node, group)
    assert [] == pending(two)


def test_without_an_answer_the_client_tries_again(two: TwoNodes) -> None:
    name, group, node = name_at(0, "x"), name_at(1, "g"), two.nodes[1]
    claim = begin(two, 0, name)
    answer = commit(node, name, claim, group, 5)
    node.road.send()
    node.road.lose()
    assert ErrorCode.coordinator_not_available == answer.error
    again = commit(node, name, claim, group, 5)
    two.settle()
    assert ErrorCode.none == again.error


def test_a_deleted_topic_is_not_committed(two: TwoNodes) -> None:
    name, group, node = name_at(0, "x"), name_at(1, "g"), two.nodes[1]
    claim = begin(two, 0, name)
    commit(node, name, claim, group, 5)
    two.settle()
    two.nodes[0].logs.delete_topic("t")
    node.logs.catch_up()
    two.settle()
    end(two, 0, name, claim, True)
    assert [] == pending(two)
    assert [] == list(two.nodes[0].catalogue.load_offsets())
