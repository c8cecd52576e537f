"""Share groups in the coordinator, on a real catalogue: threads of work, restarts, memory, other kinds of groups."""

import random
from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from broker.errors import StorageError
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.share.share_coordinator import Done
from broker.kafka.groups.share.values import HeartbeatRequest, HeartbeatResult, NewPartitions
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.group_harness import GroupHarness
from tests.kafka.groups.share.group_driver import Reply

NONE = ErrorCode.none


class FakeState:
    """The groups' records."""

    def __init__(self) -> None:
        self.begun: dict[str, set[tuple[UUID, int]]] = {}
        self.fenced: list[tuple[str, str]] = []
        self.forgotten: list[tuple[str, object]] = []
        self.failure: StorageError | None = None

    def initialise(self, group_id: str, partitions: Sequence[NewPartitions], done: Done) -> None:
        if self.failure is None:
            begun = self.begun.setdefault(group_id, set())
            begun.update((each.topic_id, number) for each in partitions for number in range(each.first, each.end))
        done(self.failure)

    def member_fenced(self, group_id: str, member_id: str) -> None:
        self.fenced.append((group_id, member_id))

    def forget(self, group_id: str, topic_ids: object, done: Done) -> None:
        self.forgotten.append((group_id, topic_ids))
        done(None)


@pytest.fixture
def state(harness: GroupHarness) -> FakeState:
    harness.topic("orders", 2)
    state = FakeState()
    harness.groups.share.state = state
    return state


def send(harness: GroupHarness, group: str, member_id: str, epoch: int, *topics: str) -> Reply:
    reply = Reply(member_id)
    request = HeartbeatRequest(member_id, epoch, "c", "/::1", None, topics or None)
    result = harness.groups.share.heartbeat(group, request, reply)
    if result is not None:
        reply(result)
    return reply


def join(harness: GroupHarness, group: str, member_id: str, *topics: str) -> HeartbeatResult:
    reply = send(harness, group, member_id, 0, *(topics or ("orders",)))
    harness.write()
    assert reply.result.error == NONE
    return reply.result


def beat(harness: GroupHarness, group: str, member_id: str, epoch: int) -> HeartbeatResult:
    reply = send(harness, group, member_id, epoch)
    harness.write()
    return reply.result


def described(harness: GroupHarness, group: str) -> dict[str, object]:
    error, description = harness.groups.share.describe(group)
    assert error == NONE
    assert description is not None
    return {
        "state": description.state,
        "epochs": (description.epoch, description.assignment_epoch),
        "members": {member.member_id: member for member in description.members},
    }


def test_join_is_answered_when_it_is_in_catalogue(harness: GroupHarness, state: FakeState) -> None:
    reply = send(harness, "g", "a", 0, "orders")
    assert reply.is_waiting
    harness.write()
    assert reply.result.member_epoch == 1
    assert state.begun["g"] == {(UUID(int=1), 0), (UUID(int=1), 1)}
    harness.restart(clean=False)
    assert beat(harness, "g", "a", 1).error == NONE
    assert described(harness, "g")["state"] == "Stable"


def test_unanswered_changes_may_be_lost_with_the_process(harness: GroupHarness, state: FakeState) -> None:
    send(harness, "g", "a", 0, "orders")
    harness.restart(clean=False)
    assert harness.groups.share.describe("g")[0] == ErrorCode.group_id_not_found


def test_group_that_nobody_joined_leaves_nothing(harness: GroupHarness, state: FakeState) -> None:
    names = [f"t{number}" for number in range(50_000)]
    assert send(harness, "g", "a", 0, *names).result.error == ErrorCode.group_max_size_reached
    assert "g" not in harness.groups.names()


def test_only_timed_out_members_are_reported_to_holder(harness: GroupHarness, state: FakeState) -> None:
    join(harness, "g", "a")
    join(harness, "g", "b")
    send(harness, "g", "a", -1)
    harness.write()
    assert not state.fenced
    harness.wait(46)
    assert state.fenced == [("g", "b")]
    assert described(harness, "g")["state"] == "Empty"


