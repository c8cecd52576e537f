"""Bodies in loops: they stop when asked, and what ends them otherwise is reported."""

import threading

from broker.runtime.threads import SystemThreads
from tests.waiting import wait_for


class Counting:
    def __init__(self) -> None:
        self.steps = 0
        self.ident = 0
        self.bell = threading.Event()
        self.name = ""

    def step(self, timeout: float | None) -> bool:
        assert timeout is None
        self.steps += 1
        self.ident = SystemThreads.get_ident()
        self.name = threading.current_thread().name
        self.bell.wait()
        return True

    def wakeup(self) -> None:
        self.bell.set()


def test_body_steps_on_own_thread_until_stopped() -> None:
    body = Counting()
    crashes: list[BaseException] = []
    thread = SystemThreads().spawn("counting", body, crashes.append)
    wait_for(lambda: body.steps == 1)
    assert body.name == "counting"
    assert body.ident != SystemThreads.get_ident()
    body.bell.set()
    wait_for(lambda: body.steps > 100)
    assert thread.alive()
    assert thread.stop(20)
    steps = body.steps
    assert not thread.alive()
    assert body.steps == steps
    assert crashes == []


def test_stopping_wakes_a_body_that_waits() -> None:
    body = Counting()
    thread = SystemThreads().spawn("waiting", body, lambda _: None)
    wait_for(lambda: body.steps == 1)
    assert thread.stop(20)
    assert body.steps == 1


def test_body_that_does_not_listen_is_abandoned() -> None:
    body = Counting()
    body.wakeup = lambda: None  # type: ignore[method-assign]
    thread = SystemThreads().spawn("deaf", body, lambda _: None)
    wait_for(lambda: body.steps == 1)
    assert not thread.stop(0.01)
    assert thread.alive()
    body.bell.set()
    wait_for(lambda: not thread.alive())


def test_an_exception_ends_the_thread_and_is_reported() -> None:
    class Failing(Counting):
        def step(self, timeout: float | None) -> bool:
            raise KeyError("x")

    crashes: list[BaseException] = []
    thread = SystemThreads().spawn("failing", Failing(), crashes.append)
    wait_for(lambda: not thread.alive())
    assert [type(error) for error in crashes] == [KeyError]
    assert thread.stop(1)


def test_a_body_may_stop_its_own_thread() -> None:
    class Suicidal(Counting):
        def step(self, timeout: float | None) -> bool:
            self.steps += 1
            handed.wait()
            handle[0].stop()
            return True

    handle = []
    handed = threading.Event()
    body = Suicidal()
    handle.append(SystemThreads().spawn("own", body, lambda _: None))
    handed.set()
    wait_for(lambda: not handle[0].alive())
    assert body.steps == 1
