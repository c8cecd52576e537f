"""For how long, and how often, a writer tries to get a lost connection back. Pure; used on the I/O thread only.

The time counts from the first loss until something proves the connection: an acknowledgement, or an opening after which nothing
was left to send. A connection that opens and breaks again and again proves nothing.
"""

_DELAY_FIRST_S = 0.05
_DELAY_MAX_S = 2.0


class Reconnecting:
    """Times are monotonic, in s. ``timeout_s``: without a proven connection, after which the writer gives up; 0: at once."""

    __slots__ = ("_delay_s", "lost_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.lost_at: float | None = None  # None: the connection was proven since
        self._delay_s = _DELAY_FIRST_S

    def lost(self, now: float) -> float | None:
        """The connection was lost. After how many s to try again; None if the time is over."""
        if self.lost_at is None:
            self.lost_at = now
        if now - self.lost_at >= self.timeout_s:
            return None
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, _DELAY_MAX_S)
        return delay_s

    def proven(self) -> None:
        """The connection works."""
        self.lost_at = None
        self._delay_s = _DELAY_FIRST_S

    def held_back(self) -> None:
        """The broker lets the writer wait for room, for as long as that takes: this is no lost connection."""
        self.lost_at = None

    def limit(self, timeout_s: float, now: float) -> float:
        """``timeout_s``, but no longer than a lost connection is tried to get back."""
        if self.lost_at is None:
            return timeout_s
        return max(0.0, min(timeout_s, self.lost_at + self.timeout_s - now))
