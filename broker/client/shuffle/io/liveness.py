"""Decides whether the peer of a connection still answers. Pure: the caller calls ``look`` regularly with the time.

A peer that is suspended or has lost power does not close its connections, and TCP may keep them open forever. So a peer counts
as dead after it has been silent for some time, but only while an answer is expected:

    silent for, while an answer is expected     verdict
    less than a third of ``silence_max_s``      FINE
    longer                                      ASK, once; a working peer answers at once, even while it waits itself
    ``silence_max_s``                           DEAD

If a call of ``look`` comes late, this process was suspended, so that time does not count.
"""

from enum import Enum, auto


class Verdict(Enum):
    FINE = auto()
    ASK = auto()
    DEAD = auto()


class Liveness:
    """The time since the last message of one peer. Times are monotonic, in s."""

    __slots__ = ("_asked", "_looked", "_since", "silence_max_s")

    def __init__(self, silence_max_s: float, now: float) -> None:
        self.silence_max_s = silence_max_s
        self._looked = now
        self._since = now  # the peer's last message, or the time from which an answer is expected
        self._asked = False

    def heard(self, now: float) -> None:
        """The peer has sent something."""
        self._since = now
        self._asked = False

    def look(self, now: float, expecting: bool) -> Verdict:
        """Return the verdict at ``now``. Call this at least four times in ``silence_max_s``."""
        late = now - self._looked
        self._looked = now
        if late > self.silence_max_s / 2:
            self._since = min(now, self._since + late)
        if not expecting:
            self.heard(now)
            return Verdict.FINE
        silent = now - self._since
        if silent >= self.silence_max_s:
            return Verdict.DEAD
        if silent * 3 >= self.silence_max_s and not self._asked:
            self._asked = True
            return Verdict.ASK
        return Verdict.FINE
