"""Several files are fsynced at once by one thread, with Linux's asynchronous I/O.

A thread that calls ``fdatasync`` gives the interpreter's lock up before and waits for it afterwards. With many files on several
threads, this costs more than the fsyncs do. The kernel can be given many fsyncs with one call instead (``io_submit`` with
``IOCB_CMD_FDSYNC``, since Linux 4.18); its own threads do them, all at once. 100 files with a new record each took 2.3 ms this
way, and 4 us of this process's CPU time a file; with 8 or 16 threads they took 5 ms and 45 us.

Source: the kernel's include/uapi/linux/aio_abi.h. Neither Python nor the C library has these calls.
"""

import ctypes
import errno
import functools
import os
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

# Numbers of the system calls io_setup, io_submit, io_getevents and io_destroy.
_CALLS = {"x86_64": (206, 209, 208, 207), "aarch64": (0, 2, 4, 1), "riscv64": (0, 2, 4, 1)}

_FDSYNC = 3
# struct iocb: data, key, rw_flags, opcode, priority, descriptor, then what only reads and writes use.
_IOCB = struct.Struct("=QIIHhI40x")
# struct io_event: data, obj, res, res2.
_EVENT = struct.Struct("=QQqq")

_call = getattr(ctypes.CDLL(None, use_errno=True), "syscall", None)
if _call is not None:
    _call.restype = ctypes.c_long


class KernelAio:
    """Fsyncs of up to ``size`` files at once. Any thread, one at a time.

    Raises OSError where it is not available: another system or architecture, a sandbox that forbids the calls, or too many users
    (``fs.aio-max-nr``).
    """

    def __init__(self, size: int) -> None:
        numbers = _CALLS.get(platform.machine())
        if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32 or numbers is None or _call is None:
            raise OSError(errno.ENOSYS, "no asynchronous I/O on this system")
        setup, self._submit, self._get_events, destroy = numbers
        self.size = size
        context = ctypes.c_ulong(0)
        if _call(ctypes.c_long(setup), ctypes.c_uint(size), ctypes.byref(context)):
            raise _error()
        self._context = context
        # It waits for what was not read to its end.
        weakref.finalize(self, _call, ctypes.c_long(destroy), context).atexit = False
        self._requests = ctypes.create_string_buffer(_IOCB.size * size)
        start = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * size)(*range(start, start + _IOCB.size * size, _IOCB.size))
        self._events = ctypes.create_string_buffer(_EVENT.size * size)
        self._turn = 0

    def fdatasync(self, descriptors: Sequence[int], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        """The position of each descriptor and its error, in the order in which they are done. At most ``size`` descriptors.

        None whenever nothing was done for ``patience_s``. Read the iterator to its end: nothing else waits for the kernel.
        Descriptors that the kernel does not take are synced one by one.
        """
        self._turn += self.size  # tells the events of this call from those of one that was not read to its end
        first = self._turn
        for number, descriptor in enumerate(descriptors):
            _IOCB.pack_into(self._requests, number * _IOCB.size, first + number, 0, 0, _FDSYNC, 0, descriptor)
        taken = max(0, self._call(self._submit, ctypes.c_long(len(descriptors)), self._pointers))
        yield from self._results(first, set(range(taken)), patience_s)
        yield from one_by_one([functools.partial(os.fdatasync, each) for each in descriptors[taken:]], taken)

    def _results(self, first: int, pending: set[int], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        timeout = struct.pack("=qq", int(patience_s), int(patience_s % 1 * 1e9))
        while pending:
            count = self._call(self._get_events, ctypes.c_long(1), ctypes.c_long(self.size), self._events, timeout)
            if count < 0:
                # What the kernel did with them will never be known, and another fsync need not report an error a second time.
                error = _error()
                for number in pending:
                    yield number, OSError(error.errno, f"the result of an fsync is unknown: {error.strerror}")
                return
            if count == 0:
                yield None
            for data, _, result, _ in _EVENT.iter_unpack(memoryview(self._events)[: count * _EVENT.size]):
                number = data - first
                if number in pending:
                    pending.remove(number)
                    yield number, OSError(-result, os.strerror(-result)) if result < 0 else None

    def _call(self, number: int, *arguments: object) -> int:
        while True:
            result: int = _call(ctypes.c_long(number), self._context, *arguments)  # type: ignore[misc]
            if result >= 0 or ctypes.get_errno() != errno.EINTR:
                return result


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
    """Whether a function of the C library is replaced by one of a preloaded library (``LD_PRELOAD``)."""
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
