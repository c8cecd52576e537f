"""Which of many things falls due first, when most of them are put off again and again.

Pure bookkeeping of a ``Group``; whoever holds the group's lock uses it. A heartbeat puts its member's deadline off: that costs
one look-up, and the heap learns of it only when the earlier time comes. Setting, removing and finding the first one cost
O(log n); the heap holds at most twice what there is, and 64 more.
"""

import heapq
from math import inf

import attrs

_SLACK = 64


@attrs.define(eq=False)
class _Entry:
    key: str
    deadline: float
    # The heap has this key at this time, which is no later than the deadline, and under this number.
    queued: float
    number: int


class Deadlines:
    """Times by key, in seconds. Of equal ones the one that was queued first comes first."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def set(self, key: str, deadline: float) -> None:
        """Due at ``deadline``, instead of what was set before."""
        entry = self._entries.get(key)
        if entry is not None and deadline >= entry.queued:
            entry.deadline = deadline
            return
        self._number += 1
        self._entries[key] = _Entry(key, deadline, deadline, self._number)
        heapq.heappush(self._heap, (deadline, self._number, key))
        self._compact()

    def remove(self, key: str) -> None:
        """Forget it, if it is there."""
        if self._entries.pop(key, None) is not None:
            self._compact()

    def rename(self, old: str, new: str) -> None:
        """What was due under one key is due under another."""
        entry = self._entries.get(old)
        if entry is not None:
            self.remove(old)
            self.set(new, entry.deadline)

    def clear(self) -> None:
        self._entries.clear()
        self._heap.clear()

    def first(self) -> float:
        """The earliest deadline; infinity without any."""
        head = self._head()
        return inf if head is None else head.deadline

    def first_key(self) -> str | None:
        """What has the earliest deadline."""
        head = self._head()
        return None if head is None else head.key

    def _head(self) -> _Entry | None:
        heap = self._heap
        while heap:
            queued, number, key = heap[0]
            entry = self._entries.get(key)
            if entry is None or entry.number != number:  # removed, or set to an earlier time since
                heapq.heappop(heap)
            elif entry.deadline > queued:
                entry.queued = entry.deadline
                heapq.heapreplace(heap, (entry.deadline, number, key))
            else:
                return entry
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            for entry in self._entries.values():
                entry.queued = entry.deadline
            self._heap = [(entry.queued, entry.number, entry.key) for entry in self._entries.values()]
            heapq.heapify(self._heap)
