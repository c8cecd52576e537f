"""Names of the files of a log, and the bounded set of those that are open.

A log of many segments, and many logs, share ``OpenFiles``: a file is opened when it is used and closed when it was not used
for a while or too many are open, or when the process has no descriptor left for another. Any thread may use a file; one that is
still in use somewhere (a ``FileRegion`` that is being sent) closes when that use ends, because closing here means to let go of
the reference.
"""

from collections import deque
from typing import Final

from broker.runtime.disk import Disk, File
from broker.runtime.threads import Lock

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)

# Files that are closed at a time for want of descriptors: enough that it does not happen at each of the next openings.
_GIVEN_BACK: Final = 16

DELETED: Final = ".deleted"  # waits for its deletion
CLEANED: Final = ".cleaned"  # being written by compaction
SWAP: Final = ".swap"  # written by compaction and about to replace a segment


def file_name(offset: int, suffix: str) -> str:
    """``00000000000000000042.log``: Kafka's 20 digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name; None if it is not the name of such a file."""
    digits = name.removesuffix(suffix)
    if len(digits) != 20 or len(name) != 20 + len(suffix) or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


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

    def drop(self) -> None:
        self.file = None


class OpenFiles:
    """At most about ``limit`` open files: the ones used last (second chance, so that a use costs one store)."""

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
        for _ in range(2 * len(ring)):
            if len(ring) <= self._limit:
                return
            cached = ring.popleft()
            if (cached.used or cached.pinned) and cached.file is not None:
                cached.used = False
                ring.append(cached)
            else:
                cached.file = None

    def give_back(self) -> bool:
        """No descriptor is left: close a part of what is open, what was used longest ago first. True if something was."""
        with self._mutex:
            ring = self._ring
            closed = 0
            for _ in range(len(ring)):
                cached = ring.popleft()
                if cached.pinned and cached.file is not None:
                    ring.append(cached)
                    continue
                closed += cached.file is not None
                cached.file = None
                if closed >= _GIVEN_BACK:
                    break
            return closed > 0

    def close_idle(self) -> None:
        """Close what was not used since the last call."""
        with self._mutex:
            for _ in range(len(self._ring)):
                cached = self._ring.popleft()
                if (cached.used or cached.pinned) and cached.file is not None:
                    cached.used = False
                    self._ring.append(cached)
                else:
                    cached.file = None

    def close_all(self) -> None:
        with self._mutex:
            while self._ring:
                self._ring.popleft().file = None

    def count(self) -> int:
        with self._mutex:
            return sum(cached.file is not None for cached in self._ring)
