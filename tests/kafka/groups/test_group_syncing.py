"""The leader's assignment on its way to the members, and its failures."""

import pytest

from broker.kafka.groups.classic_states import ClassicGroupState
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.classic_group_driver import REBALANCE_MS, ClassicGroupDriver


def two_joined(group: ClassicGroupDriver) -> tuple[str, str]:
    """Leader and follower of generation 2, neither of which has synced."""
    (leader,) = group.stable()
    follower = group.join_new()
    group.join(leader)
    return leader, follower.member_id


def test_every_member_gets_its_assignment_from_the_leader(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    waiting = group.sync(follower)
    assert waiting.is_parked
    led = group.sync(leader, assignments={leader: b"0,1", follower: b"2"})
    assert (led.result.assignment, waiting.result.assignment) == (b"0,1", b"2")
    assert (led.result.protocol_type, led.result.protocol_name) == ("consumer", "range")
    assert group.group.state is ClassicGroupState.STABLE


def test_member_omitted_by_the_leader_gets_nothing(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    group.sync(leader, assignments={leader: b"0,1,2"})
    late = group.sync(follower)
    assert (late.error, late.result.assignment) == (ErrorCode.none, b"")


def test_assignments_for_unknown_members_are_ignored(group: ClassicGroupDriver) -> None:
    leader, _ = two_joined(group)
    group.sync(leader, assignments={leader: b"0", "stranger": b"1"})
    assert [member.member_id for member in group.saved[-1].snapshot.members if member.assignment] == [leader]


def test_assignment_of_follower_is_ignored(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    waiting = group.sync(follower, assignments={leader: b"", follower: b"all"})
    group.sync(leader, assignments={leader: b"0", follower: b"1"})
    assert waiting.result.assignment == b"1"


def test_assignment_is_handed_out_once_durable(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    group.save_at_once = False
    syncs = [group.sync(follower), group.sync(leader, assignments={leader: b"0", follower: b"1"})]
    assert all(sync.is_parked for sync in syncs)
    assert group.group.state is ClassicGroupState.COMPLETING_REBALANCE
    kept = {member.member_id: member.assignment for member in group.saves[0].snapshot.members}
    assert kept == {leader: b"0", follower: b"1"}
    group.finish_save()
    assert [sync.result.assignment for sync in syncs] == [b"1", b"0"]


def test_failed_assignment_save_is_reported_and_starts_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    group.save_at_once = False
    syncs = [group.sync(follower), group.sync(leader, assignments={leader: b"0", follower: b"1"})]
    group.finish_save(ErrorCode.not_coordinator)
    assert [sync.error for sync in syncs] == [ErrorCode.not_coordinator] * 2
    assert group.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_rebalance_during_assignment_save_wins(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    group.save_at_once = False
    sync = group.sync(leader, assignments={leader: b"0", follower: b"1"})
    newcomer = group.join_new()
    assert sync.error == ErrorCode.rebalance_in_progress
    group.finish_save()
    assert group.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert newcomer.is_parked


def test_late_assignment_save_does_not_affect_next_generation(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    group.save_at_once = False
    group.sync(leader, assignments={leader: b"0", follower: b"1"})
    group.join_new(rebalance_ms=1)
    for member in (leader, follower):
        group.join(member)
    assert (group.group.state, group.group.generation) == (ClassicGroupState.COMPLETING_REBALANCE, 3)
    group.finish_save()
    assert group.group.state is ClassicGroupState.COMPLETING_REBALANCE


def test_second_sync_of_leader_does_not_assign_again(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    group.save_at_once = False
    first = group.sync(leader, assignments={leader: b"0", follower: b"1"})
    second = group.sync(leader, assignments={leader: b"1", follower: b"0"})
    assert len(group.saves) == 1
    group.finish_save()
    assert first.error == ErrorCode.rebalance_in_progress
    assert second.result.assignment == b"0"


def test_sync_in_stable_group_is_answered_at_once(group: ClassicGroupDriver) -> None:
    (leader,) = group.stable()
    assert group.sync(leader).result.assignment == f"for {leader}".encode()


def test_sync_during_rebalance_tells_member_to_join(group: ClassicGroupDriver) -> None:
    leader, _ = group.stable(2)
    group.join_new()
    assert group.sync(leader).error == ErrorCode.rebalance_in_progress


def test_rebalance_tells_syncing_members_to_join(group: ClassicGroupDriver) -> None:
    _, follower = two_joined(group)
    waiting = group.sync(follower)
    group.join_new()
    assert waiting.error == ErrorCode.rebalance_in_progress


def test_sync_of_another_generation_is_refused(group: ClassicGroupDriver) -> None:
    (leader,) = group.stable()
    assert group.sync(leader, generation=0).error == ErrorCode.illegal_generation
    assert group.sync(leader, generation=2).error == ErrorCode.illegal_generation


def test_sync_of_an_unknown_member_is_refused(group: ClassicGroupDriver) -> None:
    group.stable()
    assert group.sync("who-1").error == ErrorCode.unknown_member_id


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "error"),
    [
        ("consumer", "range", ErrorCode.none),
        ("connect", "range", ErrorCode.inconsistent_group_protocol),
        ("consumer", "sticky", ErrorCode.inconsistent_group_protocol),
    ],
)
def test_sync_with_protocol_must_name_the_right_one(
    group: ClassicGroupDriver, protocol_type: str, protocol_name: str, error: ErrorCode
) -> None:
    (leader,) = group.stable()
    assert group.sync(leader, protocol_type=protocol_type, protocol_name=protocol_name).error == error


def test_member_without_sync_in_rebalance_timeout_is_removed(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    waiting = group.sync(leader, assignments={leader: b"0"})
    assert waiting.error == ErrorCode.none
    while group.now < REBALANCE_MS / 1000:
        assert group.heartbeat(leader) == group.heartbeat(follower) == ErrorCode.none
        group.wait(5)
    assert group.heartbeat(follower) == ErrorCode.unknown_member_id
    assert group.heartbeat(leader) == ErrorCode.rebalance_in_progress
    assert group.join(leader).result.generation == 3


def test_group_continues_without_leader_that_never_assigns(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    waiting = group.sync(follower)
    while waiting.is_parked:
        assert group.heartbeat(leader) == ErrorCode.none
        group.wait(5)
    assert waiting.error == ErrorCode.rebalance_in_progress
    again = group.join(follower)
    assert (again.error, again.result.leader) == (ErrorCode.none, follower)


def test_rebalance_timeout_ends_when_all_have_synced(group: ClassicGroupDriver) -> None:
    leader, follower = two_joined(group)
    group.sync(leader, assignments={leader: b"0"})
    group.sync(follower)
    for _ in range(30):
        group.wait(5)
        assert group.heartbeat(leader) == group.heartbeat(follower) == ErrorCode.none
    assert group.group.generation == 2


def test_member_leaving_with_parked_sync_is_answered(group: ClassicGroupDriver) -> None:
    _, follower = two_joined(group)
    waiting = group.sync(follower)
    assert group.leave(follower) == ErrorCode.none
    assert waiting.error == ErrorCode.unknown_member_id


def test_second_sync_of_member_ends_the_first(group: ClassicGroupDriver) -> None:
    _, follower = two_joined(group)
    first, second = group.sync(follower), group.sync(follower)
    assert first.error == ErrorCode.rebalance_in_progress
    assert second.is_parked
