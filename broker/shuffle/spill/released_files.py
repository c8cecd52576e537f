"""Files of released partitions, which are removed only when other files grow.

A new file needs a page of the kernel's memory for each 4 KiB. Free memory that has not been used for long is expensive: on a
virtual machine, whose host has to find it first, 2 to 4 ms for each MB, ten times what the write costs. Removing a file gives
back pages that can be used at once. So a released file is removed just before as much is written.

Files are not overwritten instead. What ``sendfile`` has sent of a file lies in the receiver's queue as the file's own pages, for
as long as the receiver leaves it there. Removing the file leaves those pages as they are; overwriting or truncating it does not.

Only the spiller's thread uses this.
"""

from collections import deque
from collections.abc import Callable

from attrs import frozen

from broker.runtime.clock import Clock

# How long (s) a file waits for other files to grow.
WAIT_S = 60.0


@frozen
class _Released:
    path: str
    size: int
    since: float


class ReleasedFiles:
    """``bytes_max``: of all files together. ``remove``: removes a file, and does not fail."""

    def __init__(self, bytes_max: int, clock: Clock, remove: Callable[[str], None]) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._remove = remove
        self._files: deque[_Released] = deque()
        self._ahead = 0  # bytes removed, of which nothing has been written yet
        self.bytes = 0

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self._files.copy()]

    def add(self, path: str, size: int) -> None:
        """Remove a file later, or now if there is no room for it."""
        if 0 < size <= self._bytes_max - self.bytes:
            self._files.append(_Released(path, size, self._clock.monotonic()))
            self.bytes += size
        else:
            self._remove(path)

    def make_way(self, size: int) -> None:
        """``size`` bytes are going to be written:

        remove as much. The last files are removed first, because they are in memory.
        """
        while self._ahead < size and self._files:
            self._ahead += self._drop(self._files.pop())
        self._ahead = max(0, self._ahead - size)

    def trim(self, bytes_max: float) -> bool:
        """Remove files that have waited ``WAIT_S``, or are more than ``bytes_max``, the oldest first. False if there are none."""
        trimmed = False
        while self._files and (self.bytes > bytes_max or self.wait_s() == 0):
            self._drop(self._files.popleft())
            trimmed = True
        return trimmed

    def wait_s(self) -> float | None:
        """Until one has waited ``WAIT_S``; None if there are none."""
        return max(0.0, self._files[0].since + WAIT_S - self._clock.monotonic()) if self._files else None

    def _drop(self, file: _Released) -> int:
        self.bytes -= file.size
        self._remove(file.path)
        return file.size
