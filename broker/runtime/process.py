"""The process: ending it, its limit of descriptors, its service manager, and its freed memory. Any thread.

``exit_now`` does not depend on threads or locks that may be stuck.

Files, sockets and pollers share the limit of descriptors, which belongs to the process. `broker serve` raises it; a broker that
is embedded in another process only reads it.

``ServiceManager`` tells systemd the broker's state, by the protocol of sd_notify(3): datagrams to the socket of NOTIFY_SOCKET.
Without that variable, which only a unit with ``Type=notify`` has, nothing happens. A message that cannot be sent is dropped: the
broker's work must not depend on its supervisor.

glibc returns freed memory to the kernel early: large blocks at once, and the end of the heap as soon as some hundred KiB of it
are free. A process that works through data in pieces of megabytes then gets its memory anew for each piece. The kernel clears
every page again, which takes several times as long as copying the piece.
"""

import _thread
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def process_name() -> str:
    """Machine and process, for people who look for it."""
    return f"{socket.gethostname()}, process {os.getpid()}"


class LastResort:
    """Ends the process after some seconds, whatever its threads are doing, unless it is called off.

    May be made in a signal handler: it takes no lock, which ``threading.Thread`` does.
    """

    def __init__(self, seconds: float, status: int, why: str) -> None:
        """``why`` is written to standard error."""
        self._called_off = False
        self._end = (seconds, status, why)
        _thread.start_new_thread(self._wait, ())

    def call_off(self) -> None:
        self._called_off = True

    def _wait(self) -> None:
        seconds, status, why = self._end
        time.sleep(seconds)
        if not self._called_off:
            exit_now(status, why)


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent, with this id, has ended. On Linux; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended already
        exit_now(1)


def exit_now(status: int, why: str = "") -> None:
    """End the process without the interpreter's shutdown, which may wait for other threads.

    ``why`` is written to standard error unless that would block: it may be a pipe that is full or has no reader.
    """
    try:
        if why:
            writable = select.poll()
            writable.register(2, select.POLLOUT)
            if writable.poll(0):
                os.write(2, f"{why}\n".encode())
    except (OSError, ValueError):
        pass
    finally:
        os._exit(status)


UNLIMITED: Final = 2**31


def descriptor_limit() -> int:
    """The soft RLIMIT_NOFILE; ``UNLIMITED`` if there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY or soft > UNLIMITED else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one: many systems start a process with 1,024 descriptors and allow far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # macOS reports "unlimited" and refuses it; the limit stays as it was


# A full or stuck socket must not hold the broker up.
_SEND_TIMEOUT_S = 1.0


class ServiceManager:
    """The program that has started this process, if it wants to be told."""

    def __init__(self) -> None:
        # Taken out of the environment, so that programs started from here do not speak for the broker.
        self._path = os.environ.pop("NOTIFY_SOCKET", "")

    def recovering(self) -> None:
        self._send("STATUS=Opening the data directory")

    def standing_by(self) -> None:
        """Ready for that: it may take months until it serves, and whoever waits for READY would not wait."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=Standing by")

    def ready(self, listeners: str) -> None:
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=Serving {listeners}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=Finishing requests and writing to disk")

    def _send(self, message: str) -> None:
        if not self._path.startswith("/"):  # names without a file are not for units
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(_SEND_TIMEOUT_S)
                sending.sendto(message.encode(), self._path)
        except OSError:
            pass


# From glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
# The largest threshold that glibc accepts: half of the largest heap of a thread.
_MMAP_THRESHOLD_MAX = 32 * 1024 * 1024

# macOS and musl do not have it.
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
_kept = 0


def keep_freed_memory(size: int) -> bool:
    """Keep up to ``size`` bytes of freed memory (in each of the allocator's heaps) for later allocations. The largest size
    that was requested counts.

    Returns False if the C library cannot do that, or if the user has set it up (``MALLOC_...``).
    """
    global _kept
    if _mallopt is None or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    if size <= _kept:
        return True
    _kept = size
    return bool(_mallopt(_TRIM_THRESHOLD, size)) and bool(_mallopt(_MMAP_THRESHOLD, min(size, _MMAP_THRESHOLD_MAX)))
