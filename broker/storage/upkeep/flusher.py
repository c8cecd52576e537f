"""The flusher thread: one fsync answers every append that waits for it (group commit).

While an fsync of a log runs, the appends that come in queue up; the next fsync covers all of them at once. Logs are synced one
after the other on this one thread, callbacks run on it. Appends that ask for nothing (``acks=1``) never come here.
"""

from collections.abc import Callable

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import QueueEmpty, SimpleQueue
from broker.storage.log.log import Log

logger = get_logger("storage")

Callback = Callable[[StorageError | None], None]

# How often logs with flush.ms are looked at; Kafka's log.flush.scheduler.interval.ms is never by default, and then as flush.ms.
_FLUSH_MS_CHECK_S = 1.0


class Flusher:
    """``Body`` of the flusher thread; the other methods may be called from any thread."""

    def __init__(self, clock: Clock, with_flush_ms: Callable[[], list[Log]] = list) -> None:
        """``with_flush_ms`` gives the logs whose flush.ms is set."""
        self._clock = clock
        self._with_flush_ms = with_flush_ms
        self._next_check = clock.monotonic() + _FLUSH_MS_CHECK_S
        # What is to be done: (log, offset to reach, callback); without a callback nobody waits, and offset -1 only wakes.
        self._queue: SimpleQueue[tuple[Log, int, Callback | None] | None] = SimpleQueue()

    def wait_durable(self, log: Log, offset: int, callback: Callback) -> None:
        """``callback(None)`` once every record before ``offset`` is durable, ``callback(error)`` if that failed.

        On the flusher's thread; or at once on the caller's where it is durable already. It must be quick.
        """
        if log.durable_offset >= offset:
            callback(None)
        else:
            self._queue.put((log, offset, callback))

    def flush_soon(self, log: Log) -> None:
        """fsync what the log has now; nobody waits for it."""
        self._queue.put((log, log.log_end_offset, None))

    def wake_soon(self, log: Log) -> None:
        """Call the log's watchers from here."""
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
        except Refusal as deleted:  # the topic is gone
            error = StorageError(str(deleted))
        for offset, callback in waiters:
            if callback is not None:
                callback(None if log.durable_offset >= offset else error)
            elif offset < 0:
                log.wake()

    def _flush_by_time(self) -> None:
        """flush.ms: what is older than that."""
        now_ms = self._clock.time_ms()
        for log in self._with_flush_ms():
            due = log.durable_offset < log.log_end_offset and now_ms - log.last_flush_ms >= log.config.flush_ms
            if due or now_ms < log.last_flush_ms:  # the clock went back
                self._flush(log, [(log.log_end_offset, None)])
