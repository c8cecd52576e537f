"""Offsets that wait to be read again, the smallest first.

Pure. An offset may be put in twice and comes out twice, and it comes out although its record has been acknowledged meanwhile:
whoever takes it out looks whether the record is still waiting. So nothing has to be searched for in here.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

# Below this it is not worth looking for what can be dropped.
_SMALL = 1024


class OffsetQueue:
    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def __len__(self) -> int:
        """At least as many as there are to be taken."""
        return len(self._heap)

    def put(self, offset: int) -> None:
        heappush(self._heap, offset)

    def take(self, most: int, waiting: Callable[[int], bool]) -> list[int]:
        """At most so many of the smallest ones that are ``waiting``, ascending; they are in here no longer."""
        heap = self._heap
        taken: list[int] = []
        while heap and len(taken) < most:
            offset = heappop(heap)
            if waiting(offset) and not (taken and taken[-1] == offset):
                taken.append(offset)
        return taken

    def shrink(self, waiting: Callable[[int], bool], expected: int) -> None:
        """Drop what is not ``waiting`` if the queue is much longer than the ``expected`` number of offsets that are."""
        if len(self._heap) > 2 * expected + _SMALL:
            self._heap = list({offset for offset in self._heap if waiting(offset)})
            heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
