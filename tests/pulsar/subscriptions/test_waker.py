"""The waker."""

import pytest

from broker.pulsar.subscriptions.waker import Waker


def test_work_is_done_in_order_and_a_failure_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    waker, done = Waker(), []
    waker.call(lambda: done.append(1))
    waker.call(lambda: 1 // 0)
    waker.call(lambda: done.append(2))
    while waker.step(0):
        pass
    assert [1, 2] == done


def test_it_can_be_woken_without_work() -> None:
    waker = Waker()
    waker.wakeup()
    assert not waker.step(None)
