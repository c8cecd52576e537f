"""Making the local files again from the journal: what a start on an empty disk does, and a take-over.

Rows are replayed in their order, so the directory ends as a power cut at the last row would have left it, and ordinary recovery
goes on from there. Objects are fetched ahead by a few threads.

On the thread that starts the broker. Tests: tests/storage/journal/test_restoring.py.
"""

from collections.abc import Callable, Iterator
from itertools import groupby

from broker.errors import StorageError
from broker.metadata.journal import Journal, JournalRow
from broker.runtime.disk import Buffer, Disk, File
from broker.runtime.objects import ObjectStore
from broker.runtime.worker import in_order
from broker.storage.journal.operations import Create, Index, Operation, Remove, Rename, Truncate, Write, decode
from broker.storage.journal.shipper import Shipper
from protocol.frames import crc32c

# A row with its index and its bytes.
Fetched = tuple[JournalRow, Index, bytes]
# Maps a function over rows, in order, perhaps on several threads.
Ahead = Callable[[Callable[[JournalRow], Fetched], Iterator[JournalRow]], Iterator[Fetched]]


def restore(
    disk: Disk, data_dir: str, journal: Journal, objects: ObjectStore, shipper: Shipper, fetch_all: Ahead = map
) -> int:
    """Replay the journal into ``data_dir``, which has no files that are shipped. Returns the number of bytes written.

    Raises StorageError, which names the object or row, if the journal is damaged, and OSError.
    """

    def fetch(row: JournalRow) -> Fetched:
        return fetched(row, objects)

    replay = _Replay(disk, data_dir)
    written = 0
    for row, index, data in fetch_all(fetch, journal.read(0)):
        at, view = 0, memoryview(data)
        for operation in index.operations:
            if isinstance(operation, Write):
                replay.write(operation, view[at : at + operation.size])
                at += operation.size
            else:
                replay.change(operation)
            shipper.table.replay(row.number, operation)
        written += len(data)
        shipper.replayed(row, len(data))
    replay.tidy()
    return written


def ahead(threads: int) -> Ahead:
    """``Ahead`` that fetches several objects at a time; bytes that are inline need no thread."""

    def fetch_all(fetch: Callable[[JournalRow], Fetched], rows: Iterator[JournalRow]) -> Iterator[Fetched]:
        for has_object, group in groupby(rows, lambda row: row.object is not None):
            yield from in_order(fetch, group, threads if has_object else 0)

    return fetch_all


def fetched(row: JournalRow, objects: ObjectStore) -> Fetched:
    """A row with its index and bytes. Raises StorageError if they are not what was shipped."""
    index = decode(row.index)
    where = f"journal row {row.number}" if row.object is None else f"object {row.object} of journal row {row.number}"
    try:
        data = objects.get(row.object, 0, index.data_size) if row.object is not None else row.data or b""
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {error}") from error
    if len(data) != index.data_size or crc32c(data) != index.data_crc:
        raise StorageError(f"{where} is damaged: its bytes do not match their checksum")
    return row, index, data


class _Replay:
    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._root = data_dir.rstrip("/")
        self._directories: set[str] = set()

    def write(self, operation: Write, data: Buffer) -> None:
        file = self._open(operation.path)
        try:
            file.pwrite([data], operation.position)
        finally:
            file.close()

    def change(self, operation: Operation) -> None:
        disk = self._disk
        match operation:
            case Create(path):
                self._open(path).close()
            case Truncate(path, size):
                if disk.exists(self._path(path)):
                    file = disk.open(self._path(path))
                    try:
                        file.truncate(min(size, file.size()))
                    finally:
                        file.close()
            case Rename(old, new):
                if disk.exists(self._path(old)):
                    self._make_directory(new)
                    disk.rename(self._path(old), self._path(new))
                    if old in self._directories:
                        self._directories.remove(old)
                        self._directories.add(new)
                else:
                    # The rows that made the file are gone, because a later one has it whole. What it replaced is gone, too.
                    self._remove(new)
            case Remove(path):
                self._remove(path)

    def _remove(self, relative: str) -> None:
        path = self._path(relative)
        if self._disk.exists(path) and not self._disk.is_dir(path):
            self._disk.remove(path)

    def tidy(self) -> None:
        """Directories exist where files do."""
        for directory in sorted(self._directories, reverse=True):
            path = self._path(directory)
            if self._disk.is_dir(path) and not self._disk.listdir(path):
                self._disk.rmdir(path)

    def _path(self, relative: str) -> str:
        parts = relative.split("/")
        if not all(parts) or "." in parts or ".." in parts or "\0" in relative:
            raise StorageError(f"the journal names a file outside of the data directory: {relative!r}")
        return f"{self._root}/{relative}"

    def _open(self, relative: str) -> File:
        self._make_directory(relative)
        return self._disk.open(self._path(relative), create=True)

    def _make_directory(self, relative: str) -> None:
        directory = relative.rpartition("/")[0]
        if directory and directory not in self._directories:
            self._directories.add(directory)
            self._disk.makedirs(self._path(directory))
