"""The file with a compacted topic: what is left of its entries up to the *horizon*, an offset of the log.

    [stored part of an entry] ...  [index]  [trailer]

The index has, for all entries, their offsets, positions, numbers of messages, sizes and checksums, one after the other; the
trailer the horizon, the number of entries, the position and the checksum of the index, and a mark. All of it is big-endian.
The file is written under another name and renamed when it is durable, so one with this name is whole.

A writer belongs to one thread, which may block. A ``CompactedFile`` may be used from any thread that may block; ``first``,
``horizon`` and ``last`` do not block.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct, error
from typing import Final, NamedTuple

from broker.errors import StorageError
from broker.runtime.disk import Buffer, Disk, File
from protocol.frames import crc32c

_TRAILER: Final = Struct(">qqqI8s")
_CHECKED: Final = Struct(">qqq")
_MARK: Final = b"PCOMPACT"
_PIECE: Final = 256 * 1024
_COLUMNS: Final = (("q", 8), ("q", 8), ("I", 4), ("I", 4), ("I", 4))


class Compacted(NamedTuple):
    """What is left of an entry."""

    offset: int
    messages: int
    data: bytes


class CompactedWriter:
    """Raises OSError."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File = disk.open(_temporary(path), create=True)
        self._file.truncate(0)
        self._columns = [array(code) for code, _ in _COLUMNS]
        self._pieces: list[Buffer] = []
        self._waiting = 0  # bytes in them
        self._end = 0

    def add(self, offset: int, messages: int, data: Buffer) -> None:
        for column, value in zip(self._columns, (offset, self._end, messages, len(data), crc32c(data)), strict=True):
            column.append(value)
        self._write(data)

    def finish(self, horizon: int) -> None:
        """The file is durable, and has its name, when this returns."""
        index_at = self._end
        checksum = 0
        for column in self._columns:
            data = _big_endian(column).tobytes()
            checksum = crc32c(data, checksum)
            self._write(data)
        count = len(self._columns[0])
        checksum = crc32c(_CHECKED.pack(horizon, count, index_at), checksum)
        self._write(_TRAILER.pack(horizon, count, index_at, checksum, _MARK))
        self._flush()
        self._file.sync()
        self._file.close()
        self._disk.rename(_temporary(self._path), self._path)
        self._disk.sync_dir(self._path.rpartition("/")[0])

    def abandon(self) -> None:
        """Does not raise."""
        try:
            self._file.close()
            self._disk.remove(_temporary(self._path))
        except OSError:
            pass  # the next start removes it

    def _write(self, data: Buffer) -> None:
        self._pieces.append(bytes(data))
        self._waiting += len(data)
        self._end += len(data)
        if self._waiting >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        if self._pieces:
            self._file.pwrite(self._pieces, self._end - self._waiting)
            self._pieces, self._waiting = [], 0


class CompactedFile:
    """A whole one. The constructor raises StorageError for one that cannot be read."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        try:
            self._file = disk.open(path, read_only=True)
            size = self._file.size()
            trailer = self._file.pread(_TRAILER.size, max(0, size - _TRAILER.size))
            self.horizon, count, index_at, checksum, mark = _TRAILER.unpack(trailer)
            index = self._file.pread(size - _TRAILER.size - index_at, index_at) if mark == _MARK else b""
        except (OSError, error, ValueError, OverflowError) as fault:
            raise StorageError(f"{path} cannot be read: {fault}") from None
        computed = crc32c(_CHECKED.pack(self.horizon, count, index_at), crc32c(index))
        if mark != _MARK or computed != checksum or len(index) != count * sum(width for _, width in _COLUMNS):
            raise StorageError(f"{path} is damaged.")
        columns = []
        at = 0
        for code, width in _COLUMNS:
            column = array(code)
            column.frombytes(index[at : at + count * width])
            columns.append(_big_endian(column))
            at += count * width
        self._offsets, self._positions, self._messages, self._sizes, self._checksums = columns

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def first(self) -> int:
        """The offset of the first entry; the horizon if there is none."""
        return self._offsets[0] if self._offsets else self.horizon

    @property
    def last(self) -> tuple[int, int] | None:
        """Offset and messages of the last entry."""
        return (self._offsets[-1], self._messages[-1]) if self._offsets else None

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Compacted]:
        """From the entry that covers the offset, or the first one after it; the first whatever its size. Raises
        StorageError."""
        low = bisect_left(self._offsets, offset)
        if low and self._offsets[low - 1] + self._messages[low - 1] > offset:
            low -= 1
        high = min(low + max_entries, len(self._offsets))
        if low >= high:
            return ()
        sizes = list(accumulate(self._sizes[low:high]))
        while len(sizes) > 1 and sizes[-1] > max_bytes:
            sizes.pop()
        start = self._positions[low]
        try:
            data = self._file.pread(sizes[-1], start)
        except OSError as fault:
            raise StorageError(f"{self.path} cannot be read: {fault}") from None
        found = []
        at = 0
        for place, end in enumerate(sizes, low):
            piece = data[at:end]
            if crc32c(piece) != self._checksums[place]:
                raise StorageError(f"{self.path}: the entry {self._offsets[place]} is damaged.")
            found.append(Compacted(self._offsets[place], self._messages[place], piece))
            at = end
        return found


def _temporary(path: str) -> str:
    return f"{path}.tmp"


def _big_endian(column: "array[int]") -> "array[int]":
    """Between the machine's order and the file's."""
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column
