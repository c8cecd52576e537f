"""Joins of a group: ids, generations, protocols and refusals."""

from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.values import JoinMember
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.classic_group_driver import REBALANCE_MS, ClassicGroupDriver

BOTH = (("cooperative-sticky", b"c"), ("range", b"r"))


def test_dynamic_member_is_told_its_id_and_returns(group: ClassicGroupDriver) -> None:
    first = group.join()
    assert (first.error, first.member_id) == (ErrorCode.member_id_required, "client-1")
    assert first.result.generation == -1
    second = group.join("client-1")
    assert (second.error, second.member_id, second.result.generation) == (ErrorCode.none, "client-1", 1)


def test_dynamic_member_joins_at_once_before_version_4(group: ClassicGroupDriver) -> None:
    joined = group.join(version=3)
    assert (joined.error, joined.member_id) == (ErrorCode.none, "client-1")


def test_static_member_joins_with_one_request(group: ClassicGroupDriver) -> None:
    joined = group.join(instance="pod-0")
    assert (joined.error, joined.member_id) == (ErrorCode.none, "pod-0-1")


def test_first_member_leads_and_gets_all_members_metadata(group: ClassicGroupDriver) -> None:
    (leader,) = group.stable()
    follower = group.join_new(protocols=(("range", b"other"),))
    led = group.join(leader)
    assert led.result.leader == follower.result.leader == leader
    assert set(led.result.members) == {
        JoinMember(leader, None, b"topics"),
        JoinMember(follower.member_id, None, b"other"),
    }
    assert follower.result.members == ()
    assert (led.result.protocol_type, led.result.protocol_name) == ("consumer", "range")


def test_join_is_parked_until_all_known_members_joined(group: ClassicGroupDriver) -> None:
    a, b = group.stable(2)
    newcomer = group.join_new()
    assert newcomer.is_parked
    again = group.join(a)
    assert newcomer.is_parked
    assert again.is_parked
    last = group.join(b)
    assert {join.result.generation for join in (newcomer, again, last)} == {3}


def test_member_without_join_in_rebalance_timeout_is_removed(group: ClassicGroupDriver) -> None:
    a, b = group.stable(2)
    newcomer = group.join_new()
    again = group.join(a)
    while group.now < REBALANCE_MS / 1000 - 5:
        group.wait(5)
        assert group.heartbeat(b) == ErrorCode.rebalance_in_progress
    assert again.is_parked
    group.wait(5)
    assert (newcomer.error, again.error) == (ErrorCode.none, ErrorCode.none)
    assert group.heartbeat(b) == ErrorCode.unknown_member_id
    assert group.group.state is ClassicGroupState.COMPLETING_REBALANCE


def test_longest_rebalance_timeout_of_the_members_counts(group: ClassicGroupDriver) -> None:
    (a,) = group.stable(rebalance_ms=300_000, session_ms=600_000)
    newcomer = group.join_new(rebalance_ms=1_000, session_ms=600_000)
    group.wait(299)
    assert newcomer.is_parked
    group.wait(1)
    assert newcomer.error == ErrorCode.none
    assert a not in group.group.members


def test_leader_without_rejoin_is_replaced(group: ClassicGroupDriver) -> None:
    leader, other = group.stable(2, session_ms=100_000)
    again = group.join(other, session_ms=100_000)
    assert again.error == ErrorCode.none  # a follower that changes nothing does not start a rebalance
    newcomer = group.join_new()
    again = group.join(other)
    group.wait(REBALANCE_MS / 1000)
    assert again.result.leader == newcomer.result.leader != leader


