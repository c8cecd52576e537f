"""The simulated disk as one life of the broker sees it.

Faults: EIO and ENOSPC on writes (some of the bytes may have been written), EIO on reads, EIO on fsync, after which the pages
count as clean and are never written (as Linux does it), and slow operations, which let the other threads go on.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker.runtime.disk import Buffer, File, sync_each
from tests.sim.medium import Change, Directory, DiskFaults, Inode, Medium
from tests.sim.world import Killed, Process

__all__ = ["Directory", "DiskFaults", "Medium", "SimDisk", "SimFile"]


class SimFile:
    """An open file of one life of the broker."""

    is_remote = False

    def __init__(self, disk: "SimDisk", path: str, inode: Inode, read_only: bool) -> None:
        self.path = path
        self._disk = disk
        self._process = disk.process
        self._medium = disk.medium
        self._inode = inode
        self._read_only = read_only
        self._locks = False
        self._fd = disk.process.world.next_descriptor()
        disk.process.files[self._fd] = path  # not a reference: a file closes when the last one goes
        disk.process.opened[self._fd] = self

    # -- bytes ----------------------------------------------------------------------------------------------------------

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        self._start("write", len(data))
        if self._read_only:
            raise OSError(errno.EBADF, "opened for reading", self.path)
        faults, rng = self._medium.faults, self._medium.rng
        if faults.full and offset + len(data) > len(self._inode.content):
            self._some_of(data, offset)
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        if faults.write_error and rng.random() < faults.write_error:
            self._some_of(data, offset)
            raise OSError(errno.EIO, "Input/output error", self.path)
        if data:
            self._inode.change(Change(offset, data))
        self._medium.world.note(f"  write {self.path} {offset}+{len(data)}")
        self._medium.world.yield_point(self._process)
        return len(data)

    def _some_of(self, data: bytes, offset: int) -> None:
        size = self._medium.rng.randrange(len(data)) if data else 0
        self._medium.world.note(f"  write fails {self.path} {offset}+{size} of {len(data)}")
        if size:
            self._inode.change(Change(offset, data[:size]))

    def pread(self, size: int, offset: int) -> bytes:
        self._start("read", size)
        faults = self._medium.faults
        if faults.read_error and self._medium.rng.random() < faults.read_error:
            self._medium.world.note(f"  read fails {self.path}")
            raise OSError(errno.EIO, "Input/output error", self.path)
        return bytes(self._inode.content[offset : offset + size])

    def is_resident(self, offset: int, size: int) -> bool:
        self._start("resident", 0)
        cold = self._medium.faults.cold
        return not cold or self._medium.rng.random() >= cold

    def size(self) -> int:
        self._start("size", 0)
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._start("truncate", 0)
        faults = self._medium.faults
        if self._read_only:
            raise OSError(errno.EINVAL, "opened for reading", self.path)
        if faults.write_error and self._medium.rng.random() < faults.write_error:
            raise OSError(errno.EIO, "Input/output error", self.path)
        if faults.full and size > len(self._inode.content):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        if size != len(self._inode.content):
            self._inode.change(Change(size, None))
        self._medium.world.note(f"  truncate {self.path} {size}")
        self._medium.world.yield_point(self._process)

    def sync(self, data_only: bool = True) -> None:
        self._start("sync", 0)
        self.finish_sync(self.written)

    @property
    def written(self) -> int:
        """The writes that an fsync that begins now makes durable. Writes during it might be included; here they are not."""
        return self._inode.position

    def finish_sync(self, position: int) -> None:
        """An fsync that began when ``written`` was this. The file may be closed: the kernel keeps it open."""
        inode, medium = self._inode, self._medium
        medium.world.wait_for_disk(self._process, medium.rng.choice((0.0002, 0.002, 0.02)) * medium.rng.random())
        if medium.faults.sync_error and medium.rng.random() < medium.faults.sync_error:
            medium.world.note(f"  sync fails {self.path}")
            inode.sync(position, lost=True)  # marked clean, never written: the next fsync says that all is well
            raise OSError(errno.EIO, "Input/output error", self.path)
        inode.sync(position)
        medium.world.note(f"  sync {self.path}")
        medium.world.yield_point(self._process)

    def begin_sync(self, offset: int, size: int) -> None:
        """A hint: unsynced writes may survive a crash or not, as before."""

    def peek(self, size: int, offset: int) -> bytes:
        """For ``sendfile``: the kernel reads, nothing interrupts."""
        self._process.check()
        if self._fd < 0:
            raise OSError(errno.EBADF, "closed", self.path)
        return bytes(self._inode.content[offset : offset + size])

    def fileno(self) -> int:
        """For ``SimSocket.send_file``, which finds the file by it, whatever disk has wrapped it."""
        if self._fd < 0:
            raise OSError(errno.EBADF, "closed", self.path)
        return self._fd

    # -- life -------------------------------------------------------------------------------------------------------------

    def _start(self, what: str, size: int) -> None:
        if self._fd < 0:
            self._process.check()
            raise OSError(errno.EBADF, "closed", self.path)
        self._disk.pass_time(size)

    def close(self) -> None:
        self._process.check()
        self.forget()

    def forget(self) -> None:
        if self._fd >= 0:
            self._process.files.pop(self._fd, None)
            self._fd = -1
            if self._locks and self._inode.locked_by is self._process:
                self._inode.locked_by = None

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.forget()


class SimSyncQueue:
    """The results come in any order. Whoever takes them waits for the disk, which a kernel would not make him do."""

    writable = False

    def __init__(self, disk: "SimDisk") -> None:
        self._disk = disk
        self._fd = disk.process.world.next_descriptor()
        self._pending: list[tuple[Any, SimFile, int]] = []

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def room(self) -> int:
        return 4 - len(self._pending)

    @property
    def readable(self) -> bool:
        return bool(self._pending)

    def fileno(self) -> int:
        return self._fd

    def start(self, requests: Sequence[tuple[Any, File]]) -> int:
        """Sometimes the kernel does not take all of them."""
        self._disk.pass_time(0)
        rng = self._disk.medium.rng
        taken = len(requests) if rng.random() < 0.9 else rng.randrange(len(requests) + 1)
        for name, file in requests[:taken]:
            assert isinstance(file, SimFile)
            self._pending.append((name, file, file.written))
        return taken

    def results(self, patience_s: float = 0.0) -> list[tuple[Any, OSError | None]]:
        done: list[tuple[Any, OSError | None]] = []
        rng = self._disk.medium.rng
        for _ in range(rng.randint(1, len(self._pending)) if self._pending else 0):
            name, file, position = self._pending.pop(rng.randrange(len(self._pending)))
            try:
                file.finish_sync(position)
            except OSError as error:
                done.append((name, error))
            else:
                done.append((name, None))
        return done

    def close(self) -> None:
        assert not self._pending


class SimDisk:
    """``Disk`` for one life of the broker."""

    def __init__(self, process: Process, medium: Medium) -> None:
        self.process = process
        self.medium = medium

    def when_exhausted(self, give_back: Callable[[], bool]) -> None:
        """There is no lack of descriptors here."""

    # -- faults ---------------------------------------------------------------------------------------------------------

    def pass_time(self, size: int) -> None:
        world, faults = self.medium.world, self.medium.faults
        world.yield_point(self.process)
        world.now += 2e-6 + size * 1e-9
        if faults.slow and self.medium.rng.random() < faults.slow:
            world.wait_for_disk(self.process, self.medium.rng.random() * faults.slow_most_s)

    def _operation(self, what: str) -> None:
        self.pass_time(0)
        faults = self.medium.faults
        if faults.open_error and self.medium.rng.random() < faults.open_error:
            self.medium.world.note(f"  fails: {what}")
            raise OSError(errno.EIO, "Input/output error", what)
        self.medium.world.note(f"  {what}")

    # -- names ------------------------------------------------------------------------------------------------------------

    def _parent(self, path: str) -> tuple[Directory, str]:
        parts = [part for part in path.split("/") if part and part != "."]
        assert parts, "the root has no parent"
        directory = self.medium.root
        for part in parts[:-1]:
            entry = directory.entries.get(part)
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            if not isinstance(entry, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            directory = entry
        return directory, parts[-1]

    def _find(self, path: str) -> "Inode | Directory":
        if not path.strip("/."):
            return self.medium.root
        directory, name = self._parent(path)
        entry = directory.entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return entry

    def _directory(self, path: str) -> Directory:
        entry = self._find(path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return entry

    # -- Disk -------------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SimFile:
        self._operation(f"open {path}")
        return self._open(path, create, read_only)

    def _open(self, path: str, create: bool, read_only: bool) -> SimFile:
        directory, name = self._parent(path)
        entry = directory.entries.get(name)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if entry is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            if self.medium.faults.full and self.medium.rng.random() < 0.5:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            entry = self.medium.new_inode()
            directory.put(name, entry)
        return SimFile(self, path, entry, read_only)

    def listdir(self, path: str) -> list[str]:
        self._operation(f"listdir {path}")
        return sorted(self._directory(path).entries)

    def makedirs(self, path: str) -> None:
        self._operation(f"makedirs {path}")
        directory = self.medium.root
        for part in path.split("/"):
            if not part or part == ".":
                continue
            entry = directory.entries.get(part)
            if entry is None:
                entry = Directory()
                directory.put(part, entry)
            elif not isinstance(entry, Directory):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            directory = entry

    def exists(self, path: str) -> bool:
        self.pass_time(0)
        try:
            self._find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_dir(self, path: str) -> bool:
        self.pass_time(0)
        try:
            return isinstance(self._find(path), Directory)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_link(self, path: str) -> bool:
        self.pass_time(0)
        return False

    def file_size(self, path: str) -> int:
        self._operation(f"file_size {path}")
        entry = self._find(path)
        return len(entry.content) if isinstance(entry, Inode) else 0

    def rename(self, old: str, new: str) -> None:
        self._operation(f"rename {old} {new}")
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        entry = source.entries.get(old_name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
        assert source is target, "a rename between directories: the disk does not know how to lose it"
        there = target.entries.get(new_name)
        if isinstance(there, Directory):
            if not isinstance(entry, Directory):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", new)
            if there.entries:
                raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        elif there is not None and isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", new)
        target.put(new_name, entry, old_name)

    def link(self, old: str, new: str) -> None:
        self._operation(f"link {old} {new}")
        entry = self._find(old)
        target, name = self._parent(new)
        if name in target.entries:
            raise FileExistsError(errno.EEXIST, "File exists", new)
        assert not isinstance(entry, Directory), "directories have one name"
        target.put(name, entry)

    def remove(self, path: str) -> None:
        self._operation(f"remove {path}")
        directory, name = self._parent(path)
        entry = directory.entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        directory.put(name, None)

    def rmdir(self, path: str) -> None:
        self._operation(f"rmdir {path}")
        directory, name = self._parent(path)
        entry = directory.entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if entry.entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        directory.put(name, None)

    def syncs_at_once(self) -> int:
        return 4

    def sync_queue(self) -> "SimSyncQueue":
        return SimSyncQueue(self)

    def sync_all(self, files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None]]:
        return sync_each(files)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        position = directory.position
        self._operation(f"sync_dir {path}")
        self.medium.world.wait_for_disk(self.process, 0.0001)
        directory.sync(position)

    def free_bytes(self, path: str) -> int:
        self.pass_time(0)
        return 0 if self.medium.faults.full else max(0, self.medium.capacity - self.medium.used())

    def total_bytes(self, path: str) -> int:
        return self.medium.capacity

    def lock(self, path: str) -> SimFile:
        self._operation(f"lock {path}")
        file = self._open(path, True, False)
        inode = file._inode
        owner = inode.locked_by
        if owner is not None and owner.alive:
            file.close()
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable", path)
        inode.locked_by = self.process
        file._locks = True
        try:
            file.truncate(0)
            file.pwrite([b"pid 1\n"], 0)
        except OSError:
            pass
        except Killed:
            inode.locked_by = None
            file.forget()
            raise
        return file
