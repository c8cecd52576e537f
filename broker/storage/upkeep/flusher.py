"""The flusher threads: one fsync answers every append to a log that waits for it (group commit), and several logs are synced at
once.

While an fsync of a log runs, new appends to it queue up; the next one covers all of them. No two threads sync the same log, but
each syncs another one: the kernel joins the commands that make a disk empty its cache, so 100 logs take hardly longer than one,
where one after the other they took 25 to 50 times as long. A log with much to write does not keep the others waiting either.
Appends that do not wait for an fsync (``acks=1``) are never queued here.

``Flusher`` may be used from any thread. Its ``lock`` guards what waits and which threads are idle; no other lock is taken under
it. A callback runs on the flusher thread that has synced its log, with callbacks of other logs at the same time on others.
"""

from collections import deque
from collections.abc import Callable
from math import inf

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock, QueueEmpty, SimpleQueue
from broker.storage.log.log import Log

logger = get_logger("storage")

Callback = Callable[[StorageError | None], None]

# How many logs are synced at once. With 100 logs, 2, 4, 8 and 16 threads took 21, 8, 3.7 and 2.2 % of the time that one took.
FLUSHER_THREADS = 8

# While nobody has waited for an fsync for so long (s), what is appended without waiting is left to the operating system.
_WAITS_AGAIN_S = 10.0

# How often logs with flush.ms are checked. Kafka's log.flush.scheduler.interval.ms is off by default; then the interval is
# flush.ms.
_FLUSH_MS_CHECK_S = 1.0


def _nobody(error: StorageError | None) -> None:
    """Waits for the fsync."""


def _is_append(offset: int, callback: Callback) -> bool:
    """Whether an append waits for it, and not only the broker itself."""
    return offset > 0 and callback is not _nobody


