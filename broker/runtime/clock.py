"""Time. The only module that imports ``time``; the simulator's clock has the same shape."""

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back. Deadlines and durations use this."""

    def time_ms(self) -> int:
        """Wall clock in ms since the epoch. May jump either way: only for timestamps that people see."""


class SystemClock:
    """The machine's clocks."""

    # Bound as class attributes: one C call, no Python frame, on the hot path.
    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time_ms() -> int:
        return time.time_ns() // 1_000_000
