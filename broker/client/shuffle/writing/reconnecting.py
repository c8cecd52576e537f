"""Decides for how long and how often a writer tries to connect again. Pure; used on the I/O thread only.

The time counts from the first loss until the connection is proven: by an acknowledgement, or by PartitionOpened if nothing is
left to send. A connection that opens but breaks again before that does not restart the time.
"""

_DELAY_FIRST_S = 0.05
_DELAY_MAX_S = 2.0


class Reconnecting:
    """Times are monotonic, in s. The writer gives up after ``timeout_s`` without a proven connection; 0: at the first loss."""

    __slots__ = ("_delay_s", "lost_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.lost_at: float | None = None  # when the unproven time began; None if the connection is proven
        self._delay_s = _DELAY_FIRST_S

    def lost(self, now: float) -> float | None:
        """The connection was lost. Returns the delay (s) before the next attempt, or None if the time is over."""
        if self.lost_at is None:
            self.lost_at = now
        if now - self.lost_at >= self.timeout_s:
            return None
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, _DELAY_MAX_S)
        return delay_s

    def proven(self) -> None:
        """The connection is proven to work."""
        self.lost_at = None
        self._delay_s = _DELAY_FIRST_S

    def held_back(self) -> None:
        """The broker grants no credit while it has no room. However long that lasts, it is no lost connection."""
        self.lost_at = None

    def limit(self, timeout_s: float, now: float) -> float:
        """Return ``timeout_s``, limited to the time that is left before the writer gives up."""
        if self.lost_at is None:
            return timeout_s
        return max(0.0, min(timeout_s, self.lost_at + self.timeout_s - now))
