"""Threads that handle the items that others put into their inbox.

``Inbox`` is the queue, ``Worker`` the body of a thread that handles one item after the other, in the order of their arrival.
An item that is put in before the thread ends is not lost: it stays in the inbox. Putting is for any thread, and never blocks.
``in_order`` has several threads work for one that waits for them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from broker.runtime.threads import QueueEmpty, SimpleQueue, run_aside

Item = TypeVar("Item")
Result = TypeVar("Result")


class Inbox(Generic[Item]):
    """The items that wait for a thread. ``put`` is for any thread, ``take`` and ``take_all`` for one."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self.put: Callable[[Item], None] = self._queue.put

    def __len__(self) -> int:
        """With wake-ups. For any thread."""
        return self._queue.qsize()

    def take(self, timeout: float | None) -> Item | None:
        """The next item. None: none has come within ``timeout`` s (None: without limit), or somebody has called ``wakeup``."""
        try:
            return self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return None

    def take_all(self, timeout: float | None, most: int | None = None) -> list[Item]:
        """The next item, as ``take`` waits for it, and those behind it, ``most`` in all."""
        items = [self.take(timeout)]
        try:
            while most is None or len(items) < most:
                items.append(self._queue.get(False))
        except QueueEmpty:
            pass
        return [item for item in items if item is not None]

    def wakeup(self) -> None:
        """End the wait of the thread, or have it not wait the next time."""
        self._queue.put(None)


class Worker(Generic[Item]):
    """The body of a thread. Any thread may call ``submit``."""

    def __init__(self, handle: Callable[[Item], object], on_error: Callable[[Exception], None] | None = None) -> None:
        """``on_error`` gets the error that ``handle`` raises; without it, the error ends the thread."""
        self._inbox: Inbox[Item] = Inbox()
        self._handle = handle
        self._on_error = on_error
        self.submit = self._inbox.put

    def step(self, timeout: float | None) -> bool:
        item = self._inbox.take(timeout)
        if item is None:
            return False
        try:
            self._handle(item)
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)
        return True

    def wakeup(self) -> None:
        self._inbox.wakeup()


def in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """``map``, with up to ``threads`` calls at a time, each on a thread of its own (0: on this one). Raises what a call raises,
    in its turn.

    Results that are ready wait until it is their turn, so at most ``threads`` of them are in memory.
    """
    under_way: deque[SimpleQueue[tuple[bool, object]]] = deque()

    def begin(item: Item) -> None:
        answer: SimpleQueue[tuple[bool, object]] = SimpleQueue()

        def call() -> None:
            try:
                answer.put((True, function(item)))
            except BaseException as error:
                answer.put((False, error))

        run_aside("helper", call)
        under_way.append(answer)

    def end() -> Result:
        succeeded, result = under_way.popleft().get()
        if not succeeded:
            assert isinstance(result, BaseException)
            raise result
        return result  # type: ignore[return-value]

    if not threads:
        yield from map(function, items)
        return
    for item in items:
        begin(item)
        if len(under_way) >= threads:
            yield end()
    while under_way:
        yield end()
