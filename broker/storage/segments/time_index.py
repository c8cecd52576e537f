"""``<base>.timeindex``: the largest timestamps of a segment. Kafka's format: int64 timestamp (ms), int32 relative offset.

An entry says that the batch that ends with this offset has this timestamp, and that no batch before it has a larger one.
Timestamps rise from entry to entry. ``index_file.py`` says which thread may do what.

Tests: tests/storage/segments/test_index_file.py.
"""

from struct import Struct

from broker.runtime.open_files import CachedFile
from broker.storage.segments.index_file import IndexFile


class TimeIndex(IndexFile):
    ENTRY = Struct(">qi")
    PAGE_ENTRIES = 340  # 4080 bytes

    __slots__ = ("_last_timestamp", "base_offset")

    def __init__(self, cached: CachedFile, base_offset: int) -> None:
        super().__init__(cached)
        self.base_offset = base_offset
        self._last_timestamp: int | None = None  # None: not read yet

    def add(self, timestamp: int, last_offset: int) -> None:
        """The log's lock is held. Does nothing if the last entry already has this timestamp or a later one."""
        if self._last_timestamp is None:
            self._last_timestamp = self.largest()[0]
        if timestamp > self._last_timestamp:
            self.append(timestamp, last_offset - self.base_offset)
            self._last_timestamp = timestamp

    def truncate(self, entries: int) -> None:
        super().truncate(entries)
        self._last_timestamp = self.largest()[0]

    def at_or_before(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry that is not later than ``timestamp``."""
        found = self.floor(timestamp, 0)
        return None if found is None else (found[0], found[1] + self.base_offset)

    def largest(self) -> tuple[int, int]:
        """The largest (timestamp, offset) that is known; (-1, base offset) if there is none."""
        last = self.last()
        return (-1, self.base_offset) if last is None else (last[0], last[1] + self.base_offset)
