"""Files whose partitions are gone, and which are not removed before others grow.

A new file needs a page of the kernel's memory for each 4 KiB, and free memory that has not been used for long is dear: on a
virtual machine, whose host has to find it first, 2 to 4 ms for each MB, ten times what the write costs. Removing a file
gives back pages that are at hand, if they are wanted at once. So what was released is removed just before as much is written.

Why not write over it? What ``sendfile`` has sent of a file lies in the receiver's queue as the file's own pages, for as long as
that pleases: a removed file leaves them as they are, while one that is written over, or cut, does not.

Only the spiller's thread comes here.
"""

from collections import deque
from collections.abc import Callable

from attrs import frozen

from broker.runtime.clock import Clock

# How long (s) a file waits for others to grow.
WAIT_S = 60.0


@frozen
class _Released:
    path: str
    size: int
    since: float


class ReleasedFiles:
    """``most``: bytes of them together. ``remove``: has a file go, and does not fail."""

    def __init__(self, most: int, clock: Clock, remove: Callable[[str], None]) -> None:
        self._most = most
        self._clock = clock
        self._remove = remove
        self._files: deque[_Released] = deque()
        self._ahead = 0  # bytes removed, of which nothing has been written yet
        self.bytes = 0

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self._files.copy()]

    def add(self, path: str, size: int) -> None:
        """Remove a file some time; now if there is no room for it."""
        if 0 < size <= self._most - self.bytes:
            self._files.append(_Released(path, size, self._clock.monotonic()))
            self.bytes += size
        else:
            self._remove(path)

    def make_way(self, size: int) -> None:
        """So many bytes are going to be written. The last files go first: they are in memory."""
        while self._ahead < size and self._files:
            self._ahead += self._drop(self._files.pop())
        self._ahead = max(0, self._ahead - size)

    def trim(self, most: float) -> bool:
        """Remove what has waited for long, or is more than ``most`` bytes, the oldest first. False if there is nothing."""
        trimmed = False
        while self._files and (self.bytes > most or self.wait_s() == 0):
            self._drop(self._files.popleft())
            trimmed = True
        return trimmed

    def wait_s(self) -> float | None:
        """Until one has waited for long."""
        return max(0.0, self._files[0].since + WAIT_S - self._clock.monotonic()) if self._files else None

    def _drop(self, file: _Released) -> int:
        self.bytes -= file.size
        self._remove(file.path)
        return file.size
