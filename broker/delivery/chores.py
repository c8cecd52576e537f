"""Work that takes one step for each record, done a slice at a time, so that no event takes longer than a slice.

Pure. Each chore is a generator that does one step before each ``yield``. They are done one after another, in the order in
which they came.
"""

from collections.abc import Generator

# A step takes one or two microseconds.
SLICE = 5_000


class Chores:
    __slots__ = ("_chores", "slice")

    def __init__(self, slice: int = SLICE) -> None:
        self.slice = slice  # how many steps ``work`` does
        self._chores: list[Generator[None]] = []  # there are few; an empty deque takes ten times the memory

    def __bool__(self) -> bool:
        return bool(self._chores)

    def add(self, chore: Generator[None]) -> None:
        self._chores.append(chore)

    def work(self) -> None:
        """Do a slice. It must not be called by a chore."""
        steps = self.slice
        while self._chores:
            chore = self._chores[0]
            for _ in chore:
                steps -= 1
                if steps <= 0:
                    return
            del self._chores[0]

    def clear(self) -> None:
        self._chores.clear()