class Flusher:
    def __init__(self, clock: Clock, with_flush_ms: Callable[[], list[Log]] = list) -> None:
        """``with_flush_ms`` returns the logs whose flush.ms is set."""
        self._clock = clock
        self._with_flush_ms = with_flush_ms
        self._next_check = clock.monotonic() + _FLUSH_MS_CHECK_S  # only the first thread uses it
        self._lock = Lock()
        # By log, what the next fsync of it is to answer: up to which offset to sync, and a callback. With offset 0 there is
        # nothing to sync, and the callback is only to run on one of these threads. A log that is queued or being synced has an
        # entry.
        self._waiting: dict[Log, list[tuple[int, Callback]]] = {}
        self._queue: deque[Log] = deque()  # with which no thread has begun; empty if a thread is idle
        self._idle: list[FlusherThread] = []
        self._last_wait = -inf  # when (monotonic s) an fsync was last answered
        self.threads = [FlusherThread(self, number == 0) for number in range(FLUSHER_THREADS)]

    @property
    def waiting(self) -> int:
        """Appends that wait for an fsync that has not begun."""
        with self._lock:
            return sum(
                _is_append(offset, callback) for waiters in self._waiting.values() for offset, callback in waiters
            )

    def wait_durable(self, log: Log, offset: int, callback: Callback) -> None:
        """Call ``callback(None)`` once every record before ``offset`` is durable, or ``callback(error)`` if that failed.

        It runs on a flusher thread, or at once on the caller's if the records are durable already. It must be quick.
        """
        if log.durable_offset >= offset:
            callback(None)
        else:
            self._add(log, offset, callback)

    def flush_soon(self, log: Log) -> None:
        """fsync what the log has now; nothing waits for it."""
        self._add(log, log.log_end_offset, _nobody)

    def wake_soon(self, log: Log) -> None:
        """Call the log's watchers on a flusher thread."""
        self._add(log, 0, lambda _: log.wake())

    def begin_soon(self, log: Log) -> None:
        """Have the operating system begin to write what was appended to the log without waiting, if others wait for fsyncs.

        Otherwise it writes nothing for up to half a minute and then hundreds of MB at once, and every fsync waits behind them.
        """
        if self._clock.monotonic() - self._last_wait < _WAITS_AGAIN_S:
            self._add(log, 0, lambda _: log.begin_sync())

    def _add(self, log: Log, offset: int, callback: Callback) -> None:
        with self._lock:
            waiters = self._waiting.get(log)
            if waiters is not None:
                waiters.append((offset, callback))
                return
            self._waiting[log] = [(offset, callback)]
            if self._idle:
                self._idle.pop().inbox.put(log)  # the one that worked last
            else:
                self._queue.append(log)

    # -- for the threads -----------------------------------------------------------------------------------------------

    def take(self, idle: "FlusherThread | None") -> Log | None:
        """The log that has waited longest. If there is none, ``idle`` gets the next one into its inbox."""
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            if idle is not None:
                self._idle.append(idle)
            return None

    def not_idle(self, thread: "FlusherThread") -> None:
        """It does not wait any more. It may have got a log before this returns, but gets none afterwards."""
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)

    def flush(self, log: Log) -> None:
        """fsync this log for all who wait for it. Those who have come meanwhile are queued behind the other logs."""
        with self._lock:
            waiters, self._waiting[log] = self._waiting[log], []
        self._flush(log, waiters)
        with self._lock:
            if self._waiting[log]:
                self._queue.append(log)  # this thread looks there next
            else:
                del self._waiting[log]

    def _flush(self, log: Log, waiters: list[tuple[int, Callback]]) -> None:
        error: StorageError | None = None
        try:
            log.flush_to(max(offset for offset, _ in waiters))
        except StorageError as failed:
            error = failed
        except Refusal as deleted:  # the topic was deleted
            error = StorageError(str(deleted))
        if any(_is_append(offset, callback) for offset, callback in waiters):
            self._last_wait = self._clock.monotonic()
        for offset, callback in waiters:
            callback(None if log.durable_offset >= offset else error)

    def until_check(self, timeout: float | None) -> float:
        """How long to wait at most, because logs with flush.ms have to be looked at then."""
        left = self._next_check - self._clock.monotonic()
        return max(0.0, left if timeout is None else min(timeout, left))

    def flush_by_time(self) -> None:
        """Queue the logs whose oldest record that is not durable is older than flush.ms, if it is time to look."""
        if self._clock.monotonic() < self._next_check:
            return
        self._next_check = self._clock.monotonic() + _FLUSH_MS_CHECK_S
        now_ms = self._clock.time_ms()
        for log in self._with_flush_ms():
            due = log.durable_offset < log.log_end_offset and now_ms - log.last_flush_ms >= log.config.flush_ms
            if due or now_ms < log.last_flush_ms:  # the clock was set back
                self.flush_soon(log)


class FlusherThread:
    """The body of one of the threads. The first one also looks after flush.ms."""

    def __init__(self, flusher: Flusher, is_first: bool) -> None:
        self._flusher = flusher
        self._is_first = is_first
        # A log that it was given while it was idle; None only wakes it.
        self.inbox: SimpleQueue[Log | None] = SimpleQueue()

    def step(self, timeout: float | None) -> bool:
        """Sync one log."""
        flusher = self._flusher
        if self._is_first:
            flusher.flush_by_time()
            timeout = flusher.until_check(timeout)
        log = flusher.take(self if timeout != 0 else None)
        if log is None and timeout != 0:
            log = self._wait(timeout)
        if log is None:
            return False
        flusher.flush(log)
        return True

    def _wait(self, timeout: float | None) -> Log | None:
        """For a log from another thread."""
        log: Log | None = None
        try:
            log = self.inbox.get(True, timeout)
        except QueueEmpty:
            pass
        if log is not None:
            return log
        self._flusher.not_idle(self)
        try:
            while log is None:  # it may have been woken several times
                log = self.inbox.get_nowait()
        except QueueEmpty:
            pass
        return log

    def wakeup(self) -> None:
        self.inbox.put(None)
