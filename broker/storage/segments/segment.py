"""One segment of a log: a file of record batches, its two indexes, and the index of aborted transactions.

Only the newest segment of a log (the active one) grows; the thread that appends holds the log's lock. Reading needs no lock: the
bytes below ``size`` never change. Only headers and index pages are read here, never the records for a consumer.

An index is only a hint. A used entry is checked against the header that it points at, and CorruptIndex is raised if
they disagree; the log then rebuilds the index.

Names of the files of a log, as Kafka makes them: an offset in 20 digits, and a suffix that says what the file holds.
"""

import errno
from collections.abc import Iterator, Sequence
from typing import Final

from broker.errors import StorageError
from broker.runtime.open_files import CachedFile, OpenFiles
from broker.storage.segments.index_file import CorruptIndex, OffsetIndex, TimeIndex, TransactionIndex
from protocol.kafka.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, SMALLEST_BATCH_LENGTH

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)

DELETED: Final = ".deleted"  # to be removed
CLEANED: Final = ".cleaned"  # being written by compaction
SWAP: Final = ".swap"  # written by compaction, replaces a segment


def file_name(offset: int, suffix: str) -> str:
    """``00000000000000000042.log``: with 20 digits names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name; None if the name is not that of such a file."""
    digits = name.removesuffix(suffix)
    if len(digits) != 20 or len(name) != 20 + len(suffix) or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


# Kafka's record batch header as ``HEADER`` unpacks it: the fields by number, without an object for each header.
Header = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
BASE_OFFSET, LENGTH, EPOCH, _MAGIC, CRC, ATTRIBUTES, LAST_DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP = range(9)
PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, RECORD_COUNT = range(9, 13)

NEVER = 2**63 - 1

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Headers are read a few at a time: by default there is an index entry for every 4 KiB.
WALK_BYTES = 8192
# File positions and offsets within a segment are int32 in Kafka's index format.
MAX_RELATIVE = 2**31 - 1


class CorruptSegment(StorageError):
    """No record batch begins where one must."""


