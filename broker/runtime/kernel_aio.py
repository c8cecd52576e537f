"""Fsyncs that the kernel does for a thread, with Linux's asynchronous I/O: many at once, or one while the thread does other work.

A thread that calls ``fdatasync`` gives the interpreter's lock up before and waits for it afterwards. With many files on several
threads, this costs more than the fsyncs do. The kernel can be given many fsyncs with one call instead (``io_submit`` with
``IOCB_CMD_FDSYNC``, since Linux 4.18); its own threads do them, all at once. 100 files with a new record each took 2.3 ms this
way, and 4 us of this process's CPU time a file; with 8 or 16 threads they took 5 ms and 45 us.

A descriptor tells a thread that also waits for sockets that an fsync is done (``KernelSyncQueue``).

Source: the kernel's include/uapi/linux/aio_abi.h. Neither Python nor the C library has these calls.
"""

import ctypes
import errno
import functools
import itertools
import os
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

# Numbers of the system calls io_setup, io_submit, io_getevents and io_destroy.
_CALLS = {"x86_64": (206, 209, 208, 207), "aarch64": (0, 2, 4, 1), "riscv64": (0, 2, 4, 1)}

_FDSYNC = 3
# struct iocb: data, key, rw_flags, opcode, priority, descriptor, then fields that only reads and writes use; flags, and the
# eventfd that is told of the end if the flag says so.
_IOCB = struct.Struct("=QIIHhI32xII")
_RESFD = 1
# struct io_event: data, obj, res, res2.
_EVENT = struct.Struct("=QQqq")

T = TypeVar("T")

# Unused contexts, by their size: the kernel takes some 30 ms to destroy one, and a process that starts a broker for
# each of its tests would spend most of their stops with it.
_IDLE_MAX = 8
_idle: list[tuple[int, ctypes.c_ulong]] = []
_generations = itertools.count(1)
os.register_at_fork(after_in_child=_idle.clear)  # they are the parent's

