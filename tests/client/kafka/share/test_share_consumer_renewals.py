"""The thread that renews locks: when it does, and when it stops."""

import queue
from math import inf

from broker.client.kafka.share.share_consumer import Renewals
from broker.runtime.clock import SystemClock

LIMIT_S = 60.0


class Engine:
    """``next_in_s``: the time until the next call; ``asked``: the calls so far."""

    def __init__(self, next_in_s: float) -> None:
        self.asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.next_in_s = next_in_s

    def renew(self, automatic: bool) -> float:
        self.asked.put(automatic)
        return SystemClock.monotonic() + self.next_in_s

    def crashed(self, error: BaseException) -> None:
        raise AssertionError from error


def came_within(engine: Engine, seconds: float) -> bool:
    try:
        engine.asked.get(timeout=seconds)
    except queue.Empty:
        return False
    return True


def test_due_locks_are_renewed_again_and_again() -> None:
    engine = Engine(0.01)
    renewals = Renewals(engine.renew, engine.crashed, SystemClock(), LIMIT_S)
    renewals.look()
    assert [engine.asked.get(timeout=LIMIT_S) for _ in range(3)] == [True] * 3
    assert renewals.stop(LIMIT_S)


def test_only_requested_locks_are_renewed_without_automatic_renewal() -> None:
    engine = Engine(inf)
    renewals = Renewals(engine.renew, engine.crashed, SystemClock(), 0.0)
    assert not renewals.is_automatic
    renewals.look()
    assert engine.asked.get(timeout=LIMIT_S) is False
    assert not came_within(engine, 0.1)
    renewals.look()
    assert engine.asked.get(timeout=LIMIT_S) is False
    assert renewals.stop(LIMIT_S)


def test_idle_worker_loses_its_locks() -> None:
    engine = Engine(0.01)
    renewals = Renewals(engine.renew, engine.crashed, SystemClock(), 0.1)
    renewals.look()
    assert engine.asked.get(timeout=LIMIT_S)
    while came_within(engine, 2.0):  # without a limit, a call would come every 10 ms
        pass
    assert renewals.stop(LIMIT_S)


def test_crash_is_reported() -> None:
    crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def broken(automatic: bool) -> float:
        raise ZeroDivisionError

    renewals = Renewals(broken, crashes.put, SystemClock(), 1.0)
    renewals.look()
    assert isinstance(crashes.get(timeout=LIMIT_S), ZeroDivisionError)
    assert renewals.stop(LIMIT_S)
