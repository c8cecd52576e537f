"""Deadlines: long polls, group sessions, throttles.

``at`` and ``cancel`` may be called from any thread. Callbacks run on the timer thread and must be quick: longer work belongs on
a handler.
"""

import heapq
from collections.abc import Callable

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Event, Lock

log = get_logger("network")


class TimerHandle:
    """One deadline. ``cancel`` may come too late: a callback may still be called once after it."""

    __slots__ = ("_callback", "_timer", "deadline", "sequence")

    def __init__(self, timer: "Timer", deadline: float, sequence: int, callback: Callable[[], None]) -> None:
        self._timer = timer
        self.deadline = deadline
        self.sequence = sequence
        self._callback: Callable[[], None] | None = callback

    def __lt__(self, other: "TimerHandle") -> bool:
        return (self.deadline, self.sequence) < (other.deadline, other.sequence)

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None
            self._timer._cancelled()

    def take(self) -> Callable[[], None] | None:
        """The callback, once."""
        callback, self._callback = self._callback, None
        return callback


class Timer:
    """The body of the timer thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._heap: list[TimerHandle] = []
        self._sequence = 0
        self._dead = 0  # cancelled handles still in the heap
        self._changed = Event()

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, deadline: float, callback: Callable[[], None]) -> TimerHandle:
        """Call ``callback`` once ``clock.monotonic()`` has reached ``deadline`` (s)."""
        with self._lock:
            self._sequence += 1
            handle = TimerHandle(self, deadline, self._sequence, callback)
            heapq.heappush(self._heap, handle)
            first = self._heap[0] is handle
        if first:
            self._changed.set()
        return handle

    def next_deadline(self) -> float | None:
        with self._lock:
            return self._heap[0].deadline if self._heap else None

    def step(self, timeout: float | None) -> bool:
        deadline = self.next_deadline()
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
            while self._heap and self._heap[0].deadline <= now:
                due.append(heapq.heappop(self._heap))
        return due

    def _cancelled(self) -> None:
        # Most long polls are answered before their deadline: without this the heap would keep their handles for seconds.
        with self._lock:
            self._dead += 1
            if self._dead > 64 and self._dead * 2 > len(self._heap):
                self._heap = [handle for handle in self._heap if handle._callback is not None]
                heapq.heapify(self._heap)
                self._dead = 0
