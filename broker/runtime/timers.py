"""Deadlines: long polls, group sessions, throttles.

``at`` and ``cancel`` may be called from any thread. Callbacks run on the timer thread and must be quick: longer work belongs on
a handler.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Event, Lock

log = get_logger("network")

# With fewer handles than this the heap is not cleared of cancelled ones.
_CLEARED_MIN = 128


class TimerHandle:
    """One deadline. ``cancel`` may come too late: a callback may still be called once after it."""

    __slots__ = ("_callback", "deadline")

    def __init__(self, deadline: float, callback: Callable[[], None]) -> None:
        self.deadline = deadline
        self._callback: Callable[[], None] | None = callback

    @property
    def is_live(self) -> bool:
        """Neither cancelled nor called."""
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None

    def take(self) -> Callable[[], None] | None:
        """The callback, once."""
        callback, self._callback = self._callback, None
        return callback


class Timer:
    """The body of the timer thread.

    Most long polls are answered before their deadline, so setting and cancelling must cost next to nothing. A cancelled
    handle stays in the heap until it comes to the front, or until the heap has twice as many handles as were left when it was
    last cleared. The thread is woken only for a deadline before that for which it waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._heap: list[tuple[float, int, TimerHandle]] = []  # in the order of deadlines, and then of asking
        self._sequence = 0
        self._wakes_at = inf  # the deadline for which the thread waits, or that it has been woken for
        # With so many handles the heap is cleared. Cancelled ones are not counted: threads that cancel would wait for each other.
        self._clear_at = _CLEARED_MIN
        self._changed = Event()

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, deadline: float, callback: Callable[[], None]) -> TimerHandle:
        """Call ``callback`` once ``clock.monotonic()`` has reached ``deadline`` (s)."""
        handle = TimerHandle(deadline, callback)
        with self._lock:
            self._sequence += 1
            heappush(self._heap, (deadline, self._sequence, handle))
            if len(self._heap) >= self._clear_at:
                self._heap = [entry for entry in self._heap if entry[2].is_live]
                heapify(self._heap)
                self._clear_at = max(_CLEARED_MIN, 2 * len(self._heap))
            wakes = deadline < self._wakes_at
            if wakes:
                self._wakes_at = deadline
        if wakes:
            self._changed.set()
        return handle

    def next_deadline(self) -> float | None:
        with self._lock:
            return self._next_deadline()

    def _next_deadline(self) -> float | None:
        heap = self._heap
        while heap and not heap[0][2].is_live:
            heappop(heap)
        return heap[0][0] if heap else None

    def step(self, timeout: float | None) -> bool:
        with self._lock:
            deadline = self._next_deadline()
            self._wakes_at = inf if deadline is None else deadline
        if deadline is not None:
            remaining = max(0.0, deadline - self._clock.monotonic())
            timeout = remaining if timeout is None else min(timeout, remaining)
        if timeout != 0:
            self._changed.wait(timeout)
        self._changed.clear()
        due = self._due()
        for handle in due:
            callback = handle.take()
            if callback is None:
                continue
            try:
                callback()
            except Exception as error:  # a callback that fails must not stop the other deadlines
                log.error("timer_callback_failed", exc_info=error)
        return bool(due)

    def wakeup(self) -> None:
        self._changed.set()

    def _due(self) -> list[TimerHandle]:
        now = self._clock.monotonic()
        due = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                due.append(heappop(self._heap)[2])
        return due
