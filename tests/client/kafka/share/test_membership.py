"""When a share consumer sends heartbeats, what they say, and what it makes of the answers."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.share import membership
from broker.client.kafka.share.membership import (
    TABLE,
    HeartbeatAnswer,
    Membership,
    MembershipEvent,
    MembershipState,
    next_state,
)
from protocol.kafka.errors import ErrorCode
from tests.transitions import check_docstring, check_pairs

S, E = MembershipState, MembershipEvent
JOBS = (UUID(int=1), 0)


def make(*topics: str) -> Membership:
    return Membership("group", "member", topics or ("jobs",), "rack", 0.1, 1.0)


def joined() -> Membership:
    one = make()
    one.heartbeat()
    one.answered(HeartbeatAnswer(0, 3, 5.0, frozenset({JOBS})), 100.0)
    return one


def test_docstring_draws_the_table() -> None:
    check_docstring(membership.__doc__, TABLE, S, E)


def test_pair_outside_the_table_is_a_bug() -> None:
    check_pairs(TABLE, next_state, S, E)


def test_first_heartbeat_has_all_fields_later_ones_few() -> None:
    one = make()
    assert one.heartbeat() == {
        "group_id": "group",
        "member_id": "member",
        "member_epoch": 0,
        "subscribed_topic_names": ["jobs"],
        "rack_id": "rack",
    }
    one.answered(HeartbeatAnswer(0, 3, 5.0, frozenset({JOBS})), 100.0)
    assert (one.state, one.due_at, one.assigned) == (S.STABLE, 105.0, {JOBS})
    assert one.heartbeat() == {"group_id": "group", "member_id": "member", "member_epoch": 3}
    one.answered(HeartbeatAnswer(0, 4, 2.0, None), 105.0)
    assert (one.epoch, one.due_at, one.assigned) == (4, 107.0, {JOBS})


def test_new_subscription_is_sent_until_an_answer_comes() -> None:
    one = joined()
    one.subscribe(["jobs", "more"], 101.0)
    assert one.due_at == 101.0
    assert one.heartbeat()["subscribed_topic_names"] == ["jobs", "more"]
    one.unanswered(102.0)
    assert one.heartbeat()["subscribed_topic_names"] == ["jobs", "more"]
    one.subscribe(["other"], 103.0)  # while that one is on its way
    one.answered(HeartbeatAnswer(0, 5), 104.0)
    assert one.due_at == 104.0
    assert one.heartbeat()["subscribed_topic_names"] == ["other"]
    one.answered(HeartbeatAnswer(0, 6), 105.0)
    assert "subscribed_topic_names" not in one.heartbeat()


@pytest.mark.parametrize("code", [ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id])
def test_fenced_member_rejoins_at_once_without_partitions(code: int) -> None:
    one = joined()
    one.heartbeat()
    one.answered(HeartbeatAnswer(code), 110.0)
    assert (one.state, one.due_at, one.assigned) == (S.JOINING, 110.0, frozenset())
    fields = one.heartbeat()
    assert (fields["member_id"], fields["member_epoch"], fields["subscribed_topic_names"]) == ("member", 0, ["jobs"])
    one.answered(HeartbeatAnswer(code), 111.0)
    assert one.due_at == 111.1  # not in a circle


@pytest.mark.parametrize("code", [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress])
def test_retriable_errors_are_retried_with_growing_delays(code: int) -> None:
    one, now, pauses = joined(), 200.0, []
    for _ in range(6):
        one.heartbeat()
        one.answered(HeartbeatAnswer(code), now)
        pauses.append(round(one.due_at - now, 3))
        now = one.due_at
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert one.assigned == {JOBS}
    assert one.state is S.STABLE


def test_other_error_ends_the_membership() -> None:
    one = joined()
    one.heartbeat()
    one.answered(HeartbeatAnswer(ErrorCode.group_authorization_failed), 110.0)
    assert one.state is S.FAILED


def test_leaving_takes_one_heartbeat_and_stops_reading() -> None:
    one = joined()
    one.leave()
    one.leave()
    assert (one.state, one.assigned) == (S.LEAVING, frozenset())
    assert one.heartbeat() == {"group_id": "group", "member_id": "member", "member_epoch": -1}
    one.answered(HeartbeatAnswer(0, -1), 120.0)
    assert one.state is S.LEFT
    one.give_up()
    assert one.state is S.LEFT


@pytest.mark.parametrize("code", [0, ErrorCode.fenced_member_epoch, ErrorCode.group_authorization_failed])
def test_late_answer_does_not_prevent_leaving(code: int) -> None:
    for one in (joined(), make()):
        one.heartbeat()
        one.leave()
        one.answered(HeartbeatAnswer(code, 9), 120.0)
        assert (one.state, one.due_at) == (S.LEAVING, 120.0)
        assert one.heartbeat()["member_epoch"] == -1
        one.answered(HeartbeatAnswer(ErrorCode.unknown_member_id), 121.0)
        assert one.state is S.LEFT


def test_member_that_never_joined_leaves_silently() -> None:
    one = make()
    one.leave()
    assert one.state is S.LEFT


codes = st.sampled_from([0, 0, 0, 110, 25, 15, 14, 16])


@given(st.lists(st.one_of(codes, st.none(), st.sampled_from(["a", "b"]))))
def test_coordinator_always_learns_the_topics(events: list[int | str | None]) -> None:
    """A coordinator that forgets a member with each fencing, and otherwise keeps what it was last told."""
    one, now = make("first"), 0.0
    known: list[str] | None = None
    for event in events:
        now += 1
        if isinstance(event, str):
            one.subscribe([event], now)
            continue
        fields = one.heartbeat()
        if event is None:  # the request may have arrived
            one.unanswered(now)
            continue
        if event == 0:
            assert (fields["member_epoch"] == 0) is (known is None)
            known = fields.get("subscribed_topic_names", known)
            assert known == sorted(one.topics)
        elif event in (110, 25):
            known = None
        one.answered(HeartbeatAnswer(event, 7), now)
        assert one.due_at >= now
