"""Connections in all, per address, and new ones per second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.network.quota import ConnectionQuotas


def test_an_address_may_have_so_many_and_others_are_not_concerned() -> None:
    quotas = ConnectionQuotas(100, 2, {}, 0)
    assert quotas.open("a")
    assert quotas.open("a")
    assert not quotas.open("a")
    assert quotas.open("b")
    assert quotas.total == 3
    quotas.close("a")
    assert quotas.open("a")


def test_an_override_counts_for_its_address_only() -> None:
    quotas = ConnectionQuotas(100, 1, {"a": 3, "c": 0}, 0)
    assert [quotas.open("a") for _ in range(4)] == [True, True, True, False]
    assert [quotas.open("b") for _ in range(2)] == [True, False]
    assert not quotas.open("c")


def test_full_at_the_limit_and_not_before() -> None:
    quotas = ConnectionQuotas(2, 100, {}, 0)
    assert quotas.open("a")
    assert not quotas.full
    assert quotas.open("b")
    assert quotas.full
    quotas.close("a")
    assert not quotas.full


def test_a_lowered_limit_lets_exactly_the_excess_be_evicted_whoever_asks() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    for _ in range(5):
        quotas.open("a")
    quotas.configure(3, 10, {}, 0)
    # Each processor asks for each victim: together they must not close more than there are too many.
    assert [quotas.evict("a") for _ in range(4)] == [True, True, False, False]
    assert quotas.total == 3


def test_closing_what_was_never_opened_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        ConnectionQuotas(10, 10, {}, 0).close("a")


def test_without_a_rate_nobody_waits() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    assert [quotas.delay(0.0) for _ in range(1000)] == [0.0] * 1000


def test_a_second_allows_its_rate_and_the_next_one_must_wait_exactly_long_enough() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 4)
    now = 50.0
    assert [quotas.delay(now) for _ in range(4)] == [0.0] * 4
    wait = quotas.delay(now)
    assert 0 < wait <= 0.25
    assert quotas.delay(now + wait / 2) > 0
    assert quotas.delay(now + wait) == 0.0


def test_a_refunded_allowance_is_there_for_the_next() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 1)
    assert quotas.delay(50.0) == 0.0
    quotas.refund()
    assert quotas.delay(50.0) == 0.0
    assert quotas.delay(50.0) > 0


def test_a_rate_below_one_still_lets_one_in_from_time_to_time() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0.5)
    assert quotas.delay(50.0) == 0.0
    assert quotas.delay(51.0) > 0
    assert quotas.delay(52.0) == 0.0


@given(
    rate=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 2), max_size=200),
)
def test_in_no_stretch_of_time_more_come_than_its_rate_and_one_burst(rate: int, gaps: list[float]) -> None:
    quotas = ConnectionQuotas(10, 10, {}, rate)
    now, allowed = 100.0, 0
    for gap in gaps:
        now += gap
        allowed += quotas.delay(now) == 0.0
    assert allowed <= rate + rate * (now - 100.0) + 1e-6
