"""The index files of a segment. The offset index and the time index are files of equal-sized, sorted entries with two numbers.

A thread that appends holds the log's lock; any thread may search. The newest entries, at most a page of them, are in memory
only: an index can always be rebuilt from the log, so it is written a page at a time, and after a crash it is trusted only up to
the recovery point. A search reads one page of the file and keeps it, so memory does not grow with the log.

``<base>.index``: the file positions of offsets. Kafka's format: pairs of int32, relative offset and file position. There is an
entry for about every ``index.interval.bytes`` of log. It names a batch by its last offset (relative to the segment's base) and
the position where it begins.

``<base>.timeindex``: the largest timestamps of a segment. Kafka's format: int64 timestamp (ms), int32 relative offset. An entry
says that the batch that ends with this offset has this timestamp, and that no batch before it has a larger one. Timestamps rise
from entry to entry.

``<base>.txnindex``: the aborted transactions whose ABORT marker is in a segment. Kafka's format, 34 bytes an entry, in the order
of the markers, so a look-up is a bisection. The file is made with its first entry. Most segments have no entry, and for them
nothing here touches the disk.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from broker.runtime.open_files import CachedFile
from broker.runtime.threads import Lock
from protocol.frames import crc32c

Column = Sequence[int]


class CorruptIndex(Exception):
    """An index file that does not fit its segment."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path


class Page(NamedTuple):
    """The entries of the file from number ``first`` on, as two columns."""

    first: int
    columns: tuple[Column, Column]


