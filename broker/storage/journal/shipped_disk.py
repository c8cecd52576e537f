"""A disk that is only a cache: what it makes durable goes to the journal, and nothing is fsynced.

``ShippedDisk`` wraps another disk. Below the data directory it notes what files grow by and which names change; a ``sync`` ships
that (``shipper.py``) and returns when the journal has it. So everything that relies on fsync, rename and ``sync_dir`` (logs,
compaction, checkpoints, Pulsar's compacted files, finished result partitions) is durable without this machine, and a take-over
finds what a power cut would have left. Outside of the data directory, for a backup for example, it is the disk that it wraps.

Rows are in order, so whatever is shipped later is durable later. Where a ``sync`` is only there for the order, it therefore does
not wait: that of a snapshot of producers, and that of the names in a partition's directory. Otherwise the checkpoints of
thousands of partitions would be thousands of rows.

Two threads must not change the same name at the same time; no part of the broker does.

Not shipped are the indexes of offsets and times, which recovery rebuilds, and what ``Disk.lock`` makes. Directories are not
shipped either: they exist where files do.

Any thread may use it, as any ``Disk``.

Tests: tests/contract/test_disk.py, tests/storage/journal/test_shipped_disk.py.
"""

import errno
import re
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from broker.runtime.disk import Buffer, Disk, File, SyncQueue
from broker.runtime.poller import Alarm
from broker.runtime.threads import Event
from broker.storage.journal.file_table import FileState
from broker.storage.journal.shipper import Shipper
from broker.storage.partition_dir import parse_name
from broker.storage.segments.segment import SNAPSHOT

# Whatever is behind these suffixes, such as ``.deleted``.
_NOT_SHIPPED = re.compile(r"[0-9]{20}\.(?:index|timeindex)(?:\.|$)")
# Of files whose flushes wait at a time.
_QUEUE_SIZE = 10_000


