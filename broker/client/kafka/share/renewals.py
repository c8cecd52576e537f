"""Renews locks on a thread of its own: those that the user asks for, and on request all of them while users work on records.

Automatic renewals happen when half of a lock's time is over, and only for ``limit_s`` after the consumer last asked for records:
a worker that hangs must not keep its records forever.

Tests: tests/client/kafka/share/test_renewals.py.
"""

from collections.abc import Callable
from math import inf

from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, SystemThreads, ThreadHandle


class Renewals:
    """``renew`` takes whether to renew what is due, and returns when something will be due (monotonic, s)."""

    def __init__(
        self, renew: Callable[[bool], float], on_crash: Callable[[BaseException], None], clock: Clock, limit_s: float
    ) -> None:
        self._renew = renew
        self._on_crash = on_crash
        self._clock = clock
        self._limit_s = limit_s  # 0: only what the user asks for
        self._condition = Condition()
        self._is_due = False
        self._until = 0.0
        self._thread: ThreadHandle | None = None

    @property
    def is_automatic(self) -> bool:
        return self._limit_s > 0

    def look(self) -> None:
        """There are new locks, or the user has asked for a renewal."""
        with self._condition:
            if self._thread is None:
                self._thread = SystemThreads().spawn("share-renewals", self, self._on_crash)
            self._until = self._clock.monotonic() + self._limit_s
            self._is_due = True
            self._condition.notify_all()

    def stop(self, timeout_s: float) -> bool:
        return self._thread is None or self._thread.stop(timeout_s)

    def wakeup(self) -> None:
        with self._condition:
            self._is_due = True
            self._condition.notify_all()

    def step(self, timeout: float | None) -> bool:
        with self._condition:
            while not self._is_due:
                self._condition.wait()
            self._is_due = False
        automatic = self.is_automatic and self._clock.monotonic() < self._until
        again_at = self._renew(automatic)
        if again_at == inf:
            return True
        with self._condition:
            wait_s = min(again_at, self._until) - self._clock.monotonic()
            if not self._is_due and wait_s > 0:
                self._condition.wait(wait_s)
            self._is_due = self._is_due or self._clock.monotonic() < self._until
        return True
