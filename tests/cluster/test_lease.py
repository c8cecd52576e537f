from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.lease import TABLE, Lease, LeaseEvent, LeaseState
from tests.transitions import check_pairs

LEADING, SUSPENDED, RETURNING, FENCED = LeaseState


def new_lease() -> Lease:
    return Lease(duration_s=10.0, margin_s=0.5, answers_s=2.0)


def leading_lease(sent_at: float = 100.0, now: float = 100.0) -> Lease:
    lease = new_lease()
    assert RETURNING is lease.renewed(sent_at, now)
    assert LEADING is lease.caught_up(inf, now)
    return lease


def test_the_table_says_what_follows_each_event() -> None:
    def expected(state: LeaseState, event: LeaseEvent) -> LeaseState:
        if state is FENCED or event is LeaseEvent.LOST:
            return FENCED
        if event is LeaseEvent.RAN_OUT:
            return SUSPENDED
        if event is LeaseEvent.CAUGHT_UP:
            return LEADING if state is RETURNING else state
        return RETURNING if state is SUSPENDED else state

    check_pairs(TABLE, TABLE.next, LeaseState, LeaseEvent, expected)


def test_a_new_lease_does_not_lead() -> None:
    lease = new_lease()
    assert (SUSPENDED, False) == (lease.look(0.0), lease.is_leading(0.0))


def test_it_leads_from_the_renewal_until_shortly_before_the_lease_ends() -> None:
    lease = leading_lease(sent_at=100.0, now=100.2)
    assert [True, True, False, False] == [lease.is_leading(now) for now in (100.2, 109.4, 109.5, 200.0)]


def test_it_counts_from_when_the_request_was_sent() -> None:
    lease = leading_lease(sent_at=100.0, now=105.0)
    assert [LEADING, SUSPENDED] == [lease.look(109.4), lease.look(109.6)]


def test_an_answer_that_took_longer_than_the_lease_does_not_make_it_lead() -> None:
    lease = new_lease()
    assert SUSPENDED is lease.renewed(sent_at=100.0, now=160.0)
    assert not lease.is_leading(160.0)


def test_it_does_not_lead_after_its_time_although_nobody_has_looked() -> None:
    lease = leading_lease()
    assert (LEADING, False) == (lease.state, lease.is_leading(160.0))


def test_renewed_after_it_ran_out_it_leads_when_it_has_caught_up() -> None:
    lease, told = leading_lease(), []
    assert SUSPENDED is lease.look(130.0)
    assert lease.when_renewed(130.0, lambda: told.append("told"))
    assert RETURNING is lease.renewed(sent_at=131.0, now=131.1)
    assert RETURNING is lease.renewed(sent_at=132.0, now=132.1)
    assert RETURNING is lease.caught_up(known_at=131.1, now=132.2)
    assert ([], True) == (told, lease.answers_until < 131.1)
    assert LEADING is lease.caught_up(known_at=131.2, now=132.2)
    assert (["told"], True) == (told, lease.is_leading(140.0))
    assert 133.9 == pytest.approx(lease.answers_until)


def test_a_renewal_shows_that_it_ran_out_before_although_nobody_has_looked() -> None:
    lease = leading_lease()
    assert RETURNING is lease.renewed(sent_at=131.0, now=131.1)
    assert lease.answers_until < 103.0


def test_what_it_knows_from_before_it_ran_out_again_does_not_count() -> None:
    lease = leading_lease()
    lease.renewed(sent_at=131.0, now=131.1)
    lease.caught_up(known_at=132.0, now=150.0)
    assert SUSPENDED is lease.look(150.0)
    assert RETURNING is lease.renewed(sent_at=151.0, now=151.1)
    assert RETURNING is lease.caught_up(known_at=132.0, now=151.2)


def test_an_older_answer_that_comes_late_shortens_nothing() -> None:
    lease = leading_lease(sent_at=105.0, now=105.1)
    lease.renewed(sent_at=100.0, now=105.2)
    assert lease.is_leading(114.0)


def test_once_lost_it_never_leads_again() -> None:
    lease = leading_lease()
    assert FENCED is lease.lost()
    assert FENCED is lease.renewed(sent_at=101.0, now=101.0)
    assert (FENCED, False) == (lease.look(101.0), lease.is_leading(101.0))


def test_answers_leave_for_a_part_of_the_lease_and_a_renewal_prolongs_that() -> None:
    lease = leading_lease(sent_at=100.0, now=100.2)
    assert 101.9 == pytest.approx(lease.answers_until)
    lease.renewed(sent_at=101.0, now=104.0)
    lease.renewed(sent_at=100.5, now=104.0)
    assert 102.9 == pytest.approx(lease.answers_until)
    assert lease.is_leading(104.0)


def test_who_waits_to_answer_is_told_by_the_next_renewal_that_lets_answers_leave() -> None:
    lease, told = leading_lease(), []
    assert not lease.when_renewed(101.0, lambda: told.append("not"))
    assert lease.when_renewed(105.0, lambda: told.append("one"))
    assert lease.when_renewed(105.0, lambda: told.append("two"))
    lease.renewed(sent_at=102.0, now=105.0)
    assert [] == told
    lease.renewed(sent_at=105.0, now=105.0)
    lease.renewed(sent_at=106.0, now=106.0)
    assert ["one", "two"] == told


def test_who_waits_to_answer_is_told_nothing_after_the_lease_was_lost() -> None:
    lease, told = new_lease(), []
    assert lease.when_renewed(100.0, lambda: told.append("told"))
    lease.lost()
    lease.renewed(sent_at=101.0, now=101.0)
    assert ([], -inf) == (told, lease.answers_until)


@pytest.mark.parametrize("margin_s", [-1.0, 10.0, 11.0])
def test_a_margin_that_leaves_nothing_is_a_bug(margin_s: float) -> None:
    with pytest.raises(AssertionError):
        Lease(10.0, margin_s, 2.0)


@pytest.mark.parametrize("answers_s", [0.0, 9.6])
def test_answers_without_time_or_beyond_the_lease_are_a_bug(answers_s: float) -> None:
    with pytest.raises(AssertionError):
        Lease(10.0, 0.5, answers_s)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["renewed", "caught up", "look", "lost"]),
            st.floats(0, 15),  # time that passes before
            st.floats(0, 30),  # how long the answer took
        )
    )
)
def test_it_leads_only_within_the_time_that_the_database_has_written_down(
    events: list[tuple[str, float, float]],
) -> None:
    lease = new_lease()
    now, granted_until, lost = 100.0, -inf, False
    for what, passed, took in events:
        now += passed
        if what == "renewed":
            # The database wrote down its time at some moment after the request was sent: at the earliest then.
            granted_until = max(granted_until, now - took + 10.0)
            state = lease.renewed(now - took, now)
        elif what == "lost":
            lost = True
            state = lease.lost()
        elif what == "caught up":
            state = lease.caught_up(inf, now) if lease.look(now) is RETURNING else lease.state
        else:
            state = lease.look(now)
        assert lease.is_leading(now) is (state in (LEADING, RETURNING))
        assert state is LEADING or not now < lease.answers_until
        assert not (lease.is_leading(now) and (lost or now >= granted_until - 0.4))
        assert not (now < lease.answers_until and (lost or now >= granted_until - 8.0))
        assert (state is FENCED) is lost
