"""What a channel has received and its reader has not taken: by sequence number, priority events first. Pure."""

from collections import deque
from typing import Generic, TypeVar

from broker.client.shuffle.errors import BufferReorderingError

T = TypeVar("T")


class ReceivedQueue(Generic[T]):
    """Sequence numbers count everything that comes on the wire, priority events too, from 0 and without a gap."""

    __slots__ = ("_items", "_priorities", "expected")

    def __init__(self) -> None:
        self.expected = 0
        self._items: deque[T] = deque()
        self._priorities = 0  # how many of the items are priority events; these are the first ones

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_priority(self) -> bool:
        """Whether ``pop`` returns a priority event next."""
        return self._priorities > 0

    @property
    def last(self) -> T | None:
        """The item that was added last, if the reader has not taken it."""
        return self._items[-1] if self._items else None

    def check(self, sequence: int, count: int = 1) -> None:
        """``count`` buffers have come, the first with this sequence number. Raises BufferReorderingError."""
        if sequence != self.expected:
            raise BufferReorderingError(self.expected, sequence)
        self.expected += count

    def add(self, item: T) -> None:
        self._items.append(item)

    def add_priority(self, item: T) -> None:
        """Add it before all data, behind the earlier priority events."""
        self._items.insert(self._priorities, item)
        self._priorities += 1

    def pop(self) -> T:
        if self._priorities:
            self._priorities -= 1
        return self._items.popleft()

    def clear(self) -> list[T]:
        """Remove and return all items."""
        rest = list(self._items)
        self._items.clear()
        self._priorities = 0
        return rest
