"""The flusher thread: one fsync answers all appends that wait for it (thin first version)."""

from collections.abc import Callable

from broker.errors import StorageError
from broker.runtime.threads import QueueEmpty, SimpleQueue
from broker.storage.log import Log

Callback = Callable[[StorageError | None], None]


class Flusher:
    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Log, int, Callback] | None] = SimpleQueue()

    def wait_durable(self, log: Log, offset: int, callback: Callback) -> None:
        """``callback(None)`` once every record before ``offset`` is durable, or ``callback(error)``; on this or the flusher's thread."""
        if log.durable_offset >= offset:
            callback(None)
        else:
            self._queue.put((log, offset, callback))

    def step(self, timeout: float | None) -> bool:
        try:
            first = self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return False
        waiting = [first]
        while True:
            try:
                waiting.append(self._queue.get_nowait())
            except QueueEmpty:
                break
        for item in waiting:
            if item is None:
                continue
            log, offset, callback = item
            try:
                if log.durable_offset < offset:
                    log.flush_to(offset)
            except (OSError, StorageError) as error:
                callback(StorageError(str(error)))
            else:
                callback(None)
        return True

    def wakeup(self) -> None:
        self._queue.put(None)
