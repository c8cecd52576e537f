"""Whether the other side of a connection still answers. Pure; its user has a clock and looks at it now and then.

A peer that is stopped, or has lost its power, closes nothing: TCP goes on for minutes or for ever. So silence counts, but only
while something is expected: a peer that has nothing to say is no dead one.

    silent for, while something is expected     verdict
    less than a third of ``silence_max_s``      FINE
    longer                                      ASK, once: any live peer answers at once, whatever else it is waiting for
    ``silence_max_s``                           DEAD

A look that comes late says that this process stood still, and nothing of the other one: that time does not count.
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
        self._since = now  # when it was heard last, or when something began to be expected of it
        self._asked = False

    def heard(self, now: float) -> None:
        """Something has come, whatever it was."""
        self._since = now
        self._asked = False

    def look(self, now: float, expecting: bool) -> Verdict:
        """At least four times in ``silence_max_s``."""
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
