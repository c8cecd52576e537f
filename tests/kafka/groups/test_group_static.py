"""Static members (KIP-345): they come back under a new member id and keep their place."""

from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.rebalancer import GroupLimits
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.classic_group_driver import REBALANCE_MS, SESSION_MS, ClassicGroupDriver, Parked

LONG = 1_800_000


def stable_pair(group: ClassicGroupDriver) -> tuple[str, str]:
    """Static members pod-0, which leads, and pod-1, stable in generation 2."""
    (first,) = [group.join(instance="pod-0", session_ms=LONG)]
    second = group.join(instance="pod-1", session_ms=LONG)
    first = group.join(first.member_id, instance="pod-0", session_ms=LONG)
    ids = first.member_id, second.member_id
    group.sync(ids[0], assignments={member_id: f"for {member_id}".encode() for member_id in ids})
    group.sync(ids[1])
    assert (group.group.state, group.group.generation, group.group.members.leader) == (
        ClassicGroupState.STABLE,
        2,
        ids[0],
    )
    return ids


def back(group: ClassicGroupDriver, instance: str, **how: object) -> Parked:
    return group.join(instance=instance, session_ms=LONG, **how)  # type: ignore[arg-type]


def test_returning_static_member_gets_assignment_without_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    again = back(group, "pod-1")
    assert (again.error, again.result.generation, again.result.leader) == (ErrorCode.none, 2, leader)
    assert again.member_id != follower
    assert group.sync(again.member_id, instance="pod-1").result.assignment == f"for {follower}".encode()
    assert group.heartbeat(leader) == ErrorCode.none