class Segment:
    """``size`` is the end of the last whole batch, in bytes."""

    __slots__ = (
        "_bytes_since_index",
        "aborted",
        "base_offset",
        "created_ms",
        "directory",
        "files",
        "first_timestamp",
        "hot_from",
        "largest_timestamp",
        "largest_timestamp_offset",
        "log",
        "max_entries",
        "offsets",
        "roll_at_ms",
        "roll_at_timestamp",
        "size",
        "times",
    )

    def __init__(
        self, files: OpenFiles, directory: str, base_offset: int, size: int, created_ms: int, infix: str = ""
    ) -> None:
        """``infix`` is appended to the names of the files (``.cleaned``)."""
        self.files = files
        self.base_offset = base_offset
        self.directory = directory
        self.size = size
        self.created_ms = created_ms
        self.log = files.cached(f"{directory}/{file_name(base_offset, LOG)}{infix}")
        self.times = TimeIndex(files.cached(f"{directory}/{file_name(base_offset, TIME_INDEX)}{infix}"), base_offset)
        # A start scans from the end of the offset index, so the time index must not end before it.
        self.offsets = OffsetIndex(
            files.cached(f"{directory}/{file_name(base_offset, OFFSET_INDEX)}{infix}"), base_offset, self.times
        )
        self.aborted = TransactionIndex(files.cached(f"{directory}/{file_name(base_offset, TXN_INDEX)}{infix}"))
        # -2: not read yet; for a closed segment it is in the last entry of the time index.
        self.largest_timestamp = -2
        self.largest_timestamp_offset = base_offset
        self._bytes_since_index = 0
        self.hot_from = size  # from here on this process wrote, so it is most likely in the page cache
        self.first_timestamp = -1  # the largest of the first batch
        self.max_entries = NEVER  # of the offset index
        # When to begin a new segment: by the timestamps of the records if they have any, otherwise by the clock.
        self.roll_at_timestamp = NEVER
        self.roll_at_ms = NEVER

    def __repr__(self) -> str:
        return f"Segment({self.log.path!r}, size={self.size})"

    def appended(self, position: int, size: int, last_offset: int, max_timestamp: int, interval: int) -> None:
        """Bring indexes and ``size`` up to date after a batch was written at ``position``, the end."""
        self.index(position, size, last_offset, max_timestamp, interval)
        self.size = position + size

    def appended_all(self, position: int, offset: int, batches: Sequence[tuple[int, Header]], interval: int) -> None:
        """The same for several batches, the first of which has ``offset``. ``batches``: the position of each in the write, and
        its header."""
        unindexed = self._bytes_since_index
        end = position
        for at, header in batches:
            offset += header[LAST_DELTA] + 1
            if header[MAX_TIMESTAMP] > self.largest_timestamp:
                self.largest_timestamp = header[MAX_TIMESTAMP]
                self.largest_timestamp_offset = offset - 1
            if unindexed > interval:
                self._add_to_indexes(offset - 1, position + at)
                unindexed = 0
            size = header[LENGTH] + LOG_OVERHEAD
            unindexed += size
            end = position + at + size
        self._bytes_since_index = unindexed
        self.size = end

    def index(self, position: int, size: int, last_offset: int, max_timestamp: int, interval: int) -> None:
        """Add a batch to the indexes, which get an entry about every ``interval`` bytes."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_offset = last_offset
        if self._bytes_since_index > interval:
            self._add_to_indexes(last_offset, position)
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def _add_to_indexes(self, last_offset: int, position: int) -> None:
        self.times.add(self.largest_timestamp, self.largest_timestamp_offset)
        self.offsets.add(last_offset, position)
        if len(self.offsets) >= self.max_entries:
            self.roll_at_ms = -1  # begin a new segment at the next append

    def largest(self) -> tuple[int, int]:
        """(largest timestamp, last offset of the batch that has it); (-1, base offset) if no batch has a timestamp."""
        if self.largest_timestamp == -2:
            timestamp, offset = self.times.largest()
            self.largest_timestamp_offset = offset
            self.largest_timestamp = timestamp
        return self.largest_timestamp, self.largest_timestamp_offset

    def finish_indexes(self) -> None:
        """Write the entries that are only in memory. As Kafka's do, the time index ends with the largest timestamp.

        Raises OSError.
        """
        timestamp, offset = self.largest()
        if timestamp >= 0:
            self.times.add(timestamp, offset)
        self.times.flush()
        self.offsets.flush()

    def keep_indexes(self) -> None:
        """As ``finish_indexes``, but on a full disk the entries stay in memory, and the next start rebuilds them."""
        try:
            self.finish_indexes()
        except OSError as error:
            if error.errno not in _FULL:
                raise

    def start_indexes_from(self, position: int, offset: int, *, torn: bool = False) -> None:
        """Remove the entries for the batch at ``position``, whose base offset is ``offset``, and for all that follow. If the
        files may be ``torn``, later entries may be anything.

        Afterwards ``index`` reads nothing from the disk, so it cannot fail for a record that is already stored.
        """
        for index, end in (self.offsets, position), (self.times, offset - self.base_offset):
            index.truncate(index.rising_below(end, 1) if torn else index.count_below(end, 1))
        self.largest_timestamp, self.largest_timestamp_offset = self.times.largest()
        self._bytes_since_index = (
            NEVER if position else 0
        )  # the batch at `position` had an entry unless it is the first

    def rebuild_indexes(self, interval: int) -> None:
        """Rebuild both indexes from the headers of the log. For the active segment the log's lock is held.

        The files are written in place, so meanwhile a reader may find fewer entries, and then walks further. Raises
        CorruptSegment.
        """
        twin = Segment(self.files, self.directory, self.base_offset, self.size, self.created_ms)
        twin.largest_timestamp = -1
        twin.offsets.truncate(0)
        twin.times.truncate(0)
        next_offset = self.base_offset
        for position, header in self.walk(0, self.size):
            last_offset = header[BASE_OFFSET] + header[LAST_DELTA]
            if not next_offset <= header[BASE_OFFSET] <= last_offset <= self.base_offset + MAX_RELATIVE:
                raise CorruptSegment(f"{self.log.path} has a batch with a wrong offset at position {position}")
            next_offset = last_offset + 1
            twin.index(position, header[LENGTH] + LOG_OVERHEAD, last_offset, header[MAX_TIMESTAMP], interval)
        twin.keep_indexes()
        self.offsets, self.times = twin.offsets, twin.times
        self.largest_timestamp, self.largest_timestamp_offset = twin.largest()
        self._bytes_since_index = twin._bytes_since_index

    def check_largest(self) -> tuple[int, int]:
        """As ``largest``, checked against the header of that batch. Raises CorruptIndex."""
        timestamp, offset = self.largest()
        if timestamp >= 0:
            self.check_time(timestamp, self.locate(offset, self.size))
        return timestamp, offset

    def check_time(self, timestamp: int, position: int) -> None:
        """Raises CorruptIndex unless ``timestamp``, which the time index has, is the largest of the batch at ``position``."""
        header = self.header(position, self.size)
        if header is None or header[MAX_TIMESTAMP] != timestamp:
            raise CorruptIndex(self.times.cached.path, f"says {timestamp} of the batch at {position}")

    def torn_at(self, position: int, end: int) -> bool:
        """Does the file end within the batch at ``position``, or was the header of that batch never written?"""
        data = self.log.get().pread(min(HEADER_SIZE, end - position), position)
        if len(data) < HEADER_SIZE or not data.strip(b"\0"):
            return True
        header: Header = HEADER.unpack(data)
        return header[_MAGIC] == MAGIC and position + LOG_OVERHEAD + header[LENGTH] > end

    def sync_indexes(self) -> None:
        self.offsets.sync()
        self.times.sync()
        self.aborted.sync()

    def walk(self, position: int, end: int) -> Iterator[tuple[int, Header]]:
        """Position and header of each batch from ``position`` to ``end``, which must both be boundaries of batches.

        Raises CorruptSegment if a batch does not begin where one must. Checksums are not verified.
        """
        file = self.log.get()
        unpack = HEADER.unpack_from
        while position < end:
            data = file.pread(min(WALK_BYTES, end - position), position)
            at = 0
            while at + HEADER_SIZE <= len(data):
                header: Header = unpack(data, at)
                size = header[LENGTH] + LOG_OVERHEAD
                if header[_MAGIC] != MAGIC or header[LENGTH] < SMALLEST_BATCH_LENGTH or position + size > end:
                    raise CorruptSegment(f"{self.log.path} has no record batch at position {position}")
                yield position, header
                position += size
                at += size
            if at == 0:
                raise CorruptSegment(f"{self.log.path} has no record batch at position {position}")

    def locate(self, offset: int, end: int) -> int:
        """The position of the first batch that ends at ``offset`` or later; ``end`` if there is none."""
        position = 0
        indexed = self.offsets.batch_before(offset)
        if indexed is not None:
            last_offset, position = indexed
            if position < end:
                self._check(position, end, last_offset)
            elif position > self.size:
                raise CorruptIndex(self.offsets.cached.path, f"points at position {position}, outside its segment")
        for at, header in self.walk(min(position, end), end):
            if header[BASE_OFFSET] + header[LAST_DELTA] >= offset:
                return at
        return end

    def _check(self, position: int, end: int, last_offset: int) -> None:
        header = self.header(position, end)
        if header is None or header[BASE_OFFSET] + header[LAST_DELTA] != last_offset:
            raise CorruptIndex(self.offsets.cached.path, f"points at position {position}, where no such batch is")

    def header(self, position: int, end: int) -> Header | None:
        """The header at ``position``; None if the bytes there cannot be one."""
        if not 0 <= position <= end - HEADER_SIZE:
            return None
        header: Header = HEADER.unpack(self.log.get().pread(HEADER_SIZE, position))
        if (
            header[_MAGIC] != MAGIC
            or header[LENGTH] < SMALLEST_BATCH_LENGTH
            or position + LOG_OVERHEAD + header[LENGTH] > end
            or header[BASE_OFFSET] < self.base_offset
            or header[LAST_DELTA] < 0
        ):
            return None
        return header

    def end_within(self, offset: int, position: int, max_bytes: int, end: int) -> tuple[int, int]:
        """The end of the last batch that ends within ``max_bytes`` from ``position``, and the offset that follows it (-1 if
        unknown). If the first batch is too large, that is ``position`` itself. The batch at ``position`` has ``offset`` or later
        offsets, and ``end`` is more than ``max_bytes`` away."""
        bound = position + max_bytes
        at = self.offsets.position_before(bound)
        if at > position:
            header = self.header(at, end)
            if header is None or header[BASE_OFFSET] <= offset:
                raise CorruptIndex(self.offsets.cached.path, f"points at position {at}, where no such batch is")
            after = at + LOG_OVERHEAD + header[LENGTH]
            if after > bound:
                return at, header[BASE_OFFSET]
            return after, header[BASE_OFFSET] + header[LAST_DELTA] + 1
        next_offset = -1
        for at, header in self.walk(position, end):
            after = at + LOG_OVERHEAD + header[LENGTH]
            if after > bound:
                return at, header[BASE_OFFSET]
            position, next_offset = after, header[BASE_OFFSET] + header[LAST_DELTA] + 1
        return position, next_offset

    def end_offset_at(self, position: int) -> int:
        """An offset after every batch that begins before ``position``; ``NEVER`` if the index ends before it."""
        entry = self.offsets.ceiling(position, 1)
        return NEVER if entry is None else entry[0] + self.base_offset + 1

    def first_end(self, position: int, end: int) -> tuple[int, int]:
        """The end of the batch at ``position``, and the offset that follows it."""
        at, header = next(self.walk(position, end))
        return at + LOG_OVERHEAD + header[LENGTH], header[BASE_OFFSET] + header[LAST_DELTA] + 1

    def paths(self) -> list[str]:
        """All files that may belong to the segment."""
        return [f"{self.directory}/{file_name(self.base_offset, suffix)}" for suffix in SEGMENT_SUFFIXES]

    def drop_files(self) -> None:
        for cached in self._files():
            cached.drop()

    def moved_to(self, directory: str) -> None:
        """Note that the files are in ``directory`` now. Each is closed when nobody uses it, and then opened there."""
        for cached in self._files():
            cached.path = f"{directory}/{cached.path.rpartition('/')[2]}"
            cached.drop()

    def _files(self) -> tuple[CachedFile, ...]:
        return self.log, self.offsets.cached, self.times.cached, self.aborted.cached


def new_segment(files: OpenFiles, directory: str, base_offset: int, now_ms: int) -> Segment:
    """An empty segment with a new log file, whose name is not durable yet. Raises OSError, and leaves no file then."""
    segment = Segment(files, directory, base_offset, 0, now_ms)
    segment.largest_timestamp = -1
    file = segment.log.create()
    try:
        if file.size():  # left over from a failed attempt
            file.truncate(0)
        segment.start_indexes_from(0, base_offset)
    except BaseException:
        # The next records may go to the previous segment, and this file would hide them.
        segment.drop_files()
        files.disk.remove(segment.log.path)
        raise
    return segment
