"""Connections in all, per address, and new ones per second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.network import quota
from broker.network.quota import ConnectionQuotas, ListenerLimits
from broker.network.service import Peer


def test_address_limit_does_not_affect_other_addresses() -> None:
    quotas = ConnectionQuotas(100, 2, {}, 0)
    assert quotas.open("a", "l")
    assert quotas.open("a", "l")
    assert not quotas.open("a", "l")
    assert quotas.open("b", "l")
    assert quotas.total == 3
    quotas.close("a", "l")
    assert quotas.open("a", "l")


def test_an_override_counts_for_its_address_only() -> None:
    quotas = ConnectionQuotas(100, 1, {"a": 3, "c": 0}, 0)
    assert [quotas.open("a", "l") for _ in range(4)] == [True, True, True, False]
    assert [quotas.open("b", "l") for _ in range(2)] == [True, False]
    assert not quotas.open("c", "l")


def test_full_at_the_limit_and_not_before() -> None:
    quotas = ConnectionQuotas(2, 100, {}, 0)
    assert quotas.open("a", "l")
    assert not quotas.full
    assert quotas.open("b", "l")
    assert quotas.full
    quotas.close("a", "l")
    assert not quotas.full


def test_lowered_limit_evicts_exactly_the_excess() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    for _ in range(5):
        quotas.open("a", "l")
    quotas.configure(3, 10, {}, 0)
    # Each processor asks for each victim: together they must not close more than there are too many.
    assert [quotas.evict("a", "l") for _ in range(4)] == [True, True, False, False]
    assert quotas.total == 3


def test_a_suspended_listener_takes_no_connection_and_the_others_do() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    quotas.suspend(frozenset({"l"}))
    assert (False, True) == (quotas.open("a", "l"), quotas.open("a", "m"))
    before = [Peer("a", 1, listener, ("b", 2)) for listener in "lm"]
    quotas.resume()
    assert [True, False] == [quotas.outlived(peer) for peer in before]
    assert not quotas.outlived(Peer("a", 1, "l", ("b", 2), quotas.suspensions))
    assert quotas.open("a", "l")
    assert (2, {}) == (quotas.total, dict(quotas.refused))


def test_closing_what_was_never_opened_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        ConnectionQuotas(10, 10, {}, 0).close("a", "l")


def test_without_a_rate_nobody_waits() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    assert [quotas.delay(0.0, "l") for _ in range(1000)] == [0.0] * 1000


def test_rate_allows_its_number_then_waits_exactly() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 4)
    now = 50.0
    assert [quotas.delay(now, "l") for _ in range(4)] == [0.0] * 4
    wait = quotas.delay(now, "l")
    assert 0 < wait <= 0.25
    assert quotas.delay(now + wait / 2, "l") > 0
    assert quotas.delay(now + wait, "l") == 0.0


def test_a_refunded_allowance_is_there_for_the_next() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 1)
    assert quotas.delay(50.0, "l") == 0.0
    quotas.refund("l")
    assert quotas.delay(50.0, "l") == 0.0
    assert quotas.delay(50.0, "l") > 0


def test_rate_below_one_still_accepts_sometimes() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0.5)
    assert quotas.delay(50.0, "l") == 0.0
    assert quotas.delay(51.0, "l") > 0
    assert quotas.delay(52.0, "l") == 0.0


@given(
    rate=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 2), max_size=200),
)
def test_any_interval_accepts_at_most_rate_plus_burst(rate: int, gaps: list[float]) -> None:
    quotas = ConnectionQuotas(10, 10, {}, rate)
    now, allowed = 100.0, 0
    for gap in gaps:
        now += gap
        allowed += quotas.delay(now, "l") == 0.0
    assert allowed <= rate + rate * (now - 100.0) + 1e-6


def limited(**listeners: ListenerLimits) -> ConnectionQuotas:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    quotas.configure(10, 10, {}, 0, listeners)
    return quotas


def test_a_listener_that_is_full_waits_alone() -> None:
    quotas = limited(l=ListenerLimits(max_connections=1))
    assert quotas.open("a", "l")
    assert quotas.full_for("l")
    assert not quotas.full_for("other")
    assert not quotas.full
    quotas.close("a", "l")
    assert not quotas.full_for("l")


def test_listener_at_its_rate_waits_alone() -> None:
    quotas = limited(l=ListenerLimits(max_per_second=1.0))
    quotas.configure(10, 10, {}, 2, {"l": ListenerLimits(max_per_second=1.0)})
    assert quotas.delay(50.0, "l") == 0.0
    assert quotas.delay(50.0, "l") == 1.0
    assert quotas.delay(50.0, "other") == 0.0
    assert quotas.delay(50.0, "other") == 0.5
    quotas.refund("l")
    assert quotas.delay(50.0, "l") == 0.0


def test_protected_listener_has_own_limit_and_evicts_others() -> None:
    quotas = ConnectionQuotas(2, 10, {}, 1)
    quotas.protect("control", 2)
    for _ in range(2):
        assert quotas.open("a", "l")
    assert quotas.full_for("l")
    assert not quotas.full_for("control")
    assert [quotas.delay(50.0, "control") for _ in range(3)] == [0.0] * 3  # nor does the broker's rate concern it
    for _ in range(2):
        assert quotas.open("a", "control")
    assert quotas.full_for("control")
    assert quotas.excess == 2
    assert not quotas.evict("a", "control")
    assert [quotas.evict("a", "l") for _ in range(3)] == [True, True, False]
    assert quotas.of_listener() == {"control": 2}
    assert dict(quotas.evicted) == {"l": 2}


def test_limits_of_addresses_do_not_concern_the_nodes() -> None:
    quotas = ConnectionQuotas(10, 2, {}, 0)
    quotas.connection_rate = {"a": 1.0}.get
    quotas.protect("nodes", 5, of_nodes=True)
    assert [quotas.open("a", "l") for _ in range(3)] == [True, True, False]
    assert [quotas.open("a", "nodes") for _ in range(3)] == [True, True, True]
    assert [quotas.throttle("a", 50.0, "nodes") for _ in range(3)] == [0.0, 0.0, 0.0]
    quotas.close("a", "l")
    assert quotas.open("a", "l")
    assert not quotas.open("a", "l")
    for _ in range(3):
        quotas.close("a", "nodes")
    assert quotas.of_listener() == {"l": 2}
    assert not quotas.crowded
    quotas.protect("nodes", 0, of_nodes=True)
    assert quotas.crowded == ["nodes"]


def test_fast_connecting_address_is_slowed_alone() -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    quotas.connection_rate = {"a": 2.0, "slow": 0.1}.get
    assert [quotas.throttle("a", 50.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert [quotas.throttle("b", 50.0) for _ in range(50)] == [0.0] * 50
    assert quotas.throttle("a", 50.5) == 0.0
    assert [quotas.throttle("slow", 50.0) for _ in range(2)] == [0.0, 1.0]  # not for 10 s: Kafka's window is 1 s


def test_addresses_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_ADDRESSES_MAX", 10)
    quotas = ConnectionQuotas(10, 10, {}, 0)
    quotas.connection_rate = lambda _: 1.0
    for n in range(1000):
        assert quotas.throttle(str(n), 50.0) == 0.0
    assert len(quotas._addresses) == 10
    assert quotas.throttle("999", 50.0) > 0


@given(rate=st.integers(1, 20), gaps=st.lists(st.floats(0, 1), max_size=100))
def test_any_interval_accepts_bounded_connections_from_an_address(rate: int, gaps: list[float]) -> None:
    quotas = ConnectionQuotas(10, 10, {}, 0)
    quotas.connection_rate = lambda _: float(rate)
    now, allowed = 100.0, 0
    for gap in gaps:
        now += gap
        allowed += quotas.throttle("a", now) == 0.0
    assert allowed <= rate + rate * (now - 100.0) + 1e-6


LISTENERS, ADDRESSES = ["l", "m", "control"], ["a", "b"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "close", "evict", "limit"]),
            st.sampled_from(ADDRESSES),
            st.sampled_from(LISTENERS),
            st.integers(0, 4),
        ),
        max_size=80,
    )
)
def test_counts_always_equal_the_open_connections(
    events: list[tuple[str, str, str, int]],
) -> None:
    quotas = ConnectionQuotas(4, 3, {"b": 2}, 0)
    quotas.protect("control", 2)
    there: list[tuple[str, str]] = []
    for event, address, listener, number in events:
        if event == "open" and not quotas.full_for(listener):
            if quotas.open(address, listener):
                there.append((address, listener))
        elif event == "close" and (address, listener) in there:
            quotas.close(address, listener)
            there.remove((address, listener))
        elif event == "evict" and (address, listener) in there:
            before = quotas.excess
            if quotas.evict(address, listener):
                assert before > 0
                assert listener != "control"
                there.remove((address, listener))
            else:
                assert before == 0 or listener == "control"
        elif event == "limit":
            quotas.configure(number, 3, {"b": 2}, 0, {"l": ListenerLimits(2)})
        assert quotas.total == len(there)
        assert quotas.of_listener() == {name: n for name in LISTENERS if (n := sum(x == name for _, x in there))}
        assert all(sum(x == name for x, _ in there) <= most for name, most in (("a", 3), ("b", 2)))
        assert sum(x == "control" for _, x in there) <= 2
