"""Threads that run one at a time, so that they do not compete for the interpreter's lock.

A thread gives up the interpreter's lock for each system call. If another thread waits for the lock, the first thread finds it
taken when its call returns, so both sleep and are woken again at every call. With a hundred connections on three processors, this
took as much CPU time as the requests did. Threads with a run token hold it while they work, and give it up when they wait for
something, or have the kernel copy so much that another thread should work meanwhile.

The token guards nothing. A thread that waits for it checks every 2 ms whether its holder uses the CPU, or waits for a CPU. If
not, the holder is in a long system call, and for a while no thread waits for the token. So a disk that hangs, or takes 2 ms or
more again and again, delays the other threads by a tenth of their time at most.

Tests: tests/runtime/test_run_token.py.
"""

import sys
import time
from collections import deque
from collections.abc import Callable

from broker.runtime.threads import Lock, get_ident, get_native_id

# How long (s) a thread waits before it checks what the holder does, and the shortest time between two checks.
PATIENCE_S = 0.002
LOOKS = 20
# The same where the CPU time of another thread is not known (macOS).
BLIND_LOOKS = 2
# How long (s) no thread waits for the token after a thread has waited in vain.
REST_S = 0.02

# How long (s) a thread that has something to do keeps the token although another thread waits. Waking it takes 30 to 50 us.
KEEP_S = 0.0003
# How long (s) it goes on with its begun work.
LONG_S = 0.001
# The kernel copies more than this (bytes) for so long that another thread should work meanwhile.
LARGE_BYTES = 64 * 1024

_clock_of = getattr(time, "pthread_getcpuclockid", None)


class RunToken:
    """One for all threads that take turns. Each has a ``TokenHolder`` of its own."""

    def __init__(self, patience_s: float = PATIENCE_S, rest_s: float = REST_S) -> None:
        self.patience_s = patience_s
        self.rest_s = rest_s
        # Held by the thread that has the token. It is handed over without being released if another thread waits.
        self.lock = Lock()
        self.waiting: deque[TokenHolder] = deque()
        self.holder: TokenHolder | None = None  # the present or last holder
        self.rests_until = 0.0  # monotonic s


class TokenHolder:
    """The token as one thread uses it."""

    __slots__ = ("_clock_id", "_native_id", "_release", "_token", "_try", "bell", "held", "took_at", "waiting")

    def __init__(self, token: RunToken) -> None:
        self._token = token
        self._try, self._release = token.lock.acquire, token.lock.release
        self._clock_id: int | None = None  # of the thread's CPU time, once known
        self._native_id = 0
        self.bell = Lock()  # released when the token is handed over to this thread
        self.bell.acquire()
        self.waiting = token.waiting  # true if another thread waits
        self.held = False
        self.took_at = 0.0  # monotonic s; set by its thread, which asks for it

    def take(self) -> bool:
        """Wait for the token, unless its holder does not get on. True if this thread had to wait."""
        if self.held:
            return False
        token = self._token
        if self._try(False):
            token.holder = self
            self.held = True
            return False
        if time.monotonic() < token.rests_until:
            return False
        self.held = self._wait()
        return True

    def give(self) -> None:
        """Let another thread have it. Does nothing if this thread does not have it."""
        if not self.held:
            return
        self.held = False
        waiting = self.waiting
        while True:
            if not waiting:
                self._release()
                # Another thread may have tried the lock before that, and begun to wait after the look at ``waiting``.
                if not (waiting and self._try(False)):
                    return
            try:
                other = waiting.popleft()
            except IndexError:  # it does not wait any more
                continue
            self._token.holder = other
            other.bell.release()
            return

    def pass_on(self, monotonic: Callable[[], float]) -> None:
        """Give a waiting thread its turn in between, if this thread has had the token for long."""
        if monotonic() - self.took_at >= LONG_S:
            self.give()
            self.take()
            self.took_at = monotonic()

    def change_thread(self) -> None:
        """From now on it is another thread's. The old one does not use it any more."""
        self.give()
        self._clock_id = None

    def cpu_s(self) -> float | None:
        """CPU time of this thread, for any thread. None if unknown."""
        try:
            return None if self._clock_id is None else time.clock_gettime(self._clock_id)
        except OSError:  # the thread has ended
            return 0.0

    def is_ready(self) -> bool:
        """Whether this thread would go on if there was a CPU for it. For any thread."""
        try:
            with open(f"/proc/self/task/{self._native_id}/stat", "rb") as file:
                return b") R " in file.read()
        except OSError:
            return False

    def _wait(self) -> bool:
        token, bell, waiting = self._token, self.bell, self.waiting
        if self._clock_id is None and _clock_of is not None:
            self._clock_id = _clock_of(get_ident())
            self._native_id = get_native_id()
        waiting.append(self)
        if self._try(False):  # it was given up before this thread could be seen to wait
            waiting.remove(self)  # it is in the list: only a holder of the lock removes others
            token.holder = self
            return True
        if self._is_handed_over():
            return True
        try:
            waiting.remove(self)
        except ValueError:  # just now
            bell.acquire()
            return True
        token.rests_until = time.monotonic() + token.rest_s
        return False

    def _is_handed_over(self) -> bool:
        """Wait for that as long as it may be expected."""
        token = self._token
        holder, looks = token.holder, 0
        used: float | None = None
        while True:
            before, used_before = holder, used
            holder = token.holder
            used = None if holder is None else holder.cpu_s()
            if looks == (BLIND_LOOKS if used is None else LOOKS):
                return False
            if holder is before and holder is not None and used is not None and used_before is not None:
                gets_on = used - used_before >= token.patience_s / 4 or holder.is_ready()
                if not gets_on:
                    return False
            if self.bell.acquire(timeout=token.patience_s):
                return True
            looks += 1


def new_run_token() -> RunToken | None:
    """None if threads can run at the same time, because this Python has no lock of the interpreter."""
    is_locked = getattr(sys, "_is_gil_enabled", None)  # since Python 3.13
    return RunToken() if is_locked is None or is_locked() else None
