"""The machine as a broker in a test sees it, with faults on demand: a full disk, slow fsyncs, a clock that jumps.

| kind | what meets the fault | what happens |
|---|---|---|
| disk_full | a write that makes a file longer, a new file or directory, a change of the catalogue | it fails with ENOSPC |
| slow_fsync | an fsync, also that of a change of the catalogue | it takes ``delay_ms`` longer |
| clock_jump | a look at the wall clock | it is ``jump_ms`` ahead, or behind |

A broker on this machine pays one look at ``Faults.of_machine`` for each of these. `broker serve` only uses it with
``faults_enabled``.

Any thread; a slow fsync keeps the thread that waits for it. The kernel's own queue of fsyncs is not used meanwhile, so no
processor waits.

Tests: tests/server/test_machine.py.
"""

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from broker.errors import StorageError
from broker.faults.fault import Passing
from broker.faults.faults import FaultHandle, Faults
from broker.metadata.sqlite import SqliteCatalogue
from broker.metadata.sqlite_database import Connection, SqliteDatabase
from broker.runtime import Runtime, system_runtime
from broker.runtime.clock import SystemClock
from broker.runtime.disk import Buffer, SystemDisk, SystemFile

T = TypeVar("T")


class Machine:
    """The operating system's ``runtime`` and catalogues, with faults."""

    def __init__(self, faults: Faults) -> None:
        work = _Work(faults)
        self._work = work
        self.runtime: Runtime = attrs.evolve(system_runtime(), disk=_Disk(work), clock=_Clock(work))

    def open_catalogue(self, path: str) -> SqliteCatalogue:
        """As ``SqliteCatalogue``."""
        return SqliteCatalogue(path, _Database(path, self._work))


class _Work:
    """What the broker has the machine do, as faults see it."""

    __slots__ = ("faults",)

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def write(self, path: str) -> None:
        """A write that needs room. Raises OSError."""
        if self._meet("disk_full", "WRITE") is not None:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def sync(self) -> None:
        handle = self._meet("slow_fsync", "FSYNC")
        if handle is not None:
            self.faults.hold(handle, (handle.fault.delay_ms or 0) / 1000)

    def jumped_ms(self) -> int:
        handle = self._meet("clock_jump", "CLOCK")
        return 0 if handle is None else handle.fault.jump_ms or 0

    def _meet(self, kind: str, what: str) -> FaultHandle | None:
        if kind not in self.faults.of_machine:
            return None
        return self.faults.meet(kind, Passing(SystemClock.time_ms(), what, None, "", protocol="machine"))


class _Clock:
    """A ``Clock``."""

    monotonic = staticmethod(SystemClock.monotonic)

    def __init__(self, work: _Work) -> None:
        self._work = work
        self._faults = work.faults

    def time_ms(self) -> int:
        now = SystemClock.time_ms()
        return now + self._work.jumped_ms() if self._faults.of_machine else now


class _File(SystemFile):
    __slots__ = ("_faults", "_work")

    def __init__(self, fd: int, path: str, work: _Work) -> None:
        super().__init__(fd, path)
        self._work = work
        self._faults = work.faults

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        if self._faults.of_machine and offset + sum(map(len, buffers)) > self.size():
            self._work.write(self.path)
        return SystemFile.pwrite(self, buffers, offset)

    def sync(self, data_only: bool = True) -> None:
        if self._faults.of_machine:
            self._work.sync()
        SystemFile.sync(self, data_only)


class _Disk(SystemDisk):
    def __init__(self, work: _Work) -> None:
        super().__init__()
        self._work = work
        self._faults = work.faults

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SystemFile:
        if create and self._faults.of_machine and not self.exists(path):
            self._work.write(path)
        return super().open(path, create=create, read_only=read_only)

    def makedirs(self, path: str) -> None:
        if self._faults.of_machine and not self.exists(path):
            self._work.write(path)
        super().makedirs(path)

    def sync_dir(self, path: str) -> None:
        if self._faults.of_machine:
            self._work.sync()
        super().sync_dir(path)

    def free_bytes(self, path: str) -> int:
        return 0 if "disk_full" in self._faults.of_machine else super().free_bytes(path)

    def _file(self, fd: int, path: str) -> SystemFile:
        return _File(fd, path, self._work)

    def _is_intercepted(self) -> bool:
        return "slow_fsync" in self._faults.of_machine or super()._is_intercepted()


class _Database:
    """The catalogue's ``Transactions``. SQLite does not go through ``Disk``."""

    def __init__(self, path: str, work: _Work) -> None:
        self._path = path
        self._work = work
        self._database = SqliteDatabase(path)
        self.read, self.copy, self.close = self._database.read, self._database.copy, self._database.close

    def write(self, change: Callable[[Connection], T]) -> T:
        if self._work.faults.of_machine:
            try:
                self._work.write(self._path)
            except OSError as error:
                raise StorageError(f"The catalogue could not be written: {error}") from error
            self._work.sync()
        return self._database.write(change)
