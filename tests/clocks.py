"""Clocks that tests move by hand."""


class ManualClock:
    """Moves when it is told to: ``now`` is the time of both clocks (s)."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        return int(self.now * 1000)
