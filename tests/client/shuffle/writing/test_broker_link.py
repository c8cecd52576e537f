"""How long a writer tries to restore its connection."""

from broker.client.shuffle.writing.broker_link import Reconnecting


def test_delays_double_up_to_two_seconds() -> None:
    reconnecting, now, delays = Reconnecting(10.0), 100.0, []
    while (delay_s := reconnecting.lost(now)) is not None:
        delays.append(delay_s)
        now += delay_s
    assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0] == delays
    assert 100.0 == reconnecting.lost_at


def test_zero_timeout_gives_up_at_once() -> None:
    assert Reconnecting(0.0).lost(100.0) is None


def test_proven_connection_has_all_the_time_again() -> None:
    reconnecting = Reconnecting(1.0)
    assert 0.05 == reconnecting.lost(100.0)
    assert 0.1 == reconnecting.lost(100.9)
    reconnecting.proven()
    assert reconnecting.lost_at is None
    assert 0.05 == reconnecting.lost(102.0)


def test_held_back_connection_keeps_its_time_and_delay() -> None:
    reconnecting = Reconnecting(1.0)
    assert 0.05 == reconnecting.lost(100.0)
    reconnecting.held_back()
    assert 0.1 == reconnecting.lost(102.0)


def test_other_timeouts_end_with_the_time() -> None:
    reconnecting = Reconnecting(10.0)
    assert 20.0 == reconnecting.limit(20.0, 100.0)
    reconnecting.lost(100.0)
    assert 3.0 == reconnecting.limit(3.0, 101.0)
    assert 9.0 == reconnecting.limit(20.0, 101.0)
    assert 0.0 == reconnecting.limit(20.0, 111.0)
