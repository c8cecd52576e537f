"""One at a time, in the order in which they came; and a thread that is stuck delays nobody for long."""

import sys
import threading
import time
from collections.abc import Callable

import pytest

from broker.runtime.run_token import BLIND_LOOKS, LOOKS, RunToken, TokenHolder, new_run_token
from tests.waiting import wait_for

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
    assert not token.rests_until
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


def test_thread_giving_up_token_may_queue_for_it() -> None:
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


def take_on_another_thread(holder: TokenHolder, then: Callable[[threading.Event], object]) -> Callable[[], None]:
    """It has waited for the token once, so that its clock is known, and does ``then`` with it until the result is called."""
    token, ended = holder._token, threading.Event()
    first = TokenHolder(token)
    first.take()
    patience_s, token.patience_s = token.patience_s, PATIENCE_S  # not to give up before it is given the token

    def work() -> None:
        holder.take()
        then(ended)
        holder.give()

    thread = begin(work)
    wait_for(lambda: len(token.waiting) == 1)
    first.give()
    wait_for(lambda: holder.held)
    token.patience_s = patience_s

    def end() -> None:
        ended.set()
        thread.join(PATIENCE_S)

    return end


def sleep(ended: threading.Event) -> None:
    ended.wait(PATIENCE_S)


def compute(ended: threading.Event) -> None:
    while not ended.is_set():
        pass


def test_stuck_holder_is_not_waited_for_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    token = RunToken(0.01, rest_s=PATIENCE_S)
    stuck, one, other = (TokenHolder(token) for _ in range(3))
    end = take_on_another_thread(stuck, sleep)
    looks: list[float | None] = []
    cpu_s = TokenHolder.cpu_s

    def looked(holder: TokenHolder) -> float | None:
        looks.append(cpu_s(holder))
        return looks[-1]

    monkeypatch.setattr(TokenHolder, "cpu_s", looked)
    assert one.take()
    assert not one.held
    assert len(looks) <= 3
    assert not token.waiting
    for holder in (one, other):
        assert not holder.take()
        assert not holder.held
        holder.give()  # it has none; it works without
    end()
    assert not other.take()
    assert other.held
    assert not one.take()  # even now
    token.rests_until = 0.0
    token.patience_s = 0.001
    assert one.take()  # they wait for each other again
    assert not one.held
    other.give()


@pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid"), reason="the CPU time of another thread is not known here"
)
def test_one_that_computes_is_waited_for_longer() -> None:
    token = RunToken(0.02)
    busy, other = TokenHolder(token), TokenHolder(token)
    end = take_on_another_thread(busy, compute)
    looks: list[bool] = []
    cpu_s = busy.cpu_s

    class Watched(TokenHolder):
        """Ends the work at the third look."""

        def cpu_s(self) -> float | None:
            looks.append(True)
            if len(looks) == 3:
                end()
            return cpu_s()

    watched = Watched(token)
    token.holder = watched
    assert other.take()
    assert other.held
    assert len(looks) >= 3
    assert not token.rests_until
    other.give()


def test_holder_that_waits_for_cpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    token = RunToken(0.01)
    busy, other = TokenHolder(token), TokenHolder(token)
    end = take_on_another_thread(busy, compute)
    monkeypatch.setattr(TokenHolder, "cpu_s", lambda _: 1.0)  # it gets none
    looks: list[bool] = []
    is_ready = TokenHolder.is_ready

    def looked(holder: TokenHolder) -> bool:
        looks.append(is_ready(holder))
        if len(looks) == 3:
            end()
        return True

    monkeypatch.setattr(TokenHolder, "is_ready", looked)
    assert other.take()
    assert other.held
    assert any(looks) or sys.platform != "linux"
    other.give()


def test_thread_that_sleeps_or_ended_is_not_ready() -> None:
    holder = TokenHolder(RunToken(PATIENCE_S))
    assert not holder.is_ready()
    assert holder.cpu_s() is None
    end = take_on_another_thread(holder, sleep)
    wait_for(lambda: not holder.is_ready())
    used = holder.cpu_s()
    assert used is None or 0 < used < PATIENCE_S
    end()
    wait_for(lambda: not holder.is_ready() and not holder.cpu_s())


@pytest.mark.parametrize("is_known", [True, False])
def test_nobody_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    token = RunToken(0.001)
    busy, other = TokenHolder(token), TokenHolder(token)
    end = take_on_another_thread(busy, compute)
    looks: list[float] = []

    def cpu_s(_: TokenHolder) -> float | None:
        looks.append(len(looks))
        return looks[-1] if is_known else None

    monkeypatch.setattr(TokenHolder, "cpu_s", cpu_s)
    assert other.take()
    assert not other.held
    assert len(looks) == 1 + (LOOKS if is_known else BLIND_LOOKS)
    assert token.rests_until
    end()


def test_waiter_has_token_if_patience_ends_during_handover(monkeypatch: pytest.MonkeyPatch) -> None:
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
                token.patience_s = PATIENCE_S
                return False
            self.rung -= 1
            return True

        def release(self) -> None:
            self.rung += 1

    bell = late.bell = Bell()  # type: ignore[assignment]
    assert late.take()
    assert late.held
    assert bell.rung == 0  # it will wait for the next one
    assert not token.rests_until
    late.give()
    assert not token.lock.locked()


def test_new_waiter_gets_token_that_is_being_released() -> None:
    token = RunToken(PATIENCE_S)
    holder = TokenHolder(token)
    holder.take()
    other = TokenHolder(token)
    release = holder._release

    def and_another_one_comes() -> None:
        token.waiting.append(other)  # it has tried the lock before
        release()

    holder._release = and_another_one_comes
    holder.give()
    assert other.bell.acquire(blocking=False)
    assert token.lock.locked()  # it is the other one's now
    assert token.holder is other


def test_unseen_waiter_takes_a_token_that_was_released() -> None:
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


def test_no_token_where_threads_run_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_locked in (True, False):
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda locked=is_locked: locked, raising=False)
        assert (new_run_token() is not None) == is_locked
    monkeypatch.delattr(sys, "_is_gil_enabled")
    assert new_run_token() is not None  # before Python 3.13
