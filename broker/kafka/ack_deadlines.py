"""Deadlines of Produce requests that wait for an fsync: when one has passed, the client is told that its request timed out.

Nearly all requests are answered within milliseconds. A timer for each would cost more than most of them are worth, so all are
checked together, a few times a second, as long as any request waits.
"""

from typing import Protocol

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

log = get_logger("kafka")

# How long (s) after its deadline a client is told, at most.
TICK_S = 0.25


class Waiting(Protocol):
    deadline: float  # Clock.monotonic() s

    def expire(self) -> None:
        """The deadline has passed, and the request has been removed here. Called on the timer's thread."""


class AckDeadlines:
    """Any thread may call ``add`` and ``remove``."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        self._waiting: dict[Waiting, None] = {}
        self._ticking = False
        self._lock = Lock()  # between threads that start the timer

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting] = None
        if not self._ticking:
            self._tick_on()

    def remove(self, waiting: Waiting) -> bool:
        """The request is answered. False if it was removed before: of all who call this, one may answer."""
        return self._waiting.pop(waiting, self) is None

    def _tick_on(self) -> None:
        with self._lock:
            if not self._ticking:
                self._ticking = True
                self._timer.at(self._clock.monotonic() + TICK_S, self._tick)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        for waiting in self._waiting.copy():
            if waiting.deadline <= now and self.remove(waiting):
                try:
                    waiting.expire()
                except Exception as error:  # the seam: what fails for one request is not to keep the others waiting
                    log.error("timer_callback_failed", exc_info=error)
        self._ticking = False  # cleared first: a request that is added after the next line starts the timer itself
        if self._waiting:
            self._tick_on()
