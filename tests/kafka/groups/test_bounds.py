"""The memory and the work that a client can cause, in one group and in all groups together, are bounded."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups import coordinator, members, offset_coordinator, values
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.values import GROUP_BYTES, OFFSET_BYTES, subscribed_topics
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import encode_subscription
from tests.kafka.groups.classic_group_driver import ClassicGroupDriver
from tests.kafka.groups.group_harness import NOBODY, CommitAnswer, GroupHarness

MakeHarness = Callable[..., GroupHarness]

KIB, MIB = 1024, 1024 * 1024
ORDERS_0, ORDERS_1 = ("orders", 0), ("orders", 1)


class Instant(float):
    """A time that counts comparisons, as a machine-independent measure of the cost of a group's deadlines."""

    compared = 0

    def __add__(self, other: float) -> "Instant":
        return Instant(float(self) + other)

    def __lt__(self, other: object) -> bool:
        Instant.compared += 1
        return float.__lt__(self, other)  # type: ignore[operator]

    def __gt__(self, other: object) -> bool:
        Instant.compared += 1
        return float.__gt__(self, other)  # type: ignore[operator]

    def __le__(self, other: object) -> bool:
        Instant.compared += 1
        return float.__le__(self, other)  # type: ignore[operator]

    def __eq__(self, other: object) -> bool:
        Instant.compared += 1
        return float.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = float.__hash__


# Pending members ------------------------------------------------------------------------------------------------------


def test_number_of_pending_members_is_bounded() -> None:
    group = ClassicGroupDriver()
    first = group.join()
    for _ in range(20_000):
        last = group.join()
        assert len(group.group._pending) <= members.PENDING_MAX
    assert len(group.group._schedule.members._heap) <= 2 * members.PENDING_MAX + 64
    assert group.join(first.member_id).error == ErrorCode.unknown_member_id, "it begins anew"
    assert group.join(last.member_id).error == ErrorCode.none
    group.wait(10)
    assert (len(group.group._pending), group.group._pending.size_bytes) == (0, 0)


def test_bytes_of_pending_members_are_bounded() -> None:
    group = ClassicGroupDriver(GroupLimits(max_bytes=64 * KIB))
    for _ in range(200):
        group.join(instance=None, client_host="h", protocols=[("p", b"")])
    assert 0 < group.group._pending.size_bytes <= 64 * KIB


def test_many_pending_members_expire_in_few_steps_each() -> None:
    group, count = ClassicGroupDriver(), 1_000
    group.now = Instant(0.0)
    for _ in range(count):
        group.join()
    Instant.compared = 0
    expire(group, 400.0)
    assert len(group.group._pending) == 0
    assert 0 < Instant.compared < 60 * count


def test_many_members_expire_in_a_few_steps_each() -> None:
    group, count = ClassicGroupDriver(), 1_000
    many = generation_of(group, count)
    Instant.compared = 0
    for member_id in many:
        assert group.heartbeat(member_id) == ErrorCode.none
    expire(group, 1_000.0)
    assert group.group.state is ClassicGroupState.EMPTY
    assert len(group.group.members) == 0
    assert 0 < Instant.compared < 60 * count


def generation_of(group: ClassicGroupDriver, count: int) -> list[str]:
    """A generation of ``count`` members. Another member has joined first and not come back for the rebalance."""
    group.now = Instant(0.0)
    for _ in range(count + 1):
        group.join(version=3)
    expire(group, 61.0)
    assert len(group.group.members) == count
    return [member.member_id for member in group.group.members]


def expire(group: ClassicGroupDriver, now: float) -> None:
    group.now = Instant(now)
    group.group.expire(group.now)
    group._settle()


# One group --------------------------------------------------------------------------------------------------------------


def test_member_with_oversized_metadata_is_refused() -> None:
    group = ClassicGroupDriver(GroupLimits(max_bytes=MIB))
    for version in (3, 9):
        assert group.join(version=version, protocols=[("range", bytes(MIB))]).error == ErrorCode.group_max_size_reached
    many = [(f"protocol-{n}", b"") for n in range(10_000)]
    assert group.join(version=3, protocols=many).error == ErrorCode.group_max_size_reached
    assert (group.group.size_bytes, len(group.group._pending)) == (0, 0)


