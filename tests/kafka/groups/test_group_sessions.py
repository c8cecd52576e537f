"""Heartbeats, sessions, leaving, and the right to commit."""

import pytest

from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.rebalancer import GroupLimits
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.classic_group_driver import REBALANCE_MS, SESSION_MS, ClassicGroupDriver

SESSION_S = SESSION_MS / 1000


def test_silent_member_is_removed_after_session_timeout(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    group.wait(SESSION_S - 1)
    group.heartbeat(leader)
    group.wait(1)
    assert group.heartbeat(follower) == ErrorCode.unknown_member_id
    assert group.heartbeat(leader) == ErrorCode.rebalance_in_progress


def test_heartbeats_keep_a_session_alive(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    for _ in range(20):
        group.wait(SESSION_S - 0.1)
        assert group.heartbeat(a) == ErrorCode.none


def test_heartbeat_while_others_sync_has_no_error(group: ClassicGroupDriver) -> None:
    joined = group.join_new()
    assert group.heartbeat(joined.member_id) == ErrorCode.none


def test_heartbeat_during_rebalance_reports_it_and_counts(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    for _ in range(3):
        group.wait(SESSION_S - 1)
        assert group.heartbeat(follower) == ErrorCode.rebalance_in_progress


@pytest.mark.parametrize("generation", [-1, 0, 2])
def test_heartbeat_of_another_generation_is_refused(group: ClassicGroupDriver, generation: int) -> None:
    (a,) = group.stable()
    assert group.heartbeat(a, generation) == ErrorCode.illegal_generation


def test_heartbeat_of_an_unknown_member_is_refused(group: ClassicGroupDriver) -> None:
    assert group.heartbeat("who-1") == ErrorCode.unknown_member_id
    group.stable()
    assert group.heartbeat("who-1") == ErrorCode.unknown_member_id


def test_heartbeat_of_pending_member_is_refused(group: ClassicGroupDriver) -> None:
    pending = group.join()
    assert group.heartbeat(pending.member_id, 0) == ErrorCode.unknown_member_id


def test_session_does_not_expire_while_join_is_parked(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    parked = group.join(leader)
    while group.now < REBALANCE_MS / 1000 - 6:
        group.wait(6)
        group.heartbeat(follower)
    assert parked.is_parked
    assert group.join(follower).error == ErrorCode.none
    assert (parked.error, group.heartbeat(leader)) == (ErrorCode.none, ErrorCode.none)


def test_session_does_not_expire_while_sync_is_parked(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    joins = group.join(leader), group.join(follower)
    assert {join.result.generation for join in joins} == {3}
    parked = group.sync(follower)
    for _ in range(5):
        group.wait(9)
        group.heartbeat(leader)
    assert parked.is_parked
    group.sync(leader, assignments={follower: b"all"})
    assert parked.result.assignment == b"all"
    group.wait(SESSION_S - 1)
    assert group.heartbeat(follower) == ErrorCode.none


def test_member_silent_after_answered_sync_is_removed(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    group.join(leader), group.join(follower)
    group.sync(follower)
    for _ in range(2):
        group.wait(9)
        group.heartbeat(leader)
    group.sync(leader)
    group.wait(SESSION_S)
    assert len(group.group.members) == 0


def test_sync_in_stable_group_counts_as_heartbeat(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    for _ in range(3):
        group.wait(SESSION_S - 1)
        assert group.sync(a).error == ErrorCode.none


def test_session_begins_anew_when_parked_member_is_answered(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    group.wait(SESSION_S - 1)
    group.heartbeat(follower)
    group.wait(5)  # by now the leader's session would have timed out
    group.join(follower)
    group.wait(SESSION_S - 0.1)
    assert group.heartbeat(leader) == ErrorCode.none
    group.wait(SESSION_S)
    assert group.heartbeat(leader) == ErrorCode.unknown_member_id


def test_parked_new_member_expires_after_five_minutes(group: ClassicGroupDriver) -> None:
    (a,) = group.stable(rebalance_ms=3_600_000, session_ms=3_600_000)
    newcomer = group.join_new()
    group.wait(299)
    assert newcomer.is_parked
    group.wait(1)
    assert (newcomer.error, newcomer.member_id) == (ErrorCode.unknown_member_id, "")
    assert group.join(a, rebalance_ms=3_600_000, session_ms=3_600_000).error == ErrorCode.none


def test_last_leave_makes_empty_group_of_next_generation(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    assert group.leave(a) == ErrorCode.none
    assert (group.group.state, group.group.generation) == (ClassicGroupState.EMPTY, 2)
    assert group.saved[-1].snapshot.members == ()
    assert group.saved[-1].snapshot.generation == 2


def test_leaving_member_is_removed_and_the_others_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    assert group.leave(leader) == ErrorCode.none
    assert group.heartbeat(leader) == ErrorCode.unknown_member_id
    assert group.heartbeat(follower) == ErrorCode.rebalance_in_progress
    assert group.join(follower).result.leader == follower


def test_leave_of_last_awaited_member_completes_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    parked = group.join(leader)
    group.leave(follower)
    assert parked.error == ErrorCode.none


def test_member_leaving_with_parked_join_is_answered(group: ClassicGroupDriver) -> None:
    leader, _ = group.stable(2)
    parked = group.join(leader)
    assert group.leave(leader) == ErrorCode.none
    assert (parked.error, parked.member_id) == (ErrorCode.unknown_member_id, "")


def test_unknown_member_cannot_leave(group: ClassicGroupDriver) -> None:
    group.stable()
    assert group.leave("who-1") == ErrorCode.unknown_member_id
    assert group.leave("") == ErrorCode.unknown_member_id
    assert group.leave("", instance="pod-0") == ErrorCode.unknown_member_id


def test_group_with_members_cannot_be_deleted(group: ClassicGroupDriver) -> None:
    group.stable()
    assert group.group.delete() == ErrorCode.non_empty_group


def test_non_member_may_commit_to_empty_group(group: ClassicGroupDriver) -> None:
    assert group.commit() == ErrorCode.none
    assert group.commit("anything", -1) == ErrorCode.none


def test_non_member_may_not_commit_to_populated_group(group: ClassicGroupDriver) -> None:
    group.stable()
    assert group.commit() == ErrorCode.unknown_member_id


def test_member_commits_in_its_generation_only(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    assert group.commit(a, 1) == ErrorCode.none
    assert group.commit(a, 0) == ErrorCode.illegal_generation
    assert group.commit(a, 2) == ErrorCode.illegal_generation
    assert group.commit(a, -1) == ErrorCode.illegal_generation
    assert group.commit("who-1", 1) == ErrorCode.unknown_member_id


def test_former_member_may_not_commit_to_empty_group(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    group.leave(a)
    assert group.commit(a, 1) == ErrorCode.unknown_member_id
    assert group.commit(a, 2) == ErrorCode.unknown_member_id


def test_old_generation_may_commit_until_the_next_begins(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    assert group.commit(follower, 2) == ErrorCode.none
    group.join(follower)
    assert group.commit(follower, 2) == ErrorCode.illegal_generation
    assert group.commit(follower, 3) == ErrorCode.rebalance_in_progress


def test_commit_counts_as_a_heartbeat(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    for _ in range(5):
        group.wait(SESSION_S - 1)
        assert group.commit(a, 1) == ErrorCode.none


def test_stable_group_is_described_with_metadata_and_assignments(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    description = group.group.describe()
    assert (description.state, description.protocol_type, description.protocol_name) == (
        ClassicGroupState.STABLE,
        "consumer",
        "range",
    )
    (member,) = description.members
    assert (member.member_id, member.client_id, member.client_host) == (a, "client", "/127.0.0.1")
    assert (member.metadata, member.assignment) == (b"topics", f"for {a}".encode())


def test_rebalancing_group_is_described_with_members_alone(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    description = group.group.describe()
    assert (description.state, description.protocol_name) == (ClassicGroupState.PREPARING_REBALANCE, "")
    assert {(member.member_id, member.metadata, member.assignment) for member in description.members} == {
        (leader, b"", b""),
        (follower, b"", b""),
    }


def restarted(group: ClassicGroupDriver) -> ClassicGroupDriver:
    """The same group, restored an hour later from its last save."""
    snapshot = group.saved[-1].snapshot
    after = ClassicGroupDriver(group=ClassicGroup.restore("g", group.group._limits, snapshot, 3600.0))
    after.now = 3600.0
    return after


def test_members_continue_in_their_generation_after_restart(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    after = restarted(group)
    assert after.heartbeat(leader, 2) == after.heartbeat(follower, 2) == ErrorCode.none
    assert after.commit(follower, 2) == ErrorCode.none
    assert after.sync(follower, 2).result.assignment == f"for {follower}".encode()
    assert after.group.describe() == group.group.describe()


def test_unchanged_follower_rejoin_after_restart_starts_no_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2, protocols=(("range", b"r"), ("sticky", b"s")))
    after = restarted(group)
    assert after.join(follower, protocols=(("range", b"r"), ("sticky", b"s"))).result.leader == leader
    assert after.group.state is ClassicGroupState.STABLE


def test_members_have_whole_session_for_heartbeat_after_restart(group: ClassicGroupDriver) -> None:
    group.stable(2)
    after = restarted(group)
    after.wait(SESSION_S - 0.1)
    assert len(after.group.members) == 2
    after.wait(0.1)
    assert (after.group.state, after.group.generation) == (ClassicGroupState.EMPTY, 3)


def test_empty_group_keeps_counting_generations_after_restart(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    group.leave(a)
    after = restarted(group)
    assert after.group.state is ClassicGroupState.EMPTY
    assert after.join_new().result.generation == 3


def test_last_joins_are_refused_under_lower_limit(group: ClassicGroupDriver) -> None:
    members = group.stable(3)
    after = ClassicGroupDriver(group=ClassicGroup.restore("g", GroupLimits(max_size=2), group.saved[-1].snapshot, 0.0))
    assert [after.heartbeat(member_id, 3) for member_id in members] == [ErrorCode.rebalance_in_progress] * 3
    joins = [after.join(member_id) for member_id in members]
    assert [join.error for join in joins] == [ErrorCode.none, ErrorCode.none, ErrorCode.group_max_size_reached]


def test_shutdown_answers_every_parked_join(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    join = group.join(leader)
    group.group.shut_down()
    group._settle()
    assert join.error == ErrorCode.not_coordinator
    assert group.heartbeat(follower) == ErrorCode.coordinator_not_available
    group.wait(1_000_000)


def test_shutdown_answers_every_parked_sync(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    group.join(leader), group.join(follower)
    sync = group.sync(follower)
    group.group.shut_down()
    group._settle()
    assert sync.error == ErrorCode.not_coordinator
