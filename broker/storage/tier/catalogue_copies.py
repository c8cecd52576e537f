"""Copies of an embedded catalogue in the object store, so that a broker whose disk is lost can be made again from there.

Segments in the store are of no use without the catalogue: it has their topics, and says which of them count. So the uploader's
thread puts a copy under ``catalogue/<time>.sqlite`` when something has changed, at most once a minute, and of a large catalogue
so seldom that it costs 1 MB/s. The newest three stay. ``lost_disk.py`` uses them.

The uploader deletes no object that the newest copy refers to: it deletes those that were condemned before that copy was made.
"""

import hashlib
import re
from collections.abc import Callable, Iterator

from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.objects import ObjectStore

PREFIX = "catalogue"
# In the data directory, while a copy is being made.
COPY = ".catalogue-copy.sqlite"
_KEY = re.compile(rf"{PREFIX}/([0-9]{{15}})\.sqlite")
_KEPT = 3
_EVERY_S = 60.0
_BYTES_PER_S = 1_000_000
_PIECE_BYTES = 1024 * 1024


def key_of(taken_ms: int) -> str:
    return f"{PREFIX}/{taken_ms:015d}.sqlite"


def copies(objects: ObjectStore) -> list[tuple[int, str, int]]:
    """Time (ms), key and size of each copy, the oldest first. Raises ObjectError."""
    found = ((_KEY.fullmatch(key), key, size) for key, size in objects.list(PREFIX))
    return sorted((int(match[1]), key, size) for match, key, size in found if match is not None)


class CatalogueCopies:
    """Of one broker, or of all nodes of a machine; for the uploader's thread. ``copy``: writes what the catalogue has now to a
    path. ``path``: where a copy is made before it is put, on the machine's disk."""

    def __init__(
        self, copy: Callable[[str], object], objects: ObjectStore, disk: Disk, path: str, clock: Clock
    ) -> None:
        self._copy = copy
        self._objects = objects
        self._disk = disk
        self._path = path
        self._clock = clock
        self._due = clock.monotonic()
        self._last = b""  # checksum of the newest copy
        # The newest copy, which is in the store, is not older (ms); 0: there is none.
        self.taken_ms = 0

    def step(self) -> bool:
        """Put a copy if it is time and something has changed. True if one was put. Raises OSError, StorageError."""
        if self._clock.monotonic() < self._due:
            return False
        self._remove()
        try:
            taken_ms = self._clock.time_ms()
            self._copy(self._path)
            size = self._disk.file_size(self._path)
            self._due = self._clock.monotonic() + max(_EVERY_S, size / _BYTES_PER_S)
            content = hashlib.blake2b(digest_size=16)
            for piece in self._pieces(size):
                content.update(piece)
            changed = content.digest() != self._last
            if changed:
                # After those that are there, although the clock may have been set back: the last one counts.
                before = max((earlier_ms for earlier_ms, _, _ in copies(self._objects)), default=-1)
                self._objects.put(key_of(max(taken_ms, before + 1)), self._pieces(size), size)
                self._last = content.digest()
            self.taken_ms = taken_ms
        finally:
            self._remove()
        if changed:
            self._objects.delete([key for _, key, _ in copies(self._objects)[:-_KEPT]])
        return changed

    def _pieces(self, size: int) -> Iterator[bytes]:
        file = self._disk.open(self._path, read_only=True)
        try:
            for position in range(0, size, _PIECE_BYTES):
                yield file.pread(min(_PIECE_BYTES, size - position), position)
        finally:
            file.close()

    def _remove(self) -> None:
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
