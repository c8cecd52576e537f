"""A sorted set of offsets, in blocks, so that adding and removing cost the same however many there are.

Pure. A list of 200,000 moves a megabyte for each offset that is put into its middle, which takes 50 us.

Offsets that wait to be read again, the smallest first.

Pure. An offset may be put in twice and comes out twice, and it comes out although its record has been acknowledged meanwhile:
whoever takes it out looks whether the record is still waiting. So nothing has to be searched for in here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain

_BLOCK_MAX = 1024
_NO_BLOCKS: list[list[int]] = []
_NO_FIRSTS: list[int] = []


class SortedOffsets:
    __slots__ = ("_blocks", "_firsts", "_length")

    def __init__(self) -> None:
        # None of the blocks is empty. Most sets are empty: they share these two lists, which nothing is put into.
        self._blocks = _NO_BLOCKS
        self._firsts = _NO_FIRSTS  # the first offset of each
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._blocks)

    @property
    def first(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        return self._blocks[-1][-1] if self._blocks else None

    def at_or_before(self, offset: int) -> int | None:
        """The largest that is not greater than this one."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        return block[bisect_right(block, offset) - 1]

    def at_or_after(self, offset: int) -> int | None:
        """The smallest that is not less than this one."""
        at = bisect_right(self._firsts, offset) - 1
        if at >= 0:
            block = self._blocks[at]
            place = bisect_left(block, offset)
            if place < len(block):
                return block[place]
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def add(self, offset: int) -> None:
        """It must not be in here."""
        self._length += 1
        blocks, firsts = self._blocks, self._firsts
        if not blocks:
            self._blocks, self._firsts = [[offset]], [offset]
            return
        at = max(0, bisect_right(firsts, offset) - 1)
        block = blocks[at]
        if offset > block[-1]:
            block.append(offset)
        else:
            block.insert(bisect_left(block, offset), offset)
            firsts[at] = block[0]
        if len(block) > _BLOCK_MAX:
            # Offsets come ascending as a rule: then nothing is put into the first half any more.
            half = len(block) // 2
            blocks.insert(at + 1, block[half:])
            firsts.insert(at + 1, block[half])
            del block[half:]

    def fill(self, ascending: Sequence[int]) -> None:
        """Once, on a new one."""
        half = _BLOCK_MAX // 2
        self._blocks = [list(ascending[at : at + half]) for at in range(0, len(ascending), half)]
        self._firsts = [block[0] for block in self._blocks]
        self._length = len(ascending)

    def remove(self, offset: int) -> None:
        """It must be in here."""
        self._length -= 1
        at = bisect_right(self._firsts, offset) - 1
        block = self._blocks[at]
        del block[bisect_left(block, offset)]
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]

    def take_until(self, offset: int) -> list[int]:
        """Remove all that are not greater than this one, and return them. Whole blocks go at once."""
        at = bisect_right(self._firsts, offset)
        if not at:
            return []
        last = self._blocks[at - 1]
        place = bisect_right(last, offset)
        taken = list(chain(chain.from_iterable(self._blocks[: at - 1]), last[:place]))
        if place < len(last):
            at -= 1
            del last[:place]
            self._firsts[at] = last[0]
        del self._blocks[:at], self._firsts[:at]
        self._length -= len(taken)
        return taken

    def clear(self) -> None:
        self._blocks, self._firsts = _NO_BLOCKS, _NO_FIRSTS
        self._length = 0


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
