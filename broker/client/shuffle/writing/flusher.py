"""The thread that flushes buffers that are not full after their buffer timeout; one for the process.

It runs while a RecordWriter is registered. Its callbacks must not wait; a busy or held-back writer is skipped
until its next turn. A writer whose flush raises gets the error and is not called again; if the thread itself fails, all
writers get the error.

Tests: tests/client/shuffle/writing/test_record_writer.py.
"""

import heapq
from collections.abc import Callable

from broker.client.shuffle.errors import LocalTransportError
from broker.runtime import forks
from broker.runtime.clock import Clock, SystemClock
from broker.runtime.threads import Event, Lock, SystemThreads, ThreadHandle


class Registration:
    """``flush`` is called every ``interval_s`` until it is cancelled; ``failed`` if that ends for another reason."""

    __slots__ = ("cancelled", "deadline", "failed", "flush", "interval_s")

    def __init__(
        self, flush: Callable[[], None], interval_s: float, deadline: float, failed: Callable[[Exception], None]
    ) -> None:
        self.flush = flush
        self.failed = failed
        self.interval_s = interval_s
        self.deadline = deadline
        self.cancelled = False

    def __lt__(self, other: "Registration") -> bool:
        return self.deadline < other.deadline


class Flusher:
    """The body of the flusher's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._registered: list[Registration] = []
        self._news = Event()

    def add(self, flush: Callable[[], None], interval_s: float, failed: Callable[[Exception], None]) -> Registration:
        registration = Registration(flush, interval_s, self._clock.monotonic() + interval_s, failed)
        with self._lock:
            heapq.heappush(self._registered, registration)
        self._news.set()
        return registration

    def step(self, timeout: float | None) -> bool:
        self._news.clear()
        now = self._clock.monotonic()
        due: list[Registration] = []
        with self._lock:
            registered = self._registered
            while registered and (registered[0].cancelled or registered[0].deadline <= now):
                first = heapq.heappop(registered)
                if not first.cancelled:
                    due.append(first)
        working = []
        for registration in due:
            try:
                registration.flush()
            except Exception as error:  # it belongs to one writer, and the thread serves the others
                registration.failed(error)
            else:
                working.append(registration)
        with self._lock:
            for registration in working:
                registration.deadline = now + registration.interval_s
                heapq.heappush(self._registered, registration)
            until = self._registered[0].deadline - self._clock.monotonic() if self._registered else None
        patience = timeout if until is None else until if timeout is None else min(until, timeout)
        if patience is None or patience > 0:
            self._news.wait(patience)
        return bool(due)

    def wakeup(self) -> None:
        self._news.set()

    def crashed(self, error: BaseException) -> None:
        """The thread has ended: nothing is flushed any more."""
        wrapped = LocalTransportError(f"the flusher's thread has failed: {error!r}")
        wrapped.__cause__ = error
        with self._lock:
            registered, self._registered = self._registered, []
        for registration in registered:
            if not registration.cancelled:
                registration.failed(wrapped)


class _Shared:
    def __init__(self) -> None:
        self.lock = Lock()
        self.flusher: Flusher | None = None
        self.thread: ThreadHandle | None = None
        self.users = 0


_shared = _Shared()


def register(flush: Callable[[], None], interval_s: float, failed: Callable[[Exception], None]) -> Registration:
    """Register with the process's flusher; the first registration starts its thread. ``failed`` may be called,
    too."""
    with _shared.lock:
        if _shared.flusher is None or _shared.thread is None or not _shared.thread.alive():
            _shared.flusher, _shared.users = Flusher(SystemClock()), 0
            _shared.thread = SystemThreads().spawn("shuffle-flusher", _shared.flusher, _shared.flusher.crashed)
        _shared.users += 1
        return _shared.flusher.add(flush, interval_s, failed)


def _forked() -> None:
    """In a forked child, which has no such thread: the first registration starts one. The parent may hold the old lock."""
    global _shared
    _shared = _Shared()


forks.call_in_child(_forked)


def unregister(registration: Registration) -> None:
    """The last call ends the thread. Must not be called by a ``flush``."""
    with _shared.lock:
        if registration.cancelled:
            return
        registration.cancelled = True
        _shared.users -= 1
        if _shared.users > 0 or _shared.thread is None:
            return
        thread, _shared.thread, _shared.flusher = _shared.thread, None, None
        thread.stop()
