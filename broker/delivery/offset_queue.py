"""Offsets that wait to be read again, the smallest first.

Pure. An offset may be put in twice and comes out twice, and it comes out although its record has been acknowledged meanwhile:
whoever takes it out looks whether the record is still waiting. So nothing has to be searched for in here.
"""

from collections.abc import Callable
from heapq import heappop, heappush


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

    def clear(self) -> None:
        self._heap.clear()
