"""Files whose partitions are gone, and which are not removed before others grow.

A new file needs a page of the kernel's memory for each 4 KiB, and free memory that has not been used for long is dear: on a
virtual machine, whose host has to find it first, 2 to 4 ms for each MB, ten times what the write costs. Removing a file
gives back pages that are at hand, if they are wanted at once. So what was released is removed just before as much is written.

Why not write over it? What ``sendfile`` has sent of a file lies in the receiver's queue as the file's own pages, for as long as
that pleases: a removed file leaves them as they are, while one that is written over, or cut, does not.

Only the spiller's thread comes here.
"""

from collections import deque

from attrs import frozen

# How long (s) a file waits for others to grow.
WAIT_S = 60.0


@frozen
class _Released:
    path: str
    size: int
    since: float


class ReleasedFiles:
    """``most``: bytes of them together. Whoever is given a path removes that file."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: deque[_Released] = deque()
        self._ahead = 0  # bytes removed, of which nothing has been written yet
        self.bytes = 0

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self._files]

    def keep(self, path: str, size: int, now: float) -> bool:
        """False if there is no room for it: then it is to be removed right away."""
        if not 0 < size <= self._most - self.bytes:
            return False
        self._files.append(_Released(path, size, now))
        self.bytes += size
        return True

    def make_way(self, size: int) -> list[str]:
        """So many bytes are going to be written. The files to be removed before; the last ones released are in memory."""
        gone = []
        while self._ahead < size and self._files:
            self._ahead += self._files[-1].size
            gone.append(self._remove(self._files.pop()))
        self._ahead = max(0, self._ahead - size)
        return gone

    def surplus(self, now: float, most: int) -> list[str]:
        """Those that have waited for long, or are more than ``most`` bytes, the oldest first."""
        gone = []
        while self._files and (self.bytes > most or now - self._files[0].since >= WAIT_S):
            gone.append(self._remove(self._files.popleft()))
        return gone

    def _remove(self, file: _Released) -> str:
        self.bytes -= file.size
        return file.path

    def next_s(self, now: float) -> float | None:
        """When one will have waited for long."""
        return max(0.0, self._files[0].since + WAIT_S - now) if self._files else None