_call = getattr(ctypes.CDLL(None, use_errno=True), "syscall", None)
if _call is not None:
    _call.restype = ctypes.c_long


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class KernelAio:
    """Fsyncs of up to ``size`` files at once. Any thread, one at a time.

    Raises OSError if it is not available: another system or architecture, a sandbox that forbids the calls, or too many users
    (``fs.aio-max-nr``).
    """

    def __init__(self, size: int) -> None:
        numbers = _CALLS.get(platform.machine())
        if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32 or numbers is None or _call is None:
            raise OSError(errno.ENOSYS, "no asynchronous I/O on this system")
        setup, self._submit, self._get_events, destroy = numbers
        self.size = size
        context = _idle_context(size)
        if context is None:
            context = ctypes.c_ulong(0)
            if _call(ctypes.c_long(setup), ctypes.c_uint(size), ctypes.byref(context)):
                raise _error()
        self._context = context
        self._outstanding = [0]  # requests taken by the kernel whose results were not taken
        weakref.finalize(self, _give_up, destroy, context, size, self._outstanding).atexit = False
        self._requests = ctypes.create_string_buffer(_IOCB.size * size)
        start = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * size)(*range(start, start + _IOCB.size * size, _IOCB.size))
        self._events = ctypes.create_string_buffer(_EVENT.size * size)
        self._turn = next(_generations) << 32  # no request of this process has the data of another

    def fdatasync(self, descriptors: Sequence[int], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        """The position of each descriptor and its error, in the order in which they are done. At most ``size`` descriptors.

        None whenever nothing was done for ``patience_s``. Read the iterator to its end: nothing else waits for the kernel.
        Descriptors that the kernel refuses are synced one by one.
        """
        self._turn += self.size  # distinguishes the events of this call from those of an abandoned call
        first = self._turn
        for number, descriptor in enumerate(descriptors):
            self._prepare(number, first + number, descriptor, 0, 0)
        taken = self._start(len(descriptors))
        yield from self._results(first, set(range(taken)), patience_s)
        yield from one_by_one([functools.partial(os.fdatasync, each) for each in descriptors[taken:]], taken)

    def _results(self, first: int, pending: set[int], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        while pending:
            try:
                done = self._wait(1, patience_s)
            except OSError as error:
                for number in pending:
                    yield number, error
                return
            if not done:
                yield None
            for data, failed in done:
                number = data - first
                if number in pending:
                    pending.remove(number)
                    yield number, failed

    def _prepare(self, number: int, data: int, descriptor: int, flags: int, bell: int) -> None:
        """The request in this place of the next call."""
        _IOCB.pack_into(self._requests, number * _IOCB.size, data, 0, 0, _FDSYNC, 0, descriptor, flags, bell)

    def _start(self, count: int) -> int:
        """Give the kernel so many requests. How many it took, the first ones."""
        taken = max(0, self._call(self._submit, ctypes.c_long(count), self._pointers))
        self._outstanding[0] += taken
        return taken

    def _wait(self, least: int, patience_s: float) -> list[tuple[int, OSError | None]]:
        """The data and the error of each request that is done, ``least`` of them unless that takes longer than ``patience_s``.

        Raises OSError if the kernel's results can never be known. Another fsync need not report an error a second time.
        """
        timeout = struct.pack("=qq", int(patience_s), int(patience_s % 1 * 1e9))
        count = self._call(self._get_events, ctypes.c_long(least), ctypes.c_long(self.size), self._events, timeout)
        if count < 0:
            error = _error()
            raise OSError(error.errno, f"the result of an fsync is unknown: {error.strerror}")
        self._outstanding[0] -= count
        return [
            (data, OSError(-result, os.strerror(-result)) if result < 0 else None)
            for data, _, result, _ in _EVENT.iter_unpack(memoryview(self._events)[: count * _EVENT.size])
        ]

    def _call(self, number: int, *arguments: object) -> int:
        while True:
            result: int = _call(ctypes.c_long(number), self._context, *arguments)  # type: ignore[misc]
            if result >= 0 or ctypes.get_errno() != errno.EINTR:
                return result


def _idle_context(size: int) -> ctypes.c_ulong | None:
    for _ in range(len(_idle)):
        try:
            capacity, context = _idle.pop()
        except IndexError:  # another thread has it
            break
        if capacity == size:
            return context
        _idle.insert(0, (capacity, context))
    return None


def _give_up(destroy: int, context: ctypes.c_ulong, size: int, outstanding: list[int]) -> None:
    if not outstanding[0] and len(_idle) < _IDLE_MAX:
        _idle.append((size, context))
    else:  # it waits for a call that was not read to its end
        _call(ctypes.c_long(destroy), context)  # type: ignore[misc]


class KernelSyncQueue(Generic[T]):
    """Fsyncs that the kernel does while the thread goes on. For one thread, or several one after the other.

    Raises OSError if it is not available, as ``KernelAio`` does.
    """

    def __init__(self, size: int) -> None:
        self._aio = KernelAio(size)
        if not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, "no eventfd on this system")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pending: dict[int, T] = {}
        self._last = self._aio._turn

    @property
    def pending(self) -> int:
        """The number of fsyncs whose results were not taken."""
        return len(self._pending)

    @property
    def room(self) -> int:
        """How many more can be started."""
        return self._aio.size - len(self._pending)

    def fileno(self) -> int:
        """Readable when an fsync is done."""
        return self._bell

    def start(self, requests: Sequence[tuple[T, HasDescriptor]]) -> int:
        """``fdatasync`` these, at most ``room``, each with the name by which ``results`` calls it.

        Returns how many were taken, the first ones. They may be closed then.
        """
        aio, first = self._aio, self._last + 1
        for number, (_, file) in enumerate(requests):
            aio._prepare(number, first + number, file.fileno(), _RESFD, self._bell)
        taken = aio._start(len(requests))
        for number, (name, _) in enumerate(requests[:taken], first):
            self._pending[number] = name
        self._last += taken
        return taken

    def results(self, patience_s: float = 0.0) -> list[tuple[T, OSError | None]]:
        """What is done, with its error. Waits for something for up to ``patience_s``."""
        try:
            os.read(self._bell, 8)
        except BlockingIOError:
            pass  # no event yet, or this was called without an event
        pending = self._pending
        if not pending:
            return []
        try:
            done = self._aio._wait(1 if patience_s else 0, patience_s)
        except OSError as error:
            self._pending = {}
            return [(name, error) for name in pending.values()]
        return [(pending.pop(number), error) for number, error in done if number in pending]

    def close(self) -> None:
        """``pending`` should be 0: the results of the others are lost."""
        bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)


def one_by_one(syncs: Iterable[Callable[[], object]], first: int = 0) -> Iterator[tuple[int, OSError | None]]:
    """Call these one after the other: the number of each, from ``first`` on, and its error."""
    for number, sync in enumerate(syncs, first):
        try:
            sync()
        except OSError as error:
            yield number, error
        else:
            yield number, None


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@functools.cache
def is_interposed(name: str) -> bool:
    """Whether a function of the C library is replaced by that of a preloaded library (``LD_PRELOAD``)."""
    library = ctypes.CDLL(None)
    function, other = getattr(library, name, None), getattr(library, "syscall", None)
    if function is None or other is None:
        return True
    files = []
    for each in (function, other):
        info = _DlInfo()
        if not library.dladdr(ctypes.cast(each, ctypes.c_void_p), ctypes.byref(info)):
            return True
        files.append(info.file)
    return bool(files[0] != files[1])
