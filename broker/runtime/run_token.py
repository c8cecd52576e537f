"""Threads that run one at a time, so that they do not compete for the interpreter's lock.

A thread gives up the interpreter's lock for each system call. If another thread waits for the lock, the first one finds it taken
when its call returns, so both sleep and are woken again at every call. With a hundred connections on three processors, this took
as much CPU time as the requests did. Threads with a run token hold it while they work, and give it up when they wait for
something, or have the kernel copy so much that another thread should work meanwhile.

The token guards nothing. A thread that has waited for a while goes on without it, so a thread that is stuck in a system call
delays the others once, and briefly.

Tests: tests/runtime/test_run_token.py.
"""

import sys
from collections import deque

from broker.runtime.threads import Lock

# How long (s) a thread waits for the token.
PATIENCE_S = 0.002


class RunToken:
    """One for all threads that take turns. Each has a ``TokenHolder`` of its own."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        # Held by the thread that has the token. It is handed over without being released if another thread waits.
        self.lock = Lock()
        self.waiting: deque[Lock] = deque()  # of each thread that waits, what it waits for
        self.overdue = False  # a thread has waited in vain, and nobody waits until the token is given up


class TokenHolder:
    """For one thread. The methods may be called whether or not it has the token."""

    __slots__ = ("_bell", "_release", "_token", "_try", "held", "waiting")

    def __init__(self, token: RunToken) -> None:
        self._token = token
        self._try, self._release = token.lock.acquire, token.lock.release
        self._bell = Lock()
        self._bell.acquire()
        self.waiting = token.waiting  # true if another thread waits
        self.held = False

    def take(self) -> bool:
        """Wait for the token, unless somebody has kept it for too long. True if this thread had to wait."""
        if self.held:
            return False
        if self._try(False):
            self.held = True
            return False
        if self._token.overdue:
            return False
        self.held = self._wait()
        return True

    def give(self) -> None:
        """Let another thread have it."""
        if not self.held:
            return
        self.held = False
        if self._token.overdue:
            self._token.overdue = False
        waiting = self.waiting
        while True:
            if not waiting:
                self._release()
                # Another thread may have tried the lock before that, and begun to wait after the look at ``waiting``.
                if not (waiting and self._try(False)):
                    return
            try:
                waiting.popleft().release()
                return
            except IndexError:  # it does not wait any more
                pass

    def _wait(self) -> bool:
        bell, waiting = self._bell, self.waiting
        waiting.append(bell)
        if self._try(False):  # it was given up before this thread could be seen to wait
            waiting.remove(bell)  # it is there: only who has the lock takes others out
            return True
        if bell.acquire(timeout=self._token.patience_s):
            return True
        try:
            waiting.remove(bell)
        except ValueError:  # the token was handed over just now
            bell.acquire()
            return True
        self._token.overdue = True
        return False


def new_run_token() -> RunToken | None:
    """None if threads can run at the same time, because this Python has no lock of the interpreter."""
    is_locked = getattr(sys, "_is_gil_enabled", None)  # since Python 3.13
    return RunToken() if is_locked is None or is_locked() else None