class ShippedDisk:
    """Wraps ``inner``; ``data_dir`` is what is shipped."""

    def __init__(self, inner: Disk, data_dir: str, shipper: Shipper) -> None:
        self._inner = inner
        self._root = data_dir.rstrip("/") + "/"
        self._shipper = shipper
        self.when_exhausted = inner.when_exhausted
        self.listdir = inner.listdir
        self.exists = inner.exists
        self.is_dir = inner.is_dir
        self.is_link = inner.is_link
        self.file_size = inner.file_size
        self.makedirs = inner.makedirs
        self.rmdir = inner.rmdir
        self.free_bytes = inner.free_bytes
        self.total_bytes = inner.total_bytes
        self.lock = inner.lock

    def _relative(self, path: str) -> str | None:
        """None for what is not shipped."""
        if not path.startswith(self._root) or _NOT_SHIPPED.match(path.rpartition("/")[2]):
            return None
        return path[len(self._root) :]

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        if not path.startswith(self._root):
            return self._inner.open(path, create=create, read_only=read_only)
        relative = self._relative(path)
        is_new = create and not self._inner.exists(path)
        file = self._inner.open(path, create=create, read_only=read_only)
        state = None
        if relative is not None:
            with self._shipper.lock:
                table = self._shipper.table
                state = table.created(relative) if is_new else table.get(relative)
        # Without a name in the journal it is an index, or a copy of a file that is elsewhere (``forget``).
        return ShippedFile(file, FileState(None) if state is None else state, self._shipper)

    def rename(self, old: str, new: str) -> None:
        before, after = self._relative(old), self._relative(new)
        self._inner.rename(old, new)
        with self._shipper.lock:
            self._renamed(before, after)

    def _renamed(self, before: str | None, after: str | None) -> None:
        if before is not None and after is not None:
            self._shipper.table.renamed(before, after)
        elif before is not None:
            self._shipper.table.removed(before)
        elif after is not None:  # it brings bytes that the journal does not have
            state = self._shipper.table.created(after)
            state.wrote(0, self._inner.file_size(self._root + after))

    def link(self, old: str, new: str) -> None:
        self._inner.link(old, new)
        relative = self._relative(new)
        if relative is not None:
            size = self._inner.file_size(new)
            with self._shipper.lock:
                self._shipper.table.created(relative).wrote(0, size)

    def remove(self, path: str) -> None:
        relative = self._relative(path)
        self._inner.remove(path)
        if relative is not None:
            with self._shipper.lock:
                self._shipper.table.removed(relative)

    def sync_dir(self, path: str) -> None:
        if not f"{path}/".startswith(self._root):
            self._inner.sync_dir(path)
        elif parse_name(path[len(self._root) :]) is not None:
            self._shipper.ask([], _ignore)  # names of a partition's files: only the order matters
        else:
            self._shipper.ship([])

    def syncs_at_once(self) -> int:
        return _QUEUE_SIZE

    def sync_all(self, files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        wanted = [file.wanted for file in files if isinstance(file, ShippedFile)]
        error = None
        try:
            yield from self._shipper.shipping(wanted, patience_s)
        except OSError as failed:
            error = failed
        for number in range(len(files)):
            yield number, error

    def sync_queue(self) -> SyncQueue:
        return _ShipQueue(self._shipper)

    # -- for files whose bytes are elsewhere too -----------------------------------------------------------------------

    def is_shipped(self, path: str) -> bool:
        """Whether the journal has the whole of this file."""
        relative = self._relative(path)
        if relative is None:
            return True
        size = self._inner.file_size(path)
        with self._shipper.lock:
            state = self._shipper.table.get(relative)
            return state is None or (state.size >= size and state.is_shipped(size))

    def forget(self, paths: Sequence[str]) -> None:
        """The bytes of these files are durable elsewhere: the journal removes them. Waits. Raises OSError."""
        with self._shipper.lock:
            before = len(self._shipper.table.names)
            for path in paths:
                relative = self._relative(path)
                if relative is not None:
                    self._shipper.table.removed(relative)
            is_known = len(self._shipper.table.names) == before
        if not is_known:
            self._shipper.ship([])


def _ignore(_: OSError | None) -> None:
    """What is shipped later fails as well."""


class ShippedFile:
    """A file whose writes are noted."""

    is_remote = False

    __slots__ = (
        "__weakref__",
        "_file",
        "_shipper",
        "_state",
        "begin_sync",
        "fileno",
        "is_resident",
        "path",
        "pread",
        "size",
    )

    def __init__(self, file: File, state: FileState, shipper: Shipper) -> None:
        self.path = file.path
        self._file = file
        self._state = state
        self._shipper = shipper
        self.pread = file.pread
        self.is_resident = file.is_resident
        self.size = file.size
        self.fileno = file.fileno
        self.begin_sync = file.begin_sync

    @property
    def wanted(self) -> tuple[FileState, File]:
        return self._state, self._file

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        try:
            written = self._file.pwrite(buffers, offset)
        except OSError:
            self._wrote(offset, min(self._file.size(), offset + sum(map(len, buffers))))  # a part of it may be there
            raise
        self._wrote(offset, offset + written)
        return written

    def _wrote(self, start: int, end: int) -> None:
        with self._shipper.lock:
            self._state.wrote(start, end)

    def truncate(self, size: int) -> None:
        before = self._file.size()
        self._file.truncate(size)
        with self._shipper.lock:
            self._state.truncated(before, size)

    def sync(self, data_only: bool = True) -> None:
        if self._state.path is None:
            return
        if self.path.endswith(SNAPSHOT):
            self._shipper.ask([self.wanted], _ignore)
        else:
            self._shipper.ship([self.wanted])

    def close(self) -> None:
        with self._shipper.lock:
            is_read = self._state.reading
        closed = _Closed(self.path)
        file, self._file = self._file, closed
        self.pread, self.is_resident, self.size = closed.pread, closed.is_resident, closed.size
        self.fileno, self.begin_sync = closed.fileno, closed.begin_sync
        if not is_read:  # otherwise it closes with its last reference
            file.close()


class _Closed:
    """What is left of a closed file."""

    is_remote = False

    def __init__(self, path: str) -> None:
        self.path = path

    def _refuse(self, *_: object, **__: object) -> Any:
        raise OSError(errno.EBADF, "The file is closed", self.path)

    pwrite = pread = is_resident = size = truncate = sync = begin_sync = fileno = _refuse

    def close(self) -> None:
        """Again."""


class _ShipQueue:
    """``SyncQueue``: the processor's poller is told when flushes are committed."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper
        self._alarm = Alarm()
        self._done: deque[tuple[Any, OSError | None]] = deque()
        self._arrived = Event()
        self.pending = 0
        self.fileno = self._alarm.fileno

    @property
    def room(self) -> int:
        return _QUEUE_SIZE - self.pending

    def start(self, requests: Sequence[tuple[Any, File]]) -> int:
        self.pending += len(requests)
        for name, file in requests:
            if isinstance(file, ShippedFile):
                self._shipper.ask([file.wanted], partial(self._end, name))
            else:
                self._end(name, None)
        return len(requests)

    def _end(self, name: Any, error: OSError | None) -> None:
        self._done.append((name, error))
        self._arrived.set()
        self._alarm.ring()

    def results(self, patience_s: float = 0.0) -> Sequence[tuple[Any, OSError | None]]:
        if patience_s and not self._done and not self._shipper.help():
            self._arrived.wait(patience_s)
        self._arrived.clear()
        self._alarm.silence()
        done = []
        while self._done:
            done.append(self._done.popleft())
        self.pending -= len(done)
        return done

    def close(self) -> None:
        self._alarm.close()
