"""The thread that reads the broker's figures every 5 s (`broker/network/figures.py`), from the start of the HTTP service on.

A figure that cannot be read costs that sample, not the thread.

Tests: tests/http/api/test_overview.py.
"""

from broker.log import EventLimit, get_logger
from broker.network.figures import Figures
from broker.network.history import STEP_S
from broker.runtime.clock import Clock
from broker.runtime.threads import Event

log = get_logger("http")


class Sampler:
    def __init__(self, figures: Figures, clock: Clock) -> None:
        self._figures = figures
        self._clock = clock
        self._event = Event()
        self._due = clock.monotonic()
        self._failures = EventLimit()

    def step(self, timeout: float | None) -> bool:
        now = self._clock.monotonic()
        if now < self._due:
            wait_s = self._due - now
            self._event.wait(wait_s if timeout is None else min(wait_s, timeout))
            self._event.clear()
            return False
        self._due = max(self._due + STEP_S, now + STEP_S / 2)
        self.sample()
        return True

    def sample(self) -> None:
        now = self._clock.monotonic()
        try:
            self._figures.sample(now, self._clock.time_ms())
        except Exception as error:  # the seam: a service's figure must not end the thread, and with it the broker
            unlogged = self._failures.take(now)
            if unlogged is not None:
                log.error("sample_failed", exc_info=error, unlogged_before=unlogged)

    def wakeup(self) -> None:
        self._event.set()
