"""The bounded queue between processors and handlers.

Processors put (and never wait), handlers take. A processor that finds it full leaves the request with its connection, which
stays muted, and is woken when there is room.
"""

from collections.abc import Callable

from broker.network.service import Request, Service
from broker.runtime.threads import Lock, QueueEmpty, SimpleQueue

Item = tuple[Service, Request]


class RequestChannel:
    def __init__(self, capacity: int) -> None:
        """``capacity``: requests that may wait (Kafka's queued.max.requests)."""
        self.capacity = capacity
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._size = 0  # requests only: wake-ups of handlers do not count
        self._lock = Lock()
        self._waiting: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self._size

    def offer(self, item: Item, on_room: Callable[[], None]) -> bool:
        """Queue it; or False, and ``on_room`` is called once when there is room again."""
        with self._lock:
            if self._size >= self.capacity:
                if on_room not in self._waiting:
                    self._waiting.append(on_room)
                return False
            self._size += 1
        self._queue.put(item)
        return True

    def take(self, timeout: float | None) -> Item | None:
        """The oldest request; None after ``timeout`` s or when woken."""
        try:
            item = self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return None
        if item is None:
            return None
        with self._lock:
            self._size -= 1
            waiting = self._waiting
            if waiting:
                self._waiting = []
        for on_room in waiting:
            on_room()
        return item

    def wakeup(self) -> None:
        """End the wait of one handler."""
        self._queue.put(None)
