"""Produce requests that wait for their fsync, and until when: past its time-out a client is told so.

Nearly all are answered within milliseconds. So none has a timer of its own, which would cost the usual request more than it is
worth: all are looked at together, a few times a second, as long as there are any.
"""

from typing import Protocol

from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

# How late (s) a client may be told.
TICK_S = 0.25


class Waiting(Protocol):
    deadline: float  # Clock.monotonic() s

    def expire(self) -> None:
        """It is over. On the timer's thread; may come at the same time as what was waited for."""


class AckDeadlines:
    """Any thread may call ``add`` and ``remove``."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        self._waiting: dict[Waiting, None] = {}
        self._ticking = False
        self._lock = Lock()  # between those that begin to tick

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting] = None
        if not self._ticking:
            self._tick_on()

    def remove(self, waiting: Waiting) -> None:
        """It was answered. No error if it is not there any more."""
        self._waiting.pop(waiting, None)

    def _tick_on(self) -> None:
        with self._lock:
            if not self._ticking:
                self._ticking = True
                self._timer.at(self._clock.monotonic() + TICK_S, self._tick)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        for waiting in self._waiting.copy():
            if waiting.deadline <= now:
                self.remove(waiting)
                waiting.expire()
        self._ticking = False  # first: whoever is added after the next line ticks on by itself
        if self._waiting:
            self._tick_on()
