"""``<base>.index``: the file positions of offsets. Kafka's format: pairs of int32, relative offset and file position.

There is an entry for about every ``index.interval.bytes`` of log. It names a batch by its last offset (relative to the segment's
base) and the position where it begins. ``index_file.py`` says which thread may do what.

Tests: tests/storage/segments/test_index_file.py.
"""

import sys
from array import array
from struct import Struct

from broker.runtime.open_files import CachedFile
from broker.storage.segments.index_file import Column, IndexFile


class OffsetIndex(IndexFile):
    ENTRY = Struct(">ii")
    PAGE_ENTRIES = 512  # 4 KiB

    __slots__ = ("base_offset",)

    def __init__(self, cached: CachedFile, base_offset: int, after: IndexFile | None = None) -> None:
        super().__init__(cached, after)
        self.base_offset = base_offset

    def _decode(self, data: bytes) -> tuple[Column, Column]:
        numbers = array("i", data)
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers[0::2], numbers[1::2]

    def add(self, last_offset: int, position: int) -> None:
        """The batch at ``position`` ends with ``last_offset``."""
        self.append(last_offset - self.base_offset, position)

    def batch_before(self, offset: int) -> tuple[int, int] | None:
        """(last offset, position) of the last indexed batch that ends at or before ``offset``."""
        found = self.floor(offset - self.base_offset, 0)
        return None if found is None else (found[0] + self.base_offset, found[1])

    def position_before(self, position: int) -> int:
        """The start of the last indexed batch that begins at or before ``position``; 0 if there is none."""
        found = self.floor(position, 1)
        return 0 if found is None else found[1]
