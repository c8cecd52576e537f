"""Files. The only module that uses the file system. The simulator's disk has the same interface and loses unsynced data.

Paths are ``str`` with ``/``, absolute or relative to the working directory. Errors of the machine are raised as ``OSError``.
Files and the disk may be used from any thread.
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, cast

from broker.runtime import kernel_aio
from broker.runtime.kernel_aio import HasDescriptor, KernelAio, KernelSyncQueue

T = TypeVar("T")

# Anything that has the buffer protocol; `collections.abc.Buffer` only exists from Python 3.12 on.
Buffer = bytes | bytearray | memoryview

# Errors of a process, or a machine, that has no free descriptor. They are temporary.
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_TRIES = 100

_fdatasync = getattr(os, "fdatasync", None)  # macOS has none

# One write of 1 MB sometimes takes ten times as long as four of 256 KiB here (dirty-page throttling counts whole writes).
WRITE_PIECE_BYTES = 256 * 1024
# IOV_MAX of Linux and macOS.
_VECTOR_MAX = 1024
# Of the page cache, nearly everywhere.
PAGE_BYTES = 4096
# The number of log files whose fsyncs the kernel gets with one call.
SYNCS_AT_ONCE = 128
# The kernel reads ahead in windows of this size, so a cold range shows at one of these steps.
RESIDENT_STEP_BYTES = 128 * 1024
# The page cache is filled in pieces of this size.
_WARM_BYTES = 1024 * 1024


# A Linux system call that Python does not offer. Its result is ignored, because a sync always follows.
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class File(Protocol):
    """An open file. Reads and writes are positional, so that any number of threads may use one ``File``.

    ``close()`` closes at once; the caller must know that no other thread uses the file. A file that readers may use is dropped
    instead: it closes with its last reference, for example that of a ``FileRegion`` that is being sent (implementations close
    in ``__del__``).
    """

    path: str
    # Its bytes are somewhere else: to read them may take long, and may fail for a while (``Unreachable``). It is a
    # ``RemoteFile``.
    is_remote: bool

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all of ``buffers`` one after another at ``offset``; returns bytes written (always all; loops on short writes)."""

    def pread(self, size: int, offset: int) -> bytes:
        """At most ``size`` bytes from ``offset``; fewer only at the end of the file."""

    def is_resident(self, offset: int, size: int) -> bool:
        """True if that range can be read without waiting for the disk (preadv2 RWF_NOWAIT; True where the OS cannot tell)."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self, data_only: bool = True) -> None:
        """fdatasync / fsync (F_FULLFSYNC on macOS)."""

    def begin_sync(self, offset: int, size: int) -> None:
        """Ask the operating system to start writing that range to the disk, so that ``sync`` waits less. A hint."""

    def fileno(self) -> int:
        """The descriptor, for ``os.sendfile``. The simulator's files have none and its sockets do not ask."""

    def close(self) -> None: ...


class RemoteFile(File, Protocol):
    """A file that is read only, and cannot be sent as it is: it has no descriptor."""

    def expect(self, offset: int, size: int) -> None:
        """These bytes will be asked for soon. A hint, which does not wait."""

    def bring(self, offset: int, size: int) -> "Sequence[FileRegion]":
        """Bring these bytes here. Returns the regions of other files from which they can be sent, which stay what they are as
        long as they are referred to. Blocks. Raises Unreachable, OSError."""


class Unreachable(OSError):
    """Bytes or names that are kept outside of this machine cannot be had, at least not now. It says nothing about the disk."""


class SyncQueue(Protocol):
    """``sync`` of files while the thread goes on. For one thread, or several one after the other."""

    @property
    def pending(self) -> int:
        """The number of begun syncs whose results were not taken."""

    @property
    def room(self) -> int:
        """How many more can begin."""

    def fileno(self) -> int:
        """For a poller: readable when results can be taken."""

    def start(self, requests: Sequence[tuple[Any, File]]) -> int:
        """Begin to sync these files, at most ``room``, each with a name of any kind. Returns how many have begun, the first ones.

        The files may be closed then.
        """

    def results(self, patience_s: float = 0.0) -> Sequence[tuple[Any, OSError | None]]:
        """The names of the finished files, with their errors. Waits up to ``patience_s`` for the first."""

    def close(self) -> None:
        """The results of those that are pending are lost."""


