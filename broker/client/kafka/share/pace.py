"""How many records to lock at a time for a loop that works on one after the other. Pure.

What is locked for one worker is not worked on by others, and its locks run out while it waits. So a loop holds about as many
records as it finishes in a second: one at first, then twice as many each time, as long as it finishes them in half of that.
"""

_TARGET_S = 1.0


class Pace:
    """``size``: how many records to ask for next, at most ``most``."""

    __slots__ = ("_most", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = 1

    @property
    def is_fast(self) -> bool:
        """Whether it does not matter if it gets more than it asks for."""
        return self.size == self._most

    def finished(self, count: int, seconds: float) -> None:
        """A batch of ``count`` records took so long."""
        if seconds > _TARGET_S:
            self.size = max(1, min(self.size, int(count * _TARGET_S / seconds)))
        elif count >= self.size and seconds < _TARGET_S / 2:
            self.size = min(2 * self.size, self._most)