def test_group_at_byte_bound_admits_nobody_and_continues() -> None:
    group = ClassicGroupDriver(GroupLimits(max_bytes=MIB))
    large = [("range", bytes(400 * KIB))]
    first, second = group.stable(2, protocols=large)
    assert group.join(protocols=large).error == ErrorCode.group_max_size_reached
    assert group.join(instance="static", protocols=large).error == ErrorCode.group_max_size_reached
    assert group.group.state is ClassicGroupState.STABLE, "a refused join does not disturb the members"
    assert group.heartbeat(first) == ErrorCode.none
    again = group.join(first, protocols=large)  # its present metadata is not counted twice
    assert again.is_parked
    assert group.join(second, protocols=[("range", bytes(700 * KIB))]).error == ErrorCode.group_max_size_reached
    assert group.join(second, protocols=large).error == ErrorCode.none
    assert group.leave(second) == ErrorCode.none
    group.join(first, protocols=large)
    assert group.join(protocols=large).error == ErrorCode.member_id_required, "there is memory again"


def test_oversized_assignment_is_refused_as_by_kafka() -> None:
    group = ClassicGroupDriver(GroupLimits(max_bytes=MIB))
    leader = group.join_new()
    follower = group.join_new()
    leader = group.join(leader.member_id)
    waiting = group.sync(follower.member_id)
    answer = group.sync(leader.member_id, assignments={leader.member_id: bytes(MIB)})
    assert (answer.error, waiting.error) == (ErrorCode.unknown_server_error, ErrorCode.unknown_server_error)
    assert group.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert not group.saves
    for member in (leader, follower):
        last = group.join(member.member_id)
    assert last.error == ErrorCode.none


def test_assignment_to_unknown_members_does_not_count() -> None:
    group = ClassicGroupDriver(GroupLimits(max_bytes=MIB))
    leader = group.join_new()
    sync = group.sync(leader.member_id, assignments={"stranger": bytes(2 * MIB), leader.member_id: b"mine"})
    assert (sync.error, sync.result.assignment) == (ErrorCode.none, b"mine")


def test_number_of_topic_names_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_NAMES_MAX", 10)
    same = bytes(encode_subscription(["t"] * 6))
    assert subscribed_topics([same] * 1_000) == {"t"}
    other = bytes(encode_subscription(["u"] * 6))
    assert subscribed_topics([same, other]) is None


# All groups -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(new_harness: MakeHarness) -> GroupHarness:
    return new_harness(coordinator_max_bytes=MIB)


def used(harness: GroupHarness) -> int:
    return harness.groups.memory.used_bytes


def test_memory_of_all_groups_is_bounded(small: GroupHarness) -> None:
    stable = small.stable("mine")
    errors = [small.join(f"g-{n}").error for n in range(1_000)]
    made = errors.count(ErrorCode.member_id_required)
    assert 150 < made < MIB // GROUP_BYTES
    assert set(errors[made:]) == {ErrorCode.coordinator_not_available}
    assert used(small) <= MIB
    assert small.commit("another", {ORDERS_0: 7}).error == ErrorCode.coordinator_not_available
    assert "another" not in small.listed()
    assert small.groups.heartbeat("mine", stable, None, 1) == ErrorCode.none, "existing groups go on"
    small.wait(5)
    assert small.groups.heartbeat("mine", stable, None, 1) == ErrorCode.none
    small.wait(6)
    assert small.listed() == {"mine": "Stable"}, "nobody came back, and nothing is left"
    assert small.join("g-1").error == ErrorCode.member_id_required


def test_request_that_is_refused_leaves_no_group(small: GroupHarness) -> None:
    assert small.join("g", protocols=()).error == ErrorCode.inconsistent_group_protocol
    small.groups.offsets.commit(
        "h", NOBODY, {ORDERS_0: CommittedOffset(1, -1, "x" * 5_000, 0)}, errors := CommitAnswer()
    )
    assert errors.error == ErrorCode.offset_metadata_too_large
    small.write()
    assert (small.listed(), used(small)) == ({}, 0)