class Disk(Protocol):
    def when_exhausted(self, give_back: Callable[[], bool]) -> None:
        """Have ``give_back`` called, from any thread, where no descriptor is left for an ``open`` or a directory.

        It closes some and returns whether it did. As long as it returns True, the failed operation is tried again.
        """

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open an existing file (``FileNotFoundError``) or, with ``create``, make it if missing. Never truncates."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def makedirs(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool:
        """True for a directory, or a link to one."""

    def is_link(self, path: str) -> bool:
        """A symbolic link, whatever it leads to."""

    def file_size(self, path: str) -> int:
        """As ``File.size``, without opening the file. ``FileNotFoundError``."""

    def rename(self, old: str, new: str) -> None:
        """Replaces ``new`` if it is there (files), atomically."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name (a hard link), possibly in another directory. ``FileExistsError`` if ``new`` is there."""

    def remove(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this directory durable."""

    def syncs_at_once(self) -> int:
        """The number of files that ``sync_all`` syncs at the same time; 1 if it takes them one after the other."""

    def sync_all(self, files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        """``sync`` several files, at most ``syncs_at_once``: the position of each and its error, as soon as it is done.

        None whenever none was done for ``patience_s``, if the disk can tell. Read it to its end.
        """

    def sync_queue(self) -> "SyncQueue | None":
        """A queue for a thread that goes on with other work meanwhile; None if every ``sync`` needs a thread."""

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> File:
        """Take an exclusive lock on a lock file; ``BlockingIOError`` if another process (or another broker in this one) has it.

        The lock is held until the returned file is closed. The file says in text who has it, for the error message.
        """


def sync_each(files: Sequence[File]) -> Iterator[tuple[int, OSError | None]]:
    """``Disk.sync_all``, one after the other."""
    return kernel_aio.one_by_one(file.sync for file in files)


def _is_intercepted() -> bool:
    """Whether somebody has put a function of their own in the place of ``os.fdatasync`` or the C library's, to skip fsyncs, to
    count them or to have them fail. Then all fsyncs have to go there. Who replaces ``syscall`` as well gets them that way."""
    return os.fdatasync is not _fdatasync or kernel_aio.is_interposed("fdatasync")


class FileRegion:
    """``size`` bytes of ``file`` from ``offset``: a piece of a response that leaves by ``os.sendfile``, or by ``send`` with what
    stands around it if it is short."""

    __slots__ = ("file", "offset", "size")

    def __init__(self, file: File, offset: int, size: int) -> None:
        self.file = file
        self.offset = offset
        self.size = size

    def __len__(self) -> int:
        return self.size

    def warm(self) -> "Sequence[FileRegion]":
        """Read it, so that sendfile finds it in the page cache. It blocks. Returns the regions to be sent in its place: itself,
        unless the file is a ``RemoteFile``. Raises OSError."""
        file = self.file
        if file.is_remote:
            return cast(RemoteFile, file).bring(self.offset, self.size)
        for offset in range(self.offset, self.offset + self.size, _WARM_BYTES):
            file.pread(min(_WARM_BYTES, self.offset + self.size - offset), offset)
        return (self,)

    def read(self) -> bytes:
        """All of it. It blocks unless the region is in the page cache. Raises OSError, also if the file is shorter."""
        data = self.file.pread(self.size, self.offset)
        if len(data) < self.size:
            raise self.too_short()
        return data

    def too_short(self) -> OSError:
        return OSError(f"{self.file.path} ends before byte {self.offset + self.size}")

    def __repr__(self) -> str:
        return f"FileRegion({self.file.path!r}, offset={self.offset}, size={self.size})"


def warm_all(parts: Sequence[T | FileRegion], *, is_enough: bool = False) -> list[T | FileRegion]:
    """``parts`` with every region warmed, or replaced by those to be sent in its place. It blocks. Raises OSError. With
    ``is_enough``, what comes before a region that cannot be read now (``Unreachable``) is enough, if anything does."""
    for part in parts[1:]:
        if isinstance(part, FileRegion) and part.file.is_remote:
            cast(RemoteFile, part.file).expect(part.offset, part.size)
    warmed: list[T | FileRegion] = []
    for part in parts:
        if isinstance(part, FileRegion):
            try:
                warmed += part.warm()
            except Unreachable:
                if not (is_enough and warmed):
                    raise
                break
        else:
            warmed.append(part)
    return warmed


class SystemFile:
    """A descriptor of the operating system."""

    __slots__ = ("__weakref__", "_fd", "path")

    is_remote = False

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        if len(buffers) == 1:  # the usual append: one system call, nothing else
            buffer = buffers[0]
            size = len(buffer)
            if size <= WRITE_PIECE_BYTES:
                written = os.pwrite(self._fd, buffer, offset)
                if written == size:
                    return written
        elif len(buffers) <= _VECTOR_MAX:
            size = sum(map(len, buffers))
            if size <= WRITE_PIECE_BYTES and os.pwritev(self._fd, buffers, offset) == size:
                return size
        return self._pwrite_pieces(buffers, offset)

    def _pwrite_pieces(self, buffers: Sequence[Buffer], offset: int) -> int:
        position = offset
        for buffer in buffers:
            view = memoryview(buffer)
            start = 0
            while start < len(view):
                written = os.pwrite(self._fd, view[start : start + WRITE_PIECE_BYTES], position)
                if written == 0:  # POSIX leaves this open; looping on it would never end
                    raise OSError(errno.EIO, "nothing could be written", self.path)
                start += written
                position += written
        return position - offset

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # reads may be short before the end of a file: continue until a read is empty
        read = len(data)
        while read < size:
            data = os.pread(self._fd, size - read, offset + read)
            if not data:
                break
            parts.append(data)
            read += len(data)
        return b"".join(parts)

    def is_resident(self, offset: int, size: int) -> bool:
        if size <= 0 or not hasattr(os, "RWF_NOWAIT"):
            return True
        probe = [bytearray(1)]
        positions = [*range(offset, offset + size, RESIDENT_STEP_BYTES), offset + size - 1]
        try:
            for position in positions:
                os.preadv(self._fd, probe, position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # this file system cannot tell
                return True
            raise
        return True

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self, data_only: bool = True) -> None:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves the data in the drive's cache
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        elif data_only and hasattr(os, "fdatasync"):
            os.fdatasync(self._fd)
        else:
            os.fsync(self._fd)

    def begin_sync(self, offset: int, size: int) -> None:
        if _sync_file_range is not None:
            _sync_file_range(self._fd, offset, size, _SYNC_FILE_RANGE_WRITE)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # `_fd` is missing if __init__ was never reached.
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            self._fd = -1
            os.close(fd)


class _SystemSyncQueue(KernelSyncQueue[Any]):
    def __init__(self, size: int, is_intercepted: Callable[[], bool]) -> None:
        super().__init__(size)
        self._is_intercepted = is_intercepted

    def start(self, requests: Sequence[tuple[Any, HasDescriptor]]) -> int:
        return 0 if self._is_intercepted() else super().start(requests)


class SystemDisk:
    """The file system of the machine."""

    def __init__(self) -> None:
        self._give_back: tuple[Callable[[], bool], ...] = ()
        self._aio: list[KernelAio] = []  # those not in use
        self._aio_offered = True  # until making one fails

    def when_exhausted(self, give_back: Callable[[], bool]) -> None:
        self._give_back = (*self._give_back, give_back)

    def _again(self, attempt: Callable[[], T], error: OSError) -> T:
        for _ in range(_TRIES):  # another thread may take the descriptor that was freed
            if error.errno not in NO_DESCRIPTORS or not any(give_back() for give_back in self._give_back):
                break
            try:
                return attempt()
            except OSError as again:
                error = again
        raise error

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SystemFile:
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        try:
            return self._file(os.open(path, flags, 0o644), path)
        except OSError as error:
            return self._file(self._again(lambda: os.open(path, flags, 0o644), error), path)

    # For disks that look at what files do.

    def _file(self, fd: int, path: str) -> SystemFile:
        return SystemFile(fd, path)

    def _is_intercepted(self) -> bool:
        """Whether all fsyncs have to go through ``File.sync``."""
        return _is_intercepted()

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            return sorted(self._again(lambda: os.listdir(path), error))

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except OSError as error:
            fd = self._again(lambda: os.open(path, flags), error)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def syncs_at_once(self) -> int:
        aio = self._take_aio() if not self._is_intercepted() else None
        if aio is None:
            return 1
        self._aio.append(aio)
        return aio.size

    def sync_all(self, files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        aio = self._take_aio() if files and not self._is_intercepted() else None
        if aio is None:
            yield from sync_each(files)
        else:
            yield from aio.fdatasync([file.fileno() for file in files], patience_s)
            self._aio.append(aio)

    def sync_queue(self) -> SyncQueue | None:
        if self._aio_offered and not self._is_intercepted():
            try:
                return _SystemSyncQueue(SYNCS_AT_ONCE, self._is_intercepted)
            except OSError:
                pass
        return None

    def _take_aio(self) -> KernelAio | None:
        try:
            return self._aio.pop()
        except IndexError:
            pass
        if self._aio_offered:
            try:
                return KernelAio(SYNCS_AT_ONCE)
            except OSError:
                self._aio_offered = False
        return None

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize

    def lock(self, path: str) -> SystemFile:
        file = self.open(path, create=True)
        try:
            # flock belongs to the open file, not to the process as fcntl's locks do: it also tells two brokers in one
            # process apart.
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            file.close()
            raise
        try:
            file.truncate(0)
            file.pwrite([f"pid {os.getpid()}\n".encode()], 0)
        except OSError:  # a full disk: the text only serves error messages
            pass
        return file
