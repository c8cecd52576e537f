"""Whether the peer of a connection still answers. Pure: its user calls ``look`` regularly with the time.

A peer that is stopped or has lost its power does not close its connections, and TCP may keep them open forever. So a peer
counts as dead after a time of silence, but only while an answer is expected:

    silent for, while an answer is expected     verdict
    less than a third of ``silence_max_s``      FINE
    longer                                      ASK, once: a working peer answers at once, whatever it is waiting for
    ``silence_max_s``                           DEAD

If a look comes late, this process stood still, so that time does not count.
"""

from enum import Enum, auto


class Verdict(Enum):
    FINE = auto()
    ASK = auto()
    DEAD = auto()


class Liveness:
    """Times are monotonic, in s."""

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
        """Call this at least four times in ``silence_max_s``."""
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
