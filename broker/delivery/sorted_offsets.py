"""Collections of offsets: a sorted set (``SortedOffsets``), and a queue with the smallest first (``OffsetQueue``).

Pure. ``SortedOffsets`` keeps blocks, so that adding and removing cost the same for any number of offsets: in a list of 200,000,
an insertion into the middle moves a megabyte, which takes 50 us.

``OffsetQueue`` has the offsets that wait to be read again. An offset may be put in twice, and it stays in when its record is
acknowledged meanwhile: the caller of ``take`` says which records are still waiting, so the queue never has to be searched.
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
        # No block is empty. Most sets are empty: they share these two lists, which never change.
        self._blocks = _NO_BLOCKS
        self._firsts = _NO_FIRSTS  # the first offset of each block
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
        """The largest offset that is not greater than ``offset``."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        return block[bisect_right(block, offset) - 1]

    def at_or_after(self, offset: int) -> int | None:
        """The smallest offset that is not less than ``offset``."""
        at = bisect_right(self._firsts, offset) - 1
        if at >= 0:
            block = self._blocks[at]
            place = bisect_left(block, offset)
            if place < len(block):
                return block[place]
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def add(self, offset: int) -> None:
        """Add an offset, which must not be in the set."""
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
            # Offsets usually come in ascending order: then nothing more is put into the first half.
            half = len(block) // 2
            blocks.insert(at + 1, block[half:])
            firsts.insert(at + 1, block[half])
            del block[half:]

    def fill(self, ascending: Sequence[int]) -> None:
        """Fill a new set. Call it once."""
        half = _BLOCK_MAX // 2
        self._blocks = [list(ascending[at : at + half]) for at in range(0, len(ascending), half)]
        self._firsts = [block[0] for block in self._blocks]
        self._length = len(ascending)

    def remove(self, offset: int) -> None:
        """Remove an offset, which must be in the set."""
        self._length -= 1
        at = bisect_right(self._firsts, offset) - 1
        block = self._blocks[at]
        del block[bisect_left(block, offset)]
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]

    def take_until(self, offset: int) -> list[int]:
        """Remove and return all offsets that are not greater than ``offset``. Whole blocks go at once."""
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
        """An upper bound of the number of offsets to take."""
        return len(self._heap)

    def put(self, offset: int) -> None:
        heappush(self._heap, offset)

    def take(self, most: int, waiting: Callable[[int], bool]) -> list[int]:
        """Remove and return at most ``most`` of the smallest offsets that are ``waiting``, ascending."""
        heap = self._heap
        taken: list[int] = []
        while heap and len(taken) < most:
            offset = heappop(heap)
            if waiting(offset) and not (taken and taken[-1] == offset):
                taken.append(offset)
        return taken

    def clear(self) -> None:
        self._heap.clear()
