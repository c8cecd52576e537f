"""The bounded set of open files, shared by all that read and write files through it.

A file is opened when it is used and closed when it was not used for a while or too many are open, or when the process has no
descriptor left for another. Any thread may use a file. A file in use (a ``FileRegion`` that is being sent) is not closed, because
that would free no descriptor and the next user would open the file a second time. So clients that do not read their responses
hold at most one descriptor for each file, however many they are.
"""

from collections import deque
from sys import getrefcount
from typing import Final

from broker.runtime.disk import Disk, File
from broker.runtime.threads import Lock

# Files that are closed at a time for want of descriptors: enough that it does not happen at each of the next openings.
_GIVEN_BACK: Final = 16
# Files that are examined before others may open a file.
_LOOKED_AT: Final = 256
# References to an unused file: that of its ``CachedFile`` and that of the check itself.
_OWN_REFERENCES: Final = 2


class CachedFile:
    """A file that is open only when it is used. ``path`` may change when the file is renamed."""

    __slots__ = ("_files", "file", "path", "pinned", "used")

    def __init__(self, files: "OpenFiles", path: str) -> None:
        self._files = files
        self.path = path
        self.file: File | None = None
        self.used = False
        self.pinned = False  # stays open, while it is being renamed

    def get(self) -> File:
        """The open file. Keep it only for the one use: a reference is what holds it open."""
        file = self.file
        if file is None:
            return self._files.open(self)
        self.used = True
        return file

    def size(self) -> int:
        """Of the file, which is not opened for it. Raises FileNotFoundError."""
        file = self.file
        return self._files.disk.file_size(self.path) if file is None else file.size()

    def create(self) -> File:
        """As ``get``; makes the file if it is missing."""
        return self._files.open(self, create=True)

    @property
    def in_use(self) -> bool:
        """Whether closing the open file here would free no descriptor, or must not happen. No answer harms its users."""
        return self.pinned or getrefcount(self.file) > _OWN_REFERENCES

    def drop(self) -> None:
        self.file = None


class OpenFiles:
    """At most about ``limit`` open files, or those in use: the files used last (second chance, so that a use costs one
    store)."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self.disk = disk
        self._limit = limit
        self._mutex = Lock()
        self._ring: deque[CachedFile] = deque()
        disk.when_exhausted(self.give_back)

    def cached(self, path: str) -> CachedFile:
        return CachedFile(self, path)

    def open(self, cached: CachedFile, *, create: bool = False) -> File:
        # Outside the mutex: a cold directory may take the disk a while. If two threads open the same file, one gives way.
        opened = self.disk.open(cached.path, create=create)
        with self._mutex:
            file = cached.file
            if file is None:
                file = cached.file = opened
                self._ring.append(cached)
                if len(self._ring) > self._limit:
                    self._evict()
            cached.used = True
            return file

    def _evict(self) -> None:
        ring = self._ring
        for _ in range(min(2 * len(ring), _LOOKED_AT)):
            if len(ring) <= self._limit:
                return
            cached = ring.popleft()
            if cached.file is not None and (cached.used or cached.in_use):
                cached.used = False
                ring.append(cached)
            else:
                cached.file = None

    def give_back(self) -> bool:
        """No descriptor is left: close a part of the open files, the least recently used first. True if any was closed."""
        with self._mutex:
            ring = self._ring
            closed = 0
            for _ in range(len(ring)):
                cached = ring.popleft()
                if cached.file is not None and cached.in_use:
                    ring.append(cached)
                    continue
                closed += cached.file is not None
                cached.file = None
                if closed >= _GIVEN_BACK:
                    break
            return closed > 0

    def close_idle(self) -> None:
        """Close the files that were not used since the last call."""
        left = len(self._ring)
        while left > 0:  # a piece at a time: whoever opens a file meanwhile must not wait for thousands to be closed
            closed: list[File | None] = []
            with self._mutex:
                for _ in range(min(left, _LOOKED_AT, len(self._ring))):
                    cached = self._ring.popleft()
                    if cached.file is not None and (cached.used or cached.in_use):
                        cached.used = False
                        self._ring.append(cached)
                    else:
                        closed.append(cached.file)
                        cached.file = None
            left -= _LOOKED_AT
            closed.clear()  # the last reference closes the file, outside the mutex

    def close_all(self) -> None:
        with self._mutex:
            while self._ring:
                self._ring.popleft().file = None

    def count(self) -> int:
        with self._mutex:
            return sum(cached.file is not None for cached in self._ring)
