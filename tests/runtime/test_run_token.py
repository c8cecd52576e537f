"""One at a time, in the order in which they came; and a thread that is stuck delays nobody for long."""

import sys
import threading
import time
from collections.abc import Callable

import pytest

from broker.runtime.run_token import RunToken, TokenHolder, new_run_token
from tests.network.harness import wait_for

# Of tests in which nobody is to wait in vain. Only a hang takes so long.
PATIENCE_S = 60.0


def run_all(*works: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S / 2)
        assert not thread.is_alive(), "the token was lost"
    assert errors == []


def begin(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("interval", [1e-6, 0.005])
def test_one_at_a_time_and_nobody_is_forgotten(interval: float) -> None:
    token = RunToken(PATIENCE_S)
    at_work = [0]
    switch_interval = sys.getswitchinterval()

    def work() -> None:
        holder = TokenHolder(token)
        for number in range(3000):
            holder.take()
            assert holder.held
            at_work[0] += 1
            assert at_work == [1]
            if number % 50 == 0:
                time.sleep(0)
            at_work[0] -= 1
            holder.give()

    sys.setswitchinterval(interval)
    try:
        run_all(*[work] * 4)
    finally:
        sys.setswitchinterval(switch_interval)
    assert not token.waiting
    assert not token.overdue
    assert not token.lock.locked()


def test_it_goes_to_who_has_waited_longest() -> None:
    token = RunToken(PATIENCE_S)
    first = TokenHolder(token)
    assert not first.take()  # it did not have to wait
    order: list[str] = []

    def work(name: str) -> None:
        holder = TokenHolder(token)
        assert holder.take()
        order.append(name)
        holder.give()

    threads = []
    for number, name in enumerate("abc", 1):
        threads.append(begin(lambda name=name: work(name)))  # type: ignore[misc]
        wait_for(lambda number=number: len(token.waiting) == number)  # type: ignore[misc]
    assert first.waiting
    first.give()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == ["a", "b", "c"]
    assert not token.lock.locked()


def test_who_gives_it_up_may_take_it_again_behind_the_others() -> None:
    token = RunToken(PATIENCE_S)
    one, other = TokenHolder(token), TokenHolder(token)
    one.take()
    has_it, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        other.take()
        has_it.set()
        goes_on.wait(PATIENCE_S)
        other.give()

    thread = begin(work)
    wait_for(lambda: len(token.waiting) == 1)
    one.give()
    assert has_it.wait(PATIENCE_S)
    again = begin(one.take)
    wait_for(lambda: len(token.waiting) == 1)
    goes_on.set()
    thread.join(PATIENCE_S)
    again.join(PATIENCE_S)
    assert one.held
    one.give()
    one.give()  # does nothing
    assert not token.lock.locked()


def test_one_that_is_stuck_is_waited_for_once() -> None:
    token = RunToken(0.01)
    stuck, one, other = (TokenHolder(token) for _ in range(3))
    stuck.take()
    assert one.take()
    assert not one.held
    assert not token.waiting
    for holder in (one, other):
        assert not holder.take()
        assert not holder.held
        holder.give()  # it has none; it works without
    assert stuck.held
    stuck.give()
    assert not other.take()
    assert other.held
    assert one.take()  # they wait for each other again
    assert not one.held


def test_one_whose_patience_ends_while_the_token_is_handed_over_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    token = RunToken(PATIENCE_S)
    holder, late = TokenHolder(token), TokenHolder(token)
    holder.take()

    class Bell:
        """Gives up as soon as it is asked, but the token comes just before this thread can say so."""

        def __init__(self) -> None:
            self.rung = 0

        def acquire(self, timeout: float = -1) -> bool:
            if timeout >= 0:
                holder.give()
                return False
            self.rung -= 1
            return True

        def release(self) -> None:
            self.rung += 1

    bell = late._bell = Bell()  # type: ignore[assignment]
    assert late.take()
    assert late.held
    assert bell.rung == 0  # it will wait for the next one
    assert not token.overdue
    late.give()
    assert not token.lock.locked()


def test_one_that_begins_to_wait_while_the_token_is_given_up_gets_it() -> None:
    token = RunToken(PATIENCE_S)
    holder = TokenHolder(token)
    holder.take()
    bell = threading.Lock()
    bell.acquire()
    release = holder._release

    def and_another_one_comes() -> None:
        token.waiting.append(bell)  # it has tried the lock before
        release()

    holder._release = and_another_one_comes
    holder.give()
    assert bell.acquire(blocking=False)
    assert token.lock.locked()  # it is the other one's now


def test_one_that_is_not_seen_to_wait_takes_what_was_given_up() -> None:
    token = RunToken(PATIENCE_S)
    holder, other = TokenHolder(token), TokenHolder(token)
    holder.take()
    tried = other._try

    def and_then_it_is_given_up(blocking: bool) -> bool:
        assert not tried(blocking)
        other._try = tried
        holder.give()
        return False

    other._try = and_then_it_is_given_up
    assert other.take()
    assert other.held
    assert not token.waiting


def test_there_is_none_where_threads_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_locked in (True, False):
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda locked=is_locked: locked, raising=False)
        assert (new_run_token() is not None) == is_locked
    monkeypatch.delattr(sys, "_is_gil_enabled")
    assert new_run_token() is not None  # before Python 3.13