def test_session_timeout_is_the_groups_own(harness: GroupHarness, state: FakeState) -> None:
    harness.groups.configs.alter("g", lambda own, usual: {"share.session.timeout.ms": "55000"})
    join(harness, "g", "a")
    harness.wait(54)
    assert not state.fenced
    harness.wait(2)
    assert state.fenced == [("g", "a")]


def test_members_after_restart_have_groups_session_length(harness: GroupHarness, state: FakeState) -> None:
    harness.groups.configs.alter("g", lambda own, usual: {"share.session.timeout.ms": "50000"})
    join(harness, "g", "a")
    harness.restart(clean=False)
    harness.groups.share.state = state
    harness.wait(49)
    assert not state.fenced
    harness.wait(2)
    assert state.fenced == [("g", "a")]


def test_topic_changes_reach_the_subscribing_groups(harness: GroupHarness, state: FakeState) -> None:
    join(harness, "g", "a", "orders", "later")
    join(harness, "other", "a", "orders")
    harness.topic("later", 1)
    result = beat(harness, "g", "a", 1)
    assert result.member_epoch == 2
    assert sorted(map(len, (result.assignment or {}).values())) == [1, 2]
    harness.delete_topic("later")
    assert list((beat(harness, "g", "a", 2).assignment or {}).values()) == [(0, 1)]
    assert beat(harness, "other", "a", 1).member_epoch == 1


def test_topics_changed_during_downtime_are_seen(harness: GroupHarness, state: FakeState) -> None:
    join(harness, "g", "a")
    harness.groups.close()
    harness.topic("orders", 3)
    harness.restart(clean=False)
    harness.write()
    result = beat(harness, "g", "a", 1)
    assert list((result.assignment or {}).values()) == [(0, 1, 2)]


