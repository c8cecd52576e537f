"""The thread that reads the broker's figures every 5 s (`broker/network/figures.py`), from the start of the HTTP service on, and
feeds the streams that show them.

A figure that cannot be read costs that sample, not the thread.

Tests: tests/http/api/test_overview.py.
"""

from collections.abc import Callable, Sequence

from broker.log import EventLimit, get_logger
from broker.network.figures import Figures
from broker.network.history import STEP_S
from broker.runtime.clock import Clock
from broker.runtime.threads import Event

log = get_logger("http")

_TICK_S = 1.0


class Sampler:
    def __init__(
        self,
        figures: Figures,
        clock: Clock,
        sampled: Sequence[Callable[[], object]] = (),
        ticked: Sequence[Callable[[], object]] = (),
    ) -> None:
        """``sampled`` are called after each sample, ``ticked`` every second."""
        self._figures = figures
        self._clock = clock
        self._sampled = sampled
        self._ticked = ticked
        self._event = Event()
        self._due = self._next_tick = clock.monotonic()
        self._failures = EventLimit()

    def step(self, timeout: float | None) -> bool:
        now = self._clock.monotonic()
        wait_s = min(self._due, self._next_tick) - now
        if wait_s > 0:
            self._event.wait(wait_s if timeout is None else min(wait_s, timeout))
            self._event.clear()
            return False
        if now >= self._due:
            self._due = max(self._due + STEP_S, now + STEP_S / 2)
            self.sample()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            for tick in self._ticked:
                self._guarded(tick)
        return True

    def sample(self) -> None:
        self._guarded(lambda: self._figures.sample(self._clock.monotonic(), self._clock.time_ms()))
        for sampled in self._sampled:
            self._guarded(sampled)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # the seam: a service's figure must not end the thread, and with it the broker
            unlogged = self._failures.take(self._clock.monotonic())
            if unlogged is not None:
                log.error("sample_failed", exc_info=error, unlogged_before=unlogged)

    def wakeup(self) -> None:
        self._event.set()