class IndexFile:
    """Entries are pairs. From entry to entry the first number rises; the second rises or stays."""

    ENTRY: Struct
    PAGE_ENTRIES: int

    __slots__ = ("_after", "_mutex", "_page", "_stored", "_surplus", "_tail", "cached", "written")

    def __init__(self, cached: CachedFile, after: "IndexFile | None" = None) -> None:
        """``after``: the index that is written before this index. A process may die between the two."""
        self.cached = cached
        self._after = after
        self._mutex = Lock()
        self._tail: tuple[list[int], list[int]] = ([], [])
        self._page: Page | None = None
        self._stored = -1  # entries in the file; -1: not counted yet
        self._surplus = False  # the file has more entries, which do not count; the next flush cuts them off
        self.written = False  # the file has been changed since it was opened

    def is_missing(self) -> None:
        """Note that there is no file yet, which saves a look at the disk."""
        self._stored = 0

    def _decode(self, data: bytes) -> tuple[Column, Column]:
        first, second = zip(*self.ENTRY.iter_unpack(data), strict=True)
        return first, second

    def __len__(self) -> int:
        return self._stored_entries() + len(self._tail[0])

    def _stored_entries(self) -> int:
        stored = self._stored
        if stored < 0:
            try:
                stored = self.cached.size() // self.ENTRY.size
            except FileNotFoundError:  # it is made when the first page is full
                stored = 0
            self._stored = stored
        return stored

    def append(self, first: int, second: int) -> None:
        """The log's lock is held. A full page is written to the file; if that fails, it stays in memory until it succeeds."""
        with self._mutex:
            self._tail[0].append(first)
            self._tail[1].append(second)
        if len(self._tail[0]) >= self.PAGE_ENTRIES:
            try:
                self.flush()
            except OSError:
                # The record is stored and must not fail for its index. If the disk stays full, appends of records fail too, so
                # this does not grow. Closing the segment flushes again and reports the error.
                pass

    def flush(self) -> None:
        """Write the entries that are only in memory, and make the file if it is missing. The log's lock is held."""
        after = self._after
        if after is not None and (after._tail[0] or after._surplus):
            after.flush()
        stored = self._stored_entries()
        firsts, seconds = self._tail
        file = self.cached.create()
        if firsts:
            pack = self.ENTRY.pack
            data = b"".join([pack(a, b) for a, b in zip(firsts, seconds, strict=True)])
            self.written = True
            file.pwrite([data], stored * self.ENTRY.size)
        if self._surplus:
            self.written = True
            file.truncate((stored + len(firsts)) * self.ENTRY.size)
            self._surplus = False
        with self._mutex:
            self._stored = stored + len(firsts)
            self._tail = ([], [])

    def sync(self) -> None:
        if self._stored_entries():
            self.cached.get().sync()

    def truncate(self, entries: int) -> None:
        """Keep the first ``entries``. The log's lock is held, or no other thread knows the log yet.

        The file stays as it is until the next flush: a start that finds thousands of logs as they were changes none of them.
        """
        stored = self._stored_entries()
        with self._mutex:
            if entries < stored:
                self._stored, self._surplus, self._page = entries, True, None
            kept = max(0, entries - stored)
            self._tail = (self._tail[0][:kept], self._tail[1][:kept])

    def floor(self, key: int, column: int) -> tuple[int, int] | None:
        """The last entry whose number in ``column`` is at most ``key``; None if there is none.

        If the file is damaged and its entries are not sorted, the result is some entry that is at most ``key``.
        """
        with self._mutex:
            tail = self._tail
            keys = tail[column]
            if keys and keys[0] <= key:
                at = bisect_right(keys, key) - 1
                return tail[0][at], tail[1][at]
        stored = self._stored_entries()
        if stored == 0:
            return None
        page = self._find_page(key, column, stored)
        if page is None:
            return None
        at = bisect_right(page.columns[column], key) - 1
        return page.columns[0][at], page.columns[1][at]

    def ceiling(self, key: int, column: int) -> tuple[int, int] | None:
        """The first entry with ``key`` or more in ``column``; None if there is none."""
        number = self.count_below(key, column)
        if number < self._stored_entries():
            return self.entry(number)
        with self._mutex:
            tail = self._tail
            at = bisect_left(tail[column], key)
            return (tail[0][at], tail[1][at]) if at < len(tail[column]) else None

    def last(self) -> tuple[int, int] | None:
        with self._mutex:
            if self._tail[0]:
                return self._tail[0][-1], self._tail[1][-1]
        stored = self._stored_entries()
        return self.entry(stored - 1) if stored else None

    def entry(self, number: int) -> tuple[int, int]:
        """Entry ``number`` of the file."""
        data = self.cached.get().pread(self.ENTRY.size, number * self.ENTRY.size)
        if len(data) < self.ENTRY.size:  # the file was cut since it was measured: no header fits this entry
            return -1, -1
        first, second = self.ENTRY.unpack(data)
        return first, second

    def count_below(self, key: int, column: int) -> int:
        """The number of entries in the file whose number in ``column`` is less than ``key``."""
        low, high = 0, self._stored_entries()
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[column] < key:
                low = middle + 1
            else:
                high = middle
        return low

    def rising_below(self, key: int, column: int) -> int:
        """``count_below`` for a file of which a power failure may have kept some pages and lost earlier pages, which are zeros
        then: the number of entries from the first on that rise and have a number less than ``key``. Reads them all."""
        count, previous = 0, (-1, -1)
        for start in range(0, self._stored_entries(), self.PAGE_ENTRIES):
            for entry in zip(*self._load_page(start).columns, strict=True):
                if entry[column] >= key or entry[0] <= previous[0] or entry[1] < previous[1]:
                    return count
                previous = entry
                count += 1
        return count

    def _find_page(self, key: int, column: int, stored: int) -> Page | None:
        """The page with the entry that ``floor`` wants: the kept page, the page after it, or a page from a bisection."""
        page = self._page
        if page is not None and (keys := page.columns[column])[0] <= key:
            after = page.first + len(keys)
            if key <= keys[-1] or after >= stored:
                return page
            if len(keys) == self.PAGE_ENTRIES:
                following = self._load_page(after)
                keys = following.columns[column]
                if not keys or keys[0] > key:  # between the two
                    return page
                if key <= keys[-1] or after + len(keys) >= stored:
                    return following
        low, high = 0, (stored - 1) // self.PAGE_ENTRIES  # page numbers
        while low < high:
            middle = (low + high + 1) // 2
            if self.entry(middle * self.PAGE_ENTRIES)[column] <= key:
                low = middle
            else:
                high = middle - 1
        page = self._load_page(low * self.PAGE_ENTRIES)
        return page if page.columns[column] and page.columns[column][0] <= key else None

    def _load_page(self, first: int) -> Page:
        size = self.ENTRY.size
        entries = min(self.PAGE_ENTRIES, self._stored_entries() - first)
        data = self.cached.get().pread(max(0, entries) * size, first * size)
        data = data[: len(data) // size * size]
        page = Page(first, self._decode(data) if data else ((), ()))
        if data:
            self._page = page
        return page


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
        entry = self.floor(offset - self.base_offset, 0)
        return None if entry is None else (entry[0] + self.base_offset, entry[1])

    def position_before(self, position: int) -> int:
        """The start of the last indexed batch that begins at or before ``position``; 0 if there is none."""
        entry = self.floor(position, 1)
        return 0 if entry is None else entry[1]


class TimeIndex(IndexFile):
    ENTRY = Struct(">qi")
    PAGE_ENTRIES = 340  # 4080 bytes

    __slots__ = ("_last_timestamp", "base_offset")

    def __init__(self, cached: CachedFile, base_offset: int) -> None:
        super().__init__(cached)
        self.base_offset = base_offset
        self._last_timestamp: int | None = None  # None: not read yet

    def add(self, timestamp: int, last_offset: int) -> None:
        """The log's lock is held. Does nothing if the last entry already has this timestamp or a later timestamp."""
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
        entry = self.floor(timestamp, 0)
        return None if entry is None else (entry[0], entry[1] + self.base_offset)

    def largest(self) -> tuple[int, int]:
        """The largest (timestamp, offset) known; (-1, base offset) if there is none."""
        last = self.last()
        return (-1, self.base_offset) if last is None else (last[0], last[1] + self.base_offset)


_ENTRY = Struct(">hqqqq")  # version, producer id, first offset, last offset, last stable offset
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """``last_offset`` is that of the marker, ``last_stable_offset`` the log's after the marker was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    __slots__ = ("_count", "_sum", "cached")

    def __init__(self, cached: CachedFile) -> None:
        self.cached = cached
        self._count = -1  # not counted yet
        self._sum = (0, 0)  # number of entries, their CRC

    def __len__(self) -> int:
        count = self._count
        if count < 0:
            try:
                count = self.cached.size() // _ENTRY.size
            except FileNotFoundError:
                count = 0
            self._count = count
        return count

    def add(self, entry: AbortedTransaction) -> None:
        """Raises OSError."""
        count = len(self)
        file = self.cached.get() if count else self.cached.create()
        data = _ENTRY.pack(_VERSION, *entry)
        file.pwrite([data], count * _ENTRY.size)
        self._count = count + 1
        if self._sum[0] == count:
            self._sum = count + 1, crc32c(data, self._sum[1])

    def entries(self) -> list[AbortedTransaction]:
        count = len(self)
        if not count:
            return []
        data = self.cached.get().pread(count * _ENTRY.size, 0)
        whole = len(data) - len(data) % _ENTRY.size
        return [AbortedTransaction._make(row[1:]) for row in _ENTRY.iter_unpack(data[:whole])]

    def collect(self, offset: int, end: int, aborted: list[AbortedTransaction]) -> bool:
        """Append to ``aborted`` the transactions with records from ``offset`` to ``end``. True if no later segment has more."""
        count = len(self)
        if not count:
            return False
        data = self.cached.get().pread(count * _ENTRY.size, 0)
        first = bisect_left(
            range(len(data) // _ENTRY.size), offset, key=lambda i: _ENTRY.unpack_from(data, i * _ENTRY.size)[3]
        )
        for number in range(first, len(data) // _ENTRY.size):
            entry = AbortedTransaction._make(_ENTRY.unpack_from(data, number * _ENTRY.size)[1:])
            if entry.first_offset < end:
                aborted.append(entry)
            if entry.last_stable_offset >= end:
                return True
        return False

    def truncate_from(self, offset: int) -> None:
        """Remove the entries whose marker is at ``offset`` or later. They must all be as they were added: this bisects."""
        self.keep(bisect_left(self.entries(), offset, key=lambda entry: entry.last_offset))

    def keep(self, count: int) -> None:
        """Remove all entries but the first ``count``, without reading them. Raises OSError."""
        if count < len(self):
            self.cached.get().truncate(count * _ENTRY.size)
            self._sum = (0, 0)
            self._count = count

    def is_missing(self) -> None:
        """Note that there is no file, so that nothing looks for it again."""
        self._count = 0

    def trust(self, count: int, checksum: int) -> None:
        """The file has so many entries, with this checksum: do not read it for that."""
        self._count, self._sum = count, (count, checksum)

    def replace(self, entries: Sequence[AbortedTransaction]) -> None:
        """Make these the durable content of the file. The name of a new file is not durable yet. Raises OSError."""
        if not entries and not len(self):
            return
        file = self.cached.create()
        file.truncate(0)
        self._count, self._sum = 0, (0, 0)
        for entry in entries:
            self.add(entry)
        file.sync()

    def checksum(self, count: int) -> int:
        """CRC-32C of the first ``count`` entries, which must exist. Raises OSError."""
        if self._sum[0] != count:
            self._sum = count, self.read_checksum(count)
        return self._sum[1]

    def read_checksum(self, count: int) -> int:
        """The same, read from the file; -1 if it has fewer entries. Raises OSError."""
        size = count * _ENTRY.size
        try:
            data = self.cached.get().pread(size, 0) if count else b""
        except FileNotFoundError:
            return -1
        return crc32c(data) if len(data) == size else -1

    def sync(self) -> None:
        if len(self):
            self.cached.get().sync()