def test_group_waits_for_members_with_given_ids(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    pending = group.join()
    again = group.join(a)
    assert again.is_parked
    assert group.join(pending.member_id).error == ErrorCode.none
    assert again.error == ErrorCode.none


def test_absent_pending_member_is_awaited_for_session_timeout(
    group: ClassicGroupDriver,
) -> None:
    (a,) = group.stable()
    pending = group.join(session_ms=6_000)
    again = group.join(a)
    group.wait(5.9)
    assert again.is_parked
    group.wait(0.1)
    assert again.error == ErrorCode.none
    assert group.join(pending.member_id).error == ErrorCode.unknown_member_id


def test_pending_member_may_leave(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    pending = group.join()
    again = group.join(a)
    assert group.leave(pending.member_id) == ErrorCode.none
    assert again.error == ErrorCode.none


def test_leader_joining_again_starts_a_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    again = group.join(leader)
    assert again.is_parked
    assert group.heartbeat(follower) == ErrorCode.rebalance_in_progress


def test_unchanged_follower_rejoin_gets_the_current_generation(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    again = group.join(follower)
    assert (again.error, again.result.generation, again.result.leader) == (ErrorCode.none, 2, leader)
    assert again.result.members == ()
    assert group.group.state is ClassicGroupState.STABLE
    assert group.sync(follower).result.assignment == f"for {follower}".encode()


def test_follower_rejoin_with_other_metadata_starts_rebalance(group: ClassicGroupDriver) -> None:
    leader, follower = group.stable(2)
    again = group.join(follower, protocols=(("range", b"new topics"),))
    assert again.is_parked
    led = group.join(leader)
    assert JoinMember(follower, None, b"new topics") in led.result.members


def test_unchanged_rejoin_while_syncing_is_answered_again(group: ClassicGroupDriver) -> None:
    joined = group.join_new()
    again = group.join(joined.member_id)
    assert again.result == joined.result
    assert again.result.members != ()
    assert group.group.state is ClassicGroupState.COMPLETING_REBALANCE


def test_changed_rejoin_while_syncing_starts_rebalance(group: ClassicGroupDriver) -> None:
    joined = group.join_new()
    again = group.join(joined.member_id, protocols=(("range", b"new topics"),))
    assert again.result.generation == joined.result.generation + 1


def test_second_join_of_member_ends_the_first(group: ClassicGroupDriver) -> None:
    a, _ = group.stable(2)
    first = group.join(a)
    second = group.join(a)
    assert first.error == ErrorCode.rebalance_in_progress
    assert second.is_parked


def test_unknown_member_id_is_refused(group: ClassicGroupDriver) -> None:
    group.stable()
    refused = group.join("who-1")
    assert (refused.error, refused.member_id) == (ErrorCode.unknown_member_id, "who-1")


def test_member_needs_protocol_that_all_others_have(group: ClassicGroupDriver) -> None:
    group.stable(protocols=BOTH)
    assert group.join(protocols=(("roundrobin", b""),)).error == ErrorCode.inconsistent_group_protocol
    assert group.join(protocols=BOTH[1:]).error == ErrorCode.member_id_required


def test_member_needs_protocol_type_of_the_group(group: ClassicGroupDriver) -> None:
    group.stable()
    assert group.join(protocol_type="connect").error == ErrorCode.inconsistent_group_protocol


def test_first_member_needs_protocol_type_and_protocol(group: ClassicGroupDriver) -> None:
    assert group.join(protocol_type="").error == ErrorCode.inconsistent_group_protocol
    assert group.join(protocols=()).error == ErrorCode.inconsistent_group_protocol


def test_empty_group_may_get_another_protocol_type(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    group.leave(a)
    assert group.join_new(protocol_type="connect").result.protocol_type == "connect"


def test_members_vote_for_a_protocol_that_all_have(group: ClassicGroupDriver) -> None:
    (a,) = group.stable(protocols=BOTH)
    b = group.join_new(protocols=(("range", b"r"),))
    again = group.join(a, protocols=BOTH)
    assert again.result.protocol_name == b.result.protocol_name == "range"


def test_most_votes_decide_among_protocols_that_all_have(group: ClassicGroupDriver) -> None:
    (a,) = group.stable(protocols=BOTH)
    b = group.join_new(protocols=BOTH[::-1])
    group.join(a, protocols=BOTH)
    c = group.join_new(protocols=BOTH[::-1])
    group.join(a, protocols=BOTH)
    assert group.join(b.member_id, protocols=BOTH[::-1]).result.protocol_name == "range"
    assert c.result.protocol_name == "range"


def test_repeated_protocol_of_member_counts_once(group: ClassicGroupDriver) -> None:
    group.stable(protocols=(("range", b""), ("range", b"")))
    assert group.join(protocols=(("range", b""),)).error == ErrorCode.member_id_required


def test_full_group_takes_no_new_member() -> None:
    group = ClassicGroupDriver(GroupLimits(max_size=2))
    a, _ = group.stable(2)
    refused = group.join()
    assert (refused.error, refused.member_id) == (ErrorCode.group_max_size_reached, "")
    assert group.heartbeat(a) == ErrorCode.none


def test_pending_members_are_refused_by_full_group() -> None:
    group = ClassicGroupDriver(GroupLimits(max_size=1))
    first, second = group.join(), group.join()
    assert group.join(first.member_id).error == ErrorCode.none
    assert group.join(second.member_id).error == ErrorCode.group_max_size_reached


def test_first_rebalance_waits_longer_while_members_arrive() -> None:
    group = ClassicGroupDriver(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = group.join_new()
    group.wait(2)
    second = group.join_new()
    group.wait(1)  # the delay is over, but a member has joined: it is prolonged
    assert first.is_parked
    group.wait(2.9)
    third = group.join_new()
    group.wait(0.1)
    assert first.is_parked
    group.wait(3)
    assert {join.result.generation for join in (first, second, third)} == {1}


def test_first_rebalance_is_bounded_by_the_rebalance_timeout() -> None:
    group = ClassicGroupDriver(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = group.join_new(rebalance_ms=10_000)
    while first.is_parked:
        group.wait(1)
        group.join_new(rebalance_ms=10_000)
        assert group.now <= 10


def test_first_rebalance_that_everybody_left_ends_empty() -> None:
    group = ClassicGroupDriver(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = group.join_new()
    assert group.leave("client-1") == ErrorCode.none
    assert first.error == ErrorCode.unknown_member_id
    group.wait(3)
    assert (group.group.state, group.group.generation) == (ClassicGroupState.EMPTY, 1)


def test_rebalance_without_initial_delay_ends_with_last_join() -> None:
    group = ClassicGroupDriver(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = group.join_new()
    group.wait(3)
    second = group.join_new()
    again = group.join(first.member_id)
    assert (second.result.generation, again.result.generation) == (2, 2)


def test_dead_group_tells_members_to_find_coordinator(group: ClassicGroupDriver) -> None:
    (a,) = group.stable()
    group.leave(a)
    assert group.group.delete() == ErrorCode.none
    assert group.join().error == ErrorCode.coordinator_not_available
    assert group.sync(a).error == ErrorCode.coordinator_not_available
    assert group.heartbeat(a) == ErrorCode.coordinator_not_available
    assert group.leave(a) == ErrorCode.coordinator_not_available
    assert group.commit() == ErrorCode.coordinator_not_available
    assert group.group.delete() == ErrorCode.group_id_not_found
