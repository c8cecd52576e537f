"""The one ``WakeAt`` of a dispatcher that waits for several things. Pure.

Whoever waits calls ``ring_at`` after each event, with the time that matters to it then; the dispatcher looks at everything
when the alarm rings.

Tests: tests/pulsar/dispatch/test_shared.py.
"""

from math import inf

from broker.pulsar.dispatch.dispatcher import Effect, Now, WakeAt


class Alarm:
    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = inf  # for when the subscription's timer is set

    def ring_at(self, at: float, now: Now, effects: list[Effect]) -> None:
        """Ring then, or before."""
        if at < self._at or self._at <= now.monotonic:
            self._at = max(at, now.monotonic)
            effects.append(WakeAt(self._at))

    def rings(self) -> None:
        """``tick`` has been called; the timer is not set any more."""
        self._at = inf
