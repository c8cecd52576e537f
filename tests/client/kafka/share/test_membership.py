"""When a share consumer sends heartbeats, their fields, and the effects of the answers."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.share.membership import (
    TABLE,
    HeartbeatAnswer,
    Membership,
    MembershipEvent,
    MembershipState,
    next_state,
)
from protocol.kafka.errors import ErrorCode
from tests.transitions import check_pairs

S, E = MembershipState, MembershipEvent
JOBS = (UUID(int=1), 0)


def make(*topics: str) -> Membership:
    return Membership("group", "member", topics or ("jobs",), "rack", 0.1, 1.0)


def joined() -> Membership:
    member = make()
    member.heartbeat()
    member.answered(HeartbeatAnswer(0, 3, 5.0, frozenset({JOBS})), 100.0)
    return member


def test_pair_outside_the_table_is_a_bug() -> None:
    check_pairs(TABLE, next_state, S, E)


def test_first_heartbeat_has_all_fields_later_ones_few() -> None:
    member = make()
    assert member.heartbeat() == {
        "group_id": "group",
        "member_id": "member",
        "member_epoch": 0,
        "subscribed_topic_names": ["jobs"],
        "rack_id": "rack",
    }
    member.answered(HeartbeatAnswer(0, 3, 5.0, frozenset({JOBS})), 100.0)
    assert (member.state, member.due_at, member.assigned) == (S.STABLE, 105.0, {JOBS})
    assert member.heartbeat() == {"group_id": "group", "member_id": "member", "member_epoch": 3}
    member.answered(HeartbeatAnswer(0, 4, 2.0, None), 105.0)
    assert (member.epoch, member.due_at, member.assigned) == (4, 107.0, {JOBS})


def test_new_subscription_is_sent_until_an_answer_comes() -> None:
    member = joined()
    member.subscribe(["jobs", "more"], 101.0)
    assert member.due_at == 101.0
    assert member.heartbeat()["subscribed_topic_names"] == ["jobs", "more"]
    member.unanswered(102.0)
    assert member.heartbeat()["subscribed_topic_names"] == ["jobs", "more"]
    member.subscribe(["other"], 103.0)  # while that heartbeat is in flight
    member.answered(HeartbeatAnswer(0, 5), 104.0)
    assert member.due_at == 104.0
    assert member.heartbeat()["subscribed_topic_names"] == ["other"]
    member.answered(HeartbeatAnswer(0, 6), 105.0)
    assert "subscribed_topic_names" not in member.heartbeat()


@pytest.mark.parametrize("code", [ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id])
def test_fenced_member_rejoins_at_once_without_partitions(code: int) -> None:
    member = joined()
    member.heartbeat()
    member.answered(HeartbeatAnswer(code), 110.0)
    assert (member.state, member.due_at, member.assigned) == (S.JOINING, 110.0, frozenset())
    fields = member.heartbeat()
    assert (fields["member_id"], fields["member_epoch"], fields["subscribed_topic_names"]) == ("member", 0, ["jobs"])
    member.answered(HeartbeatAnswer(code), 111.0)
    assert member.due_at == 111.1  # not in a busy loop


@pytest.mark.parametrize("code", [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress])
def test_retriable_errors_are_retried_with_growing_delays(code: int) -> None:
    member, now, pauses = joined(), 200.0, []
    for _ in range(6):
        member.heartbeat()
        member.answered(HeartbeatAnswer(code), now)
        pauses.append(round(member.due_at - now, 3))
        now = member.due_at
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert member.assigned == {JOBS}
    assert member.state is S.STABLE


def test_other_error_ends_the_membership() -> None:
    member = joined()
    member.heartbeat()
    member.answered(HeartbeatAnswer(ErrorCode.group_authorization_failed), 110.0)
    assert member.state is S.FAILED


def test_leaving_takes_one_heartbeat_and_stops_reading() -> None:
    member = joined()
    member.leave()
    member.leave()
    assert (member.state, member.assigned) == (S.LEAVING, frozenset())
    assert member.heartbeat() == {"group_id": "group", "member_id": "member", "member_epoch": -1}
    member.answered(HeartbeatAnswer(0, -1), 120.0)
    assert member.state is S.LEFT
    member.give_up()
    assert member.state is S.LEFT


@pytest.mark.parametrize("code", [0, ErrorCode.fenced_member_epoch, ErrorCode.group_authorization_failed])
def test_late_answer_does_not_prevent_leaving(code: int) -> None:
    for member in (joined(), make()):
        member.heartbeat()
        member.leave()
        member.answered(HeartbeatAnswer(code, 9), 120.0)
        assert (member.state, member.due_at) == (S.LEAVING, 120.0)
        assert member.heartbeat()["member_epoch"] == -1
        member.answered(HeartbeatAnswer(ErrorCode.unknown_member_id), 121.0)
        assert member.state is S.LEFT


def test_member_that_never_joined_leaves_silently() -> None:
    member = make()
    member.leave()
    assert member.state is S.LEFT


codes = st.sampled_from([0, 0, 0, 110, 25, 15, 14, 16])


@given(st.lists(st.one_of(codes, st.none(), st.sampled_from(["a", "b"]))))
def test_coordinator_always_learns_the_topics(events: list[int | str | None]) -> None:
    """A coordinator that forgets a member with each fencing, and otherwise keeps the last topics that it got."""
    member, now = make("first"), 0.0
    known: list[str] | None = None
    for event in events:
        now += 1
        if isinstance(event, str):
            member.subscribe([event], now)
            continue
        fields = member.heartbeat()
        if event is None:  # the request may have arrived
            member.unanswered(now)
            continue
        if event == 0:
            assert (fields["member_epoch"] == 0) is (known is None)
            known = fields.get("subscribed_topic_names", known)
            assert known == sorted(member.topics)
        elif event in (110, 25):
            known = None
        member.answered(HeartbeatAnswer(event, 7), now)
        assert member.due_at >= now
