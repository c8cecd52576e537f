"""A file in the object store, as the rest of the storage sees it: a ``File`` that can only be read.

For any thread that may wait, except for ``size`` and ``is_resident``. What was read last is remembered to find out whether a
reader goes on where it stopped; threads may overwrite that for one another, at the cost of a piece fetched in vain or not ahead.
"""

import errno
from collections.abc import Sequence

from broker.metadata.catalogue import RemoteFile
from broker.runtime.disk import Buffer, File, FileRegion
from broker.storage.tier import keys
from broker.storage.tier.cache import ChunkCache
from broker.storage.tier.keys import SegmentKey

# Pieces fetched ahead of a reader that goes on where it stopped. Two requests of 100 ms are 20 MB/s.
_AHEAD = 3
# Reads of at least this size may be those of a reader that goes on; smaller ones look something up.
_LARGE_READ = 64 * 1024


class RemoteView:
    """``path`` is that of the file, with the data directory."""

    __slots__ = ("__weakref__", "_cache", "_next", "_object_size", "path", "remote")

    is_remote = True

    def __init__(self, path: str, remote: RemoteFile, object_size: int, cache: ChunkCache) -> None:
        self.path = path
        self.remote = remote
        self._object_size = object_size
        self._cache = cache
        self._next = 0  # where a reader that goes on would go on

    @property
    def key(self) -> SegmentKey | None:
        """What the object's name says; None for another name."""
        return keys.parse(self.remote.object)

    def size(self) -> int:
        return self.remote.size

    def pread(self, size: int, offset: int) -> bytes:
        """Raises Unreachable."""
        parts = []
        pieces = self._pieces(offset, size)
        if size >= _LARGE_READ:
            self._fetch_ahead(pieces, offset, size)
        for number, start, length in pieces:
            data = self._cache.open(self.remote, self._object_size, number).pread(length, start)
            if len(data) < length:
                raise OSError(errno.EIO, "a cached piece has been cut", self.path)
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, offset: int, size: int) -> None:
        """As ``disk.RemoteFile.expect``."""
        for number, _, _ in self._pieces(offset, size):
            self._cache.ahead(self.remote, self._object_size, number)

    def bring(self, offset: int, size: int) -> list[FileRegion]:
        """As ``disk.RemoteFile.bring``."""
        pieces = self._pieces(offset, size)
        self._fetch_ahead(pieces, offset, size)
        regions: list[FileRegion] = []
        for number, start, length in pieces:
            region = FileRegion(self._cache.open(self.remote, self._object_size, number), start, length)
            regions += region.warm()
        return regions

    def _fetch_ahead(self, pieces: Sequence[tuple[int, int, int]], offset: int, size: int) -> None:
        """Have those pieces fetched that this read, or the next one, will need after the first."""
        goes_on, self._next = offset == self._next, offset + size
        if pieces:
            first, last = pieces[0][0], pieces[-1][0]
            for number in range(first + 1, last + 1 + (_AHEAD if goes_on else 0)):
                self._cache.ahead(self.remote, self._object_size, number)

    def is_resident(self, offset: int, size: int) -> bool:
        return False

    def _pieces(self, offset: int, size: int) -> list[tuple[int, int, int]]:
        """The range as ranges of pieces of the object: number of the piece, first byte in it, bytes."""
        chunk_bytes = self._cache.chunk_bytes
        begin = self.remote.position + offset
        end = self.remote.position + min(offset + size, self.remote.size)
        pieces = []
        while begin < end:
            number, start = divmod(begin, chunk_bytes)
            length = min(chunk_bytes - start, end - begin)
            pieces.append((number, start, length))
            begin += length
        return pieces

    # -- what cannot be done with it ------------------------------------------------------------------------------------

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        raise self._read_only()

    def truncate(self, size: int) -> None:
        raise self._read_only()

    def fileno(self) -> int:
        raise self._read_only()

    def _read_only(self) -> OSError:
        return OSError(errno.EROFS, "the file is in the object store", self.path)

    def sync(self, data_only: bool = True) -> None:
        """Nothing to do: it is durable."""

    def begin_sync(self, offset: int, size: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: it is not open."""


def view_of(file: File) -> RemoteView | None:
    """The file, if it is one in the object store."""
    return file if isinstance(file, RemoteView) else None