def test_returning_static_leader_is_told_not_to_assign(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    again = back(group, "pod-0")
    assert again.result.skip_assignment
    assert again.result.leader == again.member_id != leader
    assert {member.group_instance_id for member in again.result.members} == {"pod-0", "pod-1"}
    assert group.join(follower, instance="pod-1").result.leader == again.member_id


def test_returning_static_leader_follows_before_version_9(
    group: ClassicGroupDriver,
) -> None:
    leader, _ = stable_pair(group)
    again = back(group, "pod-0", version=8)
    assert (again.result.leader, again.result.skip_assignment, again.result.members) == (leader, False, ())


def test_new_member_id_is_told_once_durable(group: ClassicGroupDriver) -> None:
    stable_pair(group)
    group.save_at_once = False
    again = back(group, "pod-1")
    assert again.is_parked
    group.finish_save()
    assert again.error == ErrorCode.none
    assert again.member_id in {member.member_id for member in group.saved[-1].snapshot.members}


def test_old_id_stays_valid_if_save_fails(group: ClassicGroupDriver) -> None:
    _, follower = stable_pair(group)
    group.save_at_once = False
    again = back(group, "pod-1")
    group.finish_save(ErrorCode.not_coordinator)
    assert (again.error, again.member_id) == (ErrorCode.not_coordinator, "")
    assert group.heartbeat(follower, instance="pod-1") == ErrorCode.none


def test_rebalance_before_durable_id_takes_member_along(group: ClassicGroupDriver) -> None:
    leader, _ = stable_pair(group)
    group.save_at_once = False
    again = back(group, "pod-1")
    led = group.join(leader, instance="pod-0")
    assert (led.result.generation, again.result.generation) == (3, 3)
    group.finish_save()
    assert again.result.generation == 3


def test_client_with_old_id_is_fenced(group: ClassicGroupDriver) -> None:
    _, old = stable_pair(group)
    back(group, "pod-1")
    assert group.heartbeat(old, instance="pod-1") == ErrorCode.fenced_instance_id
    assert group.sync(old, instance="pod-1").error == ErrorCode.fenced_instance_id
    assert group.join(old, instance="pod-1").error == ErrorCode.fenced_instance_id
    assert group.leave(old, instance="pod-1") == ErrorCode.fenced_instance_id
    assert group.commit(old, 2, instance="pod-1") == ErrorCode.fenced_instance_id
    assert group.heartbeat(old) == ErrorCode.unknown_member_id


def test_join_parked_under_old_id_is_fenced_immediately(group: ClassicGroupDriver) -> None:
    leader, _ = stable_pair(group)
    parked = group.join(leader, instance="pod-0")
    again = back(group, "pod-0")
    assert (parked.error, parked.member_id) == (ErrorCode.fenced_instance_id, leader)
    assert again.is_parked


def test_sync_parked_under_old_id_is_fenced_immediately(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    group.join(leader, instance="pod-0")
    group.join(follower, instance="pod-1")
    parked = group.sync(follower, instance="pod-1")
    back(group, "pod-1")
    assert parked.error == ErrorCode.fenced_instance_id


def test_instance_that_never_joined_is_unknown(group: ClassicGroupDriver) -> None:
    leader, _ = stable_pair(group)
    assert group.heartbeat(leader, instance="pod-9") == ErrorCode.unknown_member_id
    assert group.join(leader, instance="pod-9").error == ErrorCode.unknown_member_id


def test_pending_member_cannot_return_as_static_member(group: ClassicGroupDriver) -> None:
    pending = group.join()
    assert group.join(pending.member_id, instance="pod-0").error == ErrorCode.unknown_member_id


def test_static_return_while_others_sync_starts_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    group.join(leader, instance="pod-0")
    group.join(follower, instance="pod-1")
    assert group.group.state is ClassicGroupState.COMPLETING_REBALANCE
    again = back(group, "pod-1")
    assert again.is_parked
    assert group.heartbeat(leader) == ErrorCode.rebalance_in_progress


def test_static_return_that_changes_vote_starts_rebalance(group: ClassicGroupDriver) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    only = group.join(instance="pod-0", protocols=both)
    group.sync(only.member_id, assignments={only.member_id: b"all"})
    again = group.join(instance="pod-0", protocols=both[::-1])
    assert (again.result.generation, again.result.protocol_name) == (2, "sticky")


def test_static_members_survive_a_missed_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    again = group.join(leader, instance="pod-0")
    group.wait(REBALANCE_MS / 1000)
    assert again.error == ErrorCode.none
    assert follower in {member.member_id for member in again.result.members}


def test_rebalance_without_static_members_waits_for_one(group: ClassicGroupDriver) -> None:
    (a,) = [group.join(instance="pod-0", session_ms=LONG)]
    group.sync(a.member_id, assignments={a.member_id: b"all"})
    group.join_new()
    group.leave("client-2")
    group.wait(10 * REBALANCE_MS / 1000)
    assert group.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert group.join(a.member_id, instance="pod-0", session_ms=LONG).error == ErrorCode.none


def test_rebalance_without_joins_does_not_spin(group: ClassicGroupDriver) -> None:
    joined = group.join(instance="pod-0", session_ms=LONG, rebalance_ms=5)
    group.sync(joined.member_id, assignments={joined.member_id: b"all"})
    group.join_new(rebalance_ms=0)
    group.leave("client-2")
    assert group.group.state is ClassicGroupState.PREPARING_REBALANCE
    group.wait(0.9)
    assert group.group.wake >= group.now + 0.1


def test_absent_static_member_is_removed_after_session_timeout(group: ClassicGroupDriver) -> None:
    joined = group.join(instance="pod-0")
    group.sync(joined.member_id, assignments={joined.member_id: b"all"})
    group.wait(SESSION_MS / 1000)
    assert group.group.state is ClassicGroupState.EMPTY
    assert back(group, "pod-0").result.generation == 3


def test_operator_removes_static_member_by_its_instance(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    assert group.leave("", instance="pod-1") == ErrorCode.none
    assert group.heartbeat(follower) == ErrorCode.unknown_member_id
    assert group.heartbeat(leader) == ErrorCode.rebalance_in_progress


def test_returned_static_member_does_not_count_as_unsynced(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    joins = (
        group.join(leader, instance="pod-0", session_ms=LONG),
        group.join(follower, instance="pod-1", session_ms=LONG),
    )
    group.sync(leader, assignments={join.member_id: b"" for join in joins})
    again = back(group, "pod-1")  # before it had synced
    assert group.sync(again.member_id, instance="pod-1").error == ErrorCode.none
    group.wait(2 * REBALANCE_MS / 1000)
    assert (group.group.state, group.group.generation) == (ClassicGroupState.STABLE, 3)


def test_static_members_are_known_by_instance_after_restart(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    after = ClassicGroupDriver(group=ClassicGroup.restore("g", GroupLimits(), group.saved[-1].snapshot, 0.0))
    after._ids = iter(range(100, 200))  # type: ignore[assignment]
    assert after.heartbeat(leader, 2, instance="pod-0") == ErrorCode.none
    again = back(after, "pod-1")
    assert (again.error, again.result.generation) == (ErrorCode.none, 2)
    assert after.sync(again.member_id, instance="pod-1").result.assignment == f"for {follower}".encode()


def test_absent_static_leader_does_not_lead_next_generation(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    again = group.join(follower, instance="pod-1", protocols=(("range", b"new"),), session_ms=LONG)
    group.wait(REBALANCE_MS / 1000)
    assert again.result.leader == follower
    assert leader in {member.member_id for member in again.result.members}


def test_id_saved_during_rebalance_is_told_afterwards(group: ClassicGroupDriver) -> None:
    leader, _ = stable_pair(group)
    group.save_at_once = False
    again = back(group, "pod-1")
    newcomer = group.join_new()
    group.finish_save()
    assert again.is_parked
    group.join(leader, instance="pod-0", session_ms=LONG)
    assert (again.result.generation, newcomer.result.generation) == (3, 3)


def test_static_member_returning_twice_is_fenced_once(group: ClassicGroupDriver) -> None:
    stable_pair(group)
    group.save_at_once = False
    first, second = back(group, "pod-1"), back(group, "pod-1")
    assert first.error == ErrorCode.fenced_instance_id
    group.finish_save()
    assert second.is_parked
    group.finish_save()
    assert second.error == ErrorCode.none


def test_returned_static_member_without_sync_is_removed(group: ClassicGroupDriver) -> None:
    leader, follower = stable_pair(group)
    group.join(leader, instance="pod-0", session_ms=LONG)
    group.join(follower, instance="pod-1", session_ms=LONG)
    group.sync(leader, assignments={leader: b"all"})
    again = back(group, "pod-1")
    group.wait(REBALANCE_MS / 1000)
    assert again.member_id not in group.group.members
    assert group.heartbeat(leader) == ErrorCode.rebalance_in_progress


def test_old_protocols_stay_valid_if_save_fails(group: ClassicGroupDriver) -> None:
    _, follower = stable_pair(group)
    group.save_at_once = False
    back(group, "pod-1", protocols=(("range", b"new"),))
    group.finish_save(ErrorCode.not_coordinator)
    assert group.join(follower, instance="pod-1").error == ErrorCode.none
    assert group.group.state is ClassicGroupState.STABLE
