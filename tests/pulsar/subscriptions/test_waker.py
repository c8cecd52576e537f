"""The waker."""

from functools import partial

import pytest

from broker.pulsar.subscriptions.waker import Waker


def test_work_runs_in_order_despite_failures(capsys: pytest.CaptureFixture[str]) -> None:
    waker, done = Waker(), []
    line = waker.line()
    line.call(lambda: done.append(1))
    line.call(lambda: 1 // 0)
    line.call(lambda: done.append(2))
    while waker.step(0):
        pass
    assert [1, 2] == done


def test_busy_topic_takes_turns_with_others() -> None:
    waker = Waker()
    done: list[object] = []
    much, little = waker.line(), waker.line()
    for number in range(1000):
        much.call(partial(done.append, number))
    little.call(partial(done.append, "other"))
    for _ in range(2):
        assert waker.step(0)
    assert [0, "other"] == done
    while waker.step(0):
        pass
    assert [*range(1000)] == [one for one in done if one != "other"]


def test_it_can_be_woken_without_work() -> None:
    waker = Waker()
    waker.wakeup()
    assert not waker.step(None)
