"""Deadlines: in order, once, never early, and cancelled ones never."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime import system_runtime
from broker.runtime.clock import SystemClock
from broker.runtime.timers import Timer, TimerHandle
from tests.clocks import ManualClock
from tests.waiting import wait_for


def test_due_callbacks_run_by_deadline_then_request_order() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    calls: list[str] = []
    for name, deadline in (("late", 30.0), ("b", 20.0), ("a", 10.0), ("c", 20.0)):
        timer.at(clock.now + deadline, lambda name=name: calls.append(name))  # type: ignore[misc]
    assert not timer.step(0)
    clock.now += 20.0
    assert timer.step(0)
    assert calls == ["a", "b", "c"]
    clock.now += 10.0
    assert timer.step(None)
    assert calls == ["a", "b", "c", "late"]
    assert len(timer) == 0


def test_cancelled_deadline_is_not_called_and_cancelling_repeats() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    calls: list[int] = []
    handle = timer.at(clock.now + 1, lambda: calls.append(1))
    handle.cancel()
    handle.cancel()
    clock.now += 2
    timer.step(0)
    assert calls == []
    handle.cancel()  # long after


def test_raising_callback_does_not_stop_the_next() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    calls: list[int] = []
    timer.at(clock.now, lambda: 1 // 0)
    timer.at(clock.now, lambda: calls.append(1))
    timer.step(0)
    assert calls == [1]


def test_a_callback_may_set_and_cancel_deadlines() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    calls: list[str] = []
    doomed = timer.at(clock.now + 1, lambda: calls.append("doomed"))

    def first() -> None:
        calls.append("first")
        doomed.cancel()
        timer.at(clock.now, lambda: calls.append("second"))

    timer.at(clock.now, first)
    timer.step(0)
    clock.now += 1
    timer.step(0)
    assert calls == ["first", "second"]


def test_heap_full_of_cancelled_deadlines_is_cleared() -> None:
    # A long poll sets a deadline half a minute away and is answered at once, ten thousand times a second.
    clock = ManualClock()
    timer = Timer(clock)
    calls: list[int] = []
    timer.at(clock.now + 30, lambda: calls.append(1))
    for _ in range(10_000):
        timer.at(clock.now + 30, lambda: calls.append(0)).cancel()
    assert len(timer) < 300
    clock.now += 30
    timer.step(0)
    assert calls == [1]


def test_the_heap_stays_small_whichever_threads_cancel() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    handles = [timer.at(clock.now + 30, lambda: None) for _ in range(2000)]
    assert len(timer) == 2000

    def cancel(mine: int) -> None:
        for handle in handles[mine::4]:
            handle.cancel()
        for _ in range(2000):
            timer.at(clock.now + 30, lambda: None).cancel()

    threads = [threading.Thread(target=cancel, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # It was cleared at twice the number of live ones at the latest; then there are none.
    for _ in range(200):
        timer.at(clock.now + 30, lambda: None).cancel()
    assert len(timer) < 2 * 2000
    for _ in range(2 * 2000):
        timer.at(clock.now + 30, lambda: None).cancel()
    assert len(timer) <= 128


def test_a_cancelled_deadline_wakes_nobody() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    for _ in range(3):
        timer.at(clock.now + 1, lambda: None).cancel()
    assert timer.next_deadline() is None
    assert len(timer) == 0
    first = timer.at(clock.now + 1, lambda: None)
    timer.at(clock.now + 2, lambda: None)
    first.cancel()
    assert timer.next_deadline() == clock.now + 2


def test_only_earlier_deadline_wakes_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    timer = Timer(clock)
    woken: list[float] = []
    monkeypatch.setattr(timer._changed, "set", lambda: woken.append(clock.now))
    timer.step(0)
    first = timer.at(clock.now + 30, lambda: None)
    assert len(woken) == 1
    timer.step(0)
    first.cancel()
    timer.at(clock.now + 30, lambda: None)
    timer.at(clock.now + 31, lambda: None)
    assert len(woken) == 1
    timer.at(clock.now + 29, lambda: None)
    assert len(woken) == 2
    timer.at(clock.now + 29.5, lambda: None)
    assert len(woken) == 2, "it has been woken for an earlier one"


@pytest.mark.parametrize(
    ("deadlines", "timeout", "waits"),
    [
        pytest.param([], None, [None], id="no deadline"),
        pytest.param([], 5.0, [5.0], id="only a timeout"),
        pytest.param([], 0, [], id="no wait at all"),
        pytest.param([30.0, 20.0], None, [20.0], id="the earliest deadline"),
        pytest.param([20.0], 5.0, [5.0], id="a timeout before it"),
        pytest.param([20.0], 25.0, [20.0], id="a timeout after it"),
        pytest.param([20.0], 0, [], id="no wait in spite of a deadline"),
        pytest.param([-1.0], None, [], id="a deadline that has passed"),
    ],
)
def test_step_waits_as_long_as_nothing_is_due(
    deadlines: list[float], timeout: float | None, waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    timer = Timer(clock)
    waited: list[float | None] = []
    monkeypatch.setattr(timer._changed, "wait", waited.append)
    for deadline in deadlines:
        timer.at(clock.now + deadline, lambda: None)
    timer.step(timeout)
    assert waited == waits


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("at"), st.integers(0, 20)),
            st.tuples(st.just("cancel"), st.integers(0, 50)),
            st.tuples(st.just("pass"), st.integers(0, 10)),
        ),
        max_size=80,
    )
)
def test_every_deadline_is_met_once_unless_cancelled_before(steps: list[tuple[str, int]]) -> None:
    clock = ManualClock()
    timer = Timer(clock)
    called: list[int] = []
    handles: list[TimerHandle] = []
    live: dict[int, float] = {}
    for step, value in steps:
        if step == "at":
            number = len(handles)
            handles.append(timer.at(clock.now + value, lambda number=number: called.append(number)))  # type: ignore[misc]
            live[number] = clock.now + value
        elif step == "cancel" and handles:
            number = value % len(handles)
            handles[number].cancel()
            live.pop(number, None)
        else:
            clock.now += value
            called.clear()
            while timer.step(0):
                pass
            due = sorted((n for n in live if live[n] <= clock.now), key=lambda n: (live[n], n))
            assert called == due
            for number in due:
                del live[number]


def test_earlier_deadline_from_other_thread_shortens_the_wait() -> None:
    clock = SystemClock()
    timer = Timer(clock)
    crashes: list[BaseException] = []
    handle = system_runtime().threads.spawn("timer", timer, crashes.append)
    late, early = threading.Event(), threading.Event()
    timer.at(clock.monotonic() + 3600, late.set)
    asked = clock.monotonic()
    timer.at(asked + 0.02, early.set)
    wait_for(early.is_set)
    assert clock.monotonic() >= asked + 0.02
    assert not late.is_set()
    assert handle.stop(10)
    assert crashes == []


def test_timer_with_nothing_to_do_can_be_stopped() -> None:
    handle = system_runtime().threads.spawn("timer", Timer(SystemClock()), lambda _: None)
    assert handle.stop(10)