def test_broken_assignor_costs_nobody_an_answer(
    harness: GroupHarness, state: FakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("broker.kafka.groups.share.values.assign", broken)
    reply = send(harness, "g", "a", 0, "orders")
    harness.write()
    assert (reply.result.error, reply.result.assignment) == (NONE, {})
    monkeypatch.undo()
    join(harness, "g", "b")
    harness.wait(1)
    assert list((beat(harness, "g", "a", 1).assignment or {}).values()) == [(0,)]


def test_full_disk_is_survived(harness: GroupHarness, state: FakeState) -> None:
    harness.database.full = True
    reply = send(harness, "g", "a", 0, "orders")
    harness.write()
    assert reply.result.error == ErrorCode.not_coordinator
    harness.database.full = False
    harness.wait(6)
    assert beat(harness, "g", "a", 1).error == NONE
    harness.restart(clean=False)
    assert beat(harness, "g", "a", 1).error == NONE


# Other kinds of groups ------------------------------------------------------------------------------------------------


def test_classic_group_stays_classic_without_members(harness: GroupHarness, state: FakeState) -> None:
    harness.commit("g", {("orders", 0): 1})
    harness.write()
    assert send(harness, "g", "a", 0, "orders").result.error == ErrorCode.group_id_not_found
    assert harness.committed("g") == {("orders", 0): 1}


def test_share_group_stays_until_it_is_deleted(harness: GroupHarness, state: FakeState) -> None:
    join(harness, "g", "a")
    send(harness, "g", "a", -1)
    harness.write()
    assert harness.join("g").error == ErrorCode.inconsistent_group_protocol
    answer = harness.commit("g", {("orders", 0): 1})
    harness.write()
    assert answer.error == ErrorCode.group_id_not_found
    harness.groups.expiration.sweep()
    harness.wait(10 * 86_400)
    assert described(harness, "g")["state"] == "Empty", "share groups do not expire"
    errors: list[dict[str, ErrorCode]] = []
    harness.groups.delete(["g"], errors.append)
    harness.write()
    assert errors == [{"g": NONE}]
    assert state.forgotten == [("g", None)]
    assert harness.join("g").error == ErrorCode.member_id_required
    harness.restart()
    assert harness.groups.share.describe("g")[0] == ErrorCode.group_id_not_found


def test_share_groups_are_listed(harness: GroupHarness, state: FakeState) -> None:
    join(harness, "g", "a")
    _, groups = harness.groups.list(types=["SHARE"])
    assert [(group.group_id, group.type, group.state, group.protocol_type) for group in groups] == [
        ("g", GroupType.SHARE, "Stable", "share")
    ]


# Many -----------------------------------------------------------------------------------------------------------------


def rows_written(harness: GroupHarness, do: Callable[[], object]) -> int:
    before = harness.database.transactions
    do()
    return harness.database.transactions - before


def test_simultaneous_joins_are_one_assignment_and_few_transactions(
    new_harness: Callable[..., GroupHarness],
) -> None:
    harness = new_harness(group_share_max_size=1000)
    harness.topic("orders", 100)
    replies = [send(harness, "g", f"m{number}", 0, "orders") for number in range(500)]
    assert rows_written(harness, harness.write) < 10
    assert all(reply.result.error == NONE for reply in replies)
    partitions = [number for reply in replies for part in (reply.result.assignment or {}).values() for number in part]
    assert sorted(partitions) == sorted([*range(100)] * 5)


def test_hundreds_of_groups_are_restored(harness: GroupHarness, state: FakeState) -> None:
    for number in range(400):
        send(harness, f"g{number}", "a", 0, "orders")
    harness.write()
    harness.restart(clean=False)
    assert harness.groups.count() == 400
    harness.write()
    for number in random.Random(1).sample(range(400), 20):
        assert beat(harness, f"g{number}", "a", 1).error == NONE
    harness.wait(100)
    assert all(described(harness, name)["state"] == "Empty" for name in harness.groups.names())


def test_repeated_subscription_changes_take_no_memory(harness: GroupHarness, state: FakeState) -> None:
    harness.topic("payments", 1)
    join(harness, "g", "a", "orders", "payments")
    used = harness.groups.memory.used_bytes
    epoch = 1
    for number in range(200):
        reply = send(harness, "g", "a", epoch, "payments" if number % 2 else "orders")
        harness.write()
        harness.wait(1)
        epoch = reply.result.member_epoch
    reply = send(harness, "g", "a", epoch, "orders", "payments")
    harness.write()
    harness.wait(1)
    assert reply.result.error == NONE
    assert harness.groups.memory.used_bytes == used


@pytest.mark.parametrize("seed", range(5))
def test_kill_at_any_moment_fences_no_answered_member(new_harness: Callable[..., GroupHarness], seed: int) -> None:
    """Clients in random order, one request at a time, and a process that dies after any step of its threads."""
    chance = random.Random(seed)
    harness = new_harness()
    harness.topic("orders", 3)
    harness.topic("payments", 2)
    known: dict[str, int] = {}
    waiting: list[Reply] = []
    for _ in range(300):
        choice, member_id = chance.random(), f"m{chance.randrange(6)}"
        is_busy = any(reply.member_id == member_id for reply in waiting)
        if choice < 0.4 and not is_busy:
            names = chance.sample(["orders", "payments"], chance.randrange(1, 3))
            waiting.append(send(harness, "g", member_id, 0, *names))
        elif choice < 0.7 and member_id in known and not is_busy:
            waiting.append(send(harness, "g", member_id, known[member_id]))
        elif 0.7 <= choice < 0.75 and not is_busy:
            known.pop(member_id, None)
            send(harness, "g", member_id, -1)
        elif 0.75 <= choice < 0.8:
            harness.restart(clean=False)
            waiting.clear()
        for _ in range(chance.randrange(4)):
            chance.choice([harness.groups.writer, harness.groups.worker]).step(0)
        harness.clock.now += 0.01
        harness.timer.step(0)
        for reply in [reply for reply in waiting if not reply.is_waiting]:
            waiting.remove(reply)
            result = reply.result
            assert result.error != ErrorCode.fenced_member_epoch
            if result.error == NONE:
                known[reply.member_id] = result.member_epoch
            elif result.error == ErrorCode.unknown_member_id:
                known.pop(reply.member_id, None)
    harness.wait(5)
    for member_id, epoch in known.items():
        assert beat(harness, "g", member_id, epoch).error == NONE, "and everybody who was answered is still a member"