def test_memory_of_all_offsets_is_bounded(small: GroupHarness) -> None:
    answers = [small.commit("g", {("orders", n): 7}) for n in range(5_000)]
    small.write()
    errors = [answer.error for answer in answers]
    kept = errors.count(ErrorCode.none)
    assert 0 < kept <= MIB // OFFSET_BYTES
    assert set(errors[kept:]) == {ErrorCode.coordinator_not_available}
    assert used(small) <= MIB
    moved = small.commit("g", {ORDERS_0: 8})
    small.write()
    assert moved.error == ErrorCode.none, "an offset that exists may be replaced"
    assert small.committed("g")[ORDERS_0] == 8


def test_everything_that_is_removed_frees_its_memory(small: GroupHarness) -> None:
    member = small.stable("g")
    small.commit("g", {ORDERS_0: 7, ORDERS_1: 8}, Committer(member, None, 1))
    small.commit("h", {ORDERS_0: 7})
    small.write()
    before = used(small)
    assert before > 2 * GROUP_BYTES + 3 * OFFSET_BYTES
    small.commit("h", {ORDERS_0: 9})
    small.write()
    assert used(small) == before
    small.restart()
    assert used(small) == before
    small.groups.leave("g", [(member, None)])
    small.write()
    small.groups.on_topic_deleted("orders")
    small.write()
    assert (small.listed(), used(small)) == ({}, 0)


# Threads ----------------------------------------------------------------------------------------------------------------


def test_timer_leaves_the_work_to_the_writer(new_harness: MakeHarness) -> None:
    harness = new_harness()
    for _ in range(10):
        harness.join("g")
    harness.clock.now += 11
    harness.timer.step(0)
    assert len(harness.groups._registry.get("g").group._pending) == 10  # type: ignore[union-attr]
    harness.write()
    assert harness.listed() == {}


def test_sweep_lets_commits_pass(new_harness: MakeHarness) -> None:
    harness = new_harness(offsets_retention_minutes=1, offsets_retention_check_interval_ms=120_000)
    for n in range(250):
        harness.commit(f"g-{n}", {ORDERS_0: 7})
    harness.write()
    harness.clock.now += 121
    harness.timer.step(0)
    harness.groups.writer.step(0)
    commit = harness.commit("new", {ORDERS_0: 1})
    assert len(harness.listed()) == 151
    harness.groups.writer.step(0)
    assert (commit.error, harness.listed()) == (
        ErrorCode.none,
        {f"g-{n}": "Empty" for n in range(200, 250)} | {"new": "Empty"},
    )
    harness.write()
    assert harness.listed() == {"new": "Empty"}


def test_request_with_many_members_is_processed_in_parts(
    new_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "LOCKED_MAX", 3)
    harness = new_harness()
    ids = [harness.join("g").member_id for _ in range(8)]
    error, errors = harness.groups.leave("g", [(one, None) for one in [*ids, "stranger"]])
    assert (error, errors) == (ErrorCode.none, [ErrorCode.none] * 8 + [ErrorCode.unknown_member_id])


@given(
    st.lists(
        st.tuples(st.sampled_from(["orders", "payments", "t"]), st.lists(st.integers(0, 9), max_size=12)), max_size=5
    ),
    st.integers(1, 6),
)
def test_offsets_are_fetched_in_parts_in_request_order(wanted: list[tuple[str, list[int]]], most: int) -> None:
    parts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_coordinator, "LOCKED_MAX", most)
        parts = list(offset_coordinator._parts(wanted))
    assert all(sum(len(partitions) for _, partitions, _ in part) <= most for part in parts)
    told: list[tuple[str, list[int]]] = []
    for topic, partitions, goes_on in (piece for part in parts for piece in part):
        if goes_on:
            assert told[-1][0] == topic
            told[-1][1].extend(partitions)
        else:
            told.append((topic, list(partitions)))
    assert told == wanted


def test_offsets_of_many_partitions_are_fetched_and_deleted(
    new_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_coordinator, "LOCKED_MAX", 7)
    harness = new_harness()
    harness.commit("g", {("orders", n): n for n in range(20)})
    harness.write()
    error, ((topic, found),) = harness.groups.offsets.fetch("g", [("orders", list(range(30)))])
    assert (error, topic) == (ErrorCode.none, "orders")
    assert [(n, None if one is None else one.offset) for n, one in found] == [
        (n, n if n < 20 else None) for n in range(30)
    ]
    harness.groups.offsets.make_unstable("g", [ORDERS_0])
    assert harness.groups.offsets.unstable("g", [("orders", list(range(30)))]) == {ORDERS_0}
