"""Deadlines by key, of which most are put off again and again: which is the first?

Pure bookkeeping of a ``ClassicGroup``, under the group's lock. Each heartbeat puts off its member's deadline. That costs one
look-up: the heap keeps the earlier time and is corrected when that time comes. Setting, removing and finding the first deadline
cost O(log n). The heap holds at most twice as many items as there are deadlines, and 64 more.
"""

import heapq
from math import inf

import attrs

_SLACK = 64


@attrs.define(eq=False)
class _Entry:
    key: str
    deadline: float
    # The time and the number under which the heap has this key. The time is not later than the deadline.
    queued: float
    number: int


class Deadlines:
    """Times by key, in seconds. Of equal times the one that was queued first comes first."""

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
        """Remove the deadline if there is one."""
        if self._entries.pop(key, None) is not None:
            self._compact()

    def rename(self, old: str, new: str) -> None:
        """Keep the deadline under another key."""
        entry = self._entries.get(old)
        if entry is not None:
            self.remove(old)
            self.set(new, entry.deadline)

    def clear(self) -> None:
        self._entries.clear()
        self._heap.clear()

    def first(self) -> float:
        """The earliest deadline; infinity if there is none."""
        head = self._head()
        return inf if head is None else head.deadline

    def first_key(self) -> str | None:
        """The key that has the earliest deadline."""
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
