"""The flusher thread: one fsync answers every append that waits for it (group commit).

While an fsync of a log runs, new appends queue up; the next fsync covers all of them. This one thread syncs the logs one after
the other and runs the callbacks. Appends that do not wait for an fsync (``acks=1``) are never queued here.
"""

from collections.abc import Callable

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import QueueEmpty, SimpleQueue
from broker.storage.log.log import Log

logger = get_logger("storage")

Callback = Callable[[StorageError | None], None]

# How often logs with flush.ms are checked. Kafka's log.flush.scheduler.interval.ms is off by default; then the interval is
# flush.ms.
_FLUSH_MS_CHECK_S = 1.0


class Flusher:
    """``Body`` of the flusher thread; the other methods may be called from any thread."""

    def __init__(self, clock: Clock, with_flush_ms: Callable[[], list[Log]] = list) -> None:
        """``with_flush_ms`` returns the logs whose flush.ms is set."""
        self._clock = clock
        self._with_flush_ms = with_flush_ms
        self._next_check = clock.monotonic() + _FLUSH_MS_CHECK_S
        # (log, offset up to which to fsync, callback). Without a callback nothing waits for it; offset -1 only wakes the log's
        # watchers.
        self._queue: SimpleQueue[tuple[Log, int, Callback | None] | None] = SimpleQueue()

    @property
    def waiting(self) -> int:
        """What it has not begun with. For any thread."""
        return self._queue.qsize()

    def wait_durable(self, log: Log, offset: int, callback: Callback) -> None:
        """Call ``callback(None)`` once every record before ``offset`` is durable, or ``callback(error)`` if that failed.

        It runs on the flusher thread, or at once on the caller's if the records are durable already. It must be quick.
        """
        if log.durable_offset >= offset:
            callback(None)
        else:
            self._queue.put((log, offset, callback))

    def flush_soon(self, log: Log) -> None:
        """fsync what the log has now; nothing waits for it."""
        self._queue.put((log, log.log_end_offset, None))

    def wake_soon(self, log: Log) -> None:
        """Call the log's watchers on the flusher thread."""
        self._queue.put((log, -1, None))

    def step(self, timeout: float | None) -> bool:
        untimed = self._next_check - self._clock.monotonic()
        timeout = max(0.0, untimed if timeout is None else min(timeout, untimed))
        waiting: dict[Log, list[tuple[int, Callback | None]]] = {}
        try:
            item = self._queue.get(timeout > 0, timeout)
            while True:
                if item is not None:
                    log, offset, callback = item
                    waiting.setdefault(log, []).append((offset, callback))
                item = self._queue.get_nowait()
        except QueueEmpty:
            pass
        for log, waiters in waiting.items():
            self._flush(log, waiters)
        if self._clock.monotonic() >= self._next_check:
            self._next_check = self._clock.monotonic() + _FLUSH_MS_CHECK_S
            self._flush_by_time()
        return bool(waiting)

    def wakeup(self) -> None:
        self._queue.put(None)

    def _flush(self, log: Log, waiters: list[tuple[int, Callback | None]]) -> None:
        error: StorageError | None = None
        try:
            log.flush_to(max(offset for offset, _ in waiters))
        except StorageError as failed:
            error = failed
        except Refusal as deleted:  # the topic was deleted
            error = StorageError(str(deleted))
        for offset, callback in waiters:
            if callback is not None:
                callback(None if log.durable_offset >= offset else error)
            elif offset < 0:
                log.wake()

    def _flush_by_time(self) -> None:
        """fsync the logs whose oldest record that is not durable is older than flush.ms."""
        now_ms = self._clock.time_ms()
        for log in self._with_flush_ms():
            due = log.durable_offset < log.log_end_offset and now_ms - log.last_flush_ms >= log.config.flush_ms
            if due or now_ms < log.last_flush_ms:  # the clock was set back
                self._flush(log, [(log.log_end_offset, None)])
