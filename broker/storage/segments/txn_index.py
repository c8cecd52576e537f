"""``<base>.txnindex``: the aborted transactions whose ABORT marker is in a segment. Kafka's format, 34 bytes an entry.

Entries are in the order of the markers, so a look-up is a bisection. A thread that adds one holds the log's lock; any thread may
read. The file is made with its first entry. Most segments have no entry, and for them nothing here touches the disk.
"""

from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from broker.runtime.open_files import CachedFile
from protocol.frames import crc32c

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

    def collect(self, offset: int, end: int, found: list[AbortedTransaction]) -> bool:
        """Append the transactions with records from ``offset`` up to ``end`` to ``found``. True if no later segment has more."""
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
                found.append(entry)
            if entry.last_stable_offset >= end:
                return True
        return False

    def truncate_from(self, offset: int) -> None:
        """Remove the entries whose marker is at ``offset`` or later. They must all be as they were added: this bisects."""
        self.keep(bisect_left(self.entries(), offset, key=lambda entry: entry.last_offset))

    def keep(self, count: int) -> None:
        """Remove all entries but the first ``count``, whatever they are. Raises OSError."""
        if count < len(self):
            self.cached.get().truncate(count * _ENTRY.size)
            self._sum = (0, 0)
            self._count = count

    def is_missing(self) -> None:
        """The caller has seen that there is no file, so that it is not looked for again."""
        self._count = 0

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
