"""Reads a log for a member of a share group, and acquires the records that it sends: whole batches, as regions of files.

Only the headers of the batches are read here, and the regions are sent with sendfile. The headers tell the offsets, and which of
them consumers may see: markers of transactions are passed over, and in a group that reads committed records those of aborted
transactions.

A processor reads only the page cache. ``Cold`` says that a handler has to do it. The handler loads the bytes first, without the
share partition's lock, so nobody waits for the disk under it. Entries, which Pulsar's producers write, are rewritten by the
handler (``broker/kafka/fetches.py``) after they were acquired; those that do not fit are released. Any thread.

``Acquisition`` acquires records of one share partition for one member, batch by batch. It is pure and runs under the share
partition's lock. The reader of the log calls ``take`` for each batch from ``offset`` on, ascending, until it is ``full``, and
sends those batches of which records were taken. Offsets between two batches are absent from the log.

In the *batch-optimized* mode ``max_records`` is reached by whole batches of the log, so that no other member has to decompress
the rest of a batch; in the *record-limit* mode it is not exceeded. The bound of the share partition is never exceeded.

Tests: tests/kafka/handlers/test_share_fetch.py,
tests/kafka/handlers/test_share_reading.py,
tests/kafka/share/test_share_partition.py.
"""

from collections.abc import Sequence

import attrs

from broker.errors import StorageError
from broker.kafka import fetches
from broker.kafka.share.partition_entry import Link, PartitionEntry
from broker.kafka.share.share_partition import SharePartition, ShareSettings
from broker.network.service import Part
from broker.network.work import BULK, REMOTE
from broker.runtime.disk import FileRegion, warm_all
from broker.storage.log.inspection import walk
from broker.storage.log.log import Log
from broker.storage.log.reading import Elsewhere, ReadResult
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.index_file import AbortedTransaction
from protocol.errors import ProtocolError
from protocol.kafka.messages.share_fetch import AcquiredRecords
from protocol.kafka.records.batch import HEADER_SIZE, BatchHeader

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1

_NO_LIMIT = 1 << 62


class Acquisition:
    """``acquired``: the member's new records, ascending; complete after ``finish``. ``count``: the number of their offsets."""

    __slots__ = (
        "_at",
        "_batch_size",
        "_end",
        "_exact",
        "_first",
        "_member_id",
        "_most",
        "_now",
        "_owner",
        "_partition",
        "acquired",
        "count",
        "full",
    )

    def __init__(
        self,
        partition: SharePartition,
        member_id: str,
        offset: int,
        now: float,
        *,
        max_records: int,
        batch_size: int = 0,
        mode: int = BATCH_OPTIMIZED,
    ) -> None:
        """``batch_size``: how many records the client prefers to acknowledge at once; 0 for no preference."""
        self._partition = partition
        self._member_id = member_id
        self._owner = partition.owner(member_id)
        self._at = offset
        self._now = now
        self._most = max_records
        self._batch_size = batch_size if batch_size > 0 else _NO_LIMIT
        self._exact = mode == RECORD_LIMIT
        # New offsets of the member that are not in flight yet: whole batches become one range.
        self._first = self._end = 0
        self.acquired: list[AcquiredRecords] = []
        self.count = 0
        self.full = False

    def take(self, base: int, last: int, *, visible: bool = True) -> bool:
        """Take the next batch of the log. Returns whether the member gets records of it. ``visible``: consumers may see them."""
        partition, first = self._partition, max(base, self._at)
        if self._at < base:
            partition.absent(self._at, base)
        self._at = last + 1
        if not visible:
            partition.absent(first, last + 1)
            return False
        before = self.count
        self._take_available(first, last)
        self._take_new(first, last)
        if self.count >= self._most:
            self.full = True
        return self.count > before

    def finish(self) -> list[AcquiredRecords]:
        self._flush()
        self._partition.forget_owner(self._member_id)
        return self.acquired

    @property
    def _left(self) -> int:
        return self._most - self.count if self._exact else _NO_LIMIT

    def _take_available(self, first: int, last: int) -> None:
        while self._left > 0 and (record := self._partition.available_from(first, last)) is not None:
            stop = min(last, record.first + min(record.weight, self._left) - 1)
            self._partition.acquire_again(self._owner, record, stop, self._now)
            self._add(record.first, stop, record.failures + 1)
            first = stop + 1

    def _take_new(self, first: int, last: int) -> None:
        partition = self._partition
        first = max(first, partition.end)
        if first > last:
            return
        end = min(last + 1, first + max(0, min(self._left, partition.room)))
        if end <= last:
            self.full = True
        if end <= first:
            return
        if first != self._end or self._end - self._first >= self._batch_size:
            self._flush()
            self._first = first
        self._end = end
        self.count += end - first
        partition.pass_to(end)

    def _flush(self) -> None:
        if self._first < self._end:
            self._partition.acquire_new(self._owner, self._first, self._end, self._now)
            self.acquired.append(AcquiredRecords(self._first, self._end - 1, 1))
            self._first = self._end

    def _add(self, first: int, last: int, delivery_count: int) -> None:
        self.count += last - first + 1
        if self.acquired:
            before = self.acquired[-1]
            if (
                before.last == first - 1
                and before.delivery_count == delivery_count
                and last - before.first < self._batch_size
            ):
                self.acquired[-1] = AcquiredRecords(before.first, last, delivery_count)
                return
        self.acquired.append(AcquiredRecords(first, last, delivery_count))


# Limit for each share partition. The rest follows in turn with the other partitions.
READ_BYTES_MAX = 1024 * 1024
# Headers of batches that a fetch reads: 1 us each.
HEADERS_MAX = 2_000
_CHUNK = 16 * 1024


class Cold(Exception):
    """A handler must do this: the records are not in memory, or have to be rewritten, or a look-up reads the disk."""

    lane = BULK


class InStore(Cold):
    """They are in the object store."""

    lane = REMOTE


@attrs.define(eq=False)
class Wanted:
    """The limits that remain to a fetch."""

    member_id: str
    settings: ShareSettings
    max_bytes: int
    max_records: int
    batch_size: int
    mode: int
    headers: int = HEADERS_MAX

    @property
    def has_enough(self) -> bool:
        return self.max_bytes <= 0 or self.max_records <= 0 or self.headers <= 0


@attrs.frozen
class Taken:
    """A member's records of one share partition."""

    entry: PartitionEntry
    acquired: Sequence[AcquiredRecords]
    parts: Sequence[Part]
    size: int


@attrs.define
class _Batches:
    """Batches to send, in the order of their offsets."""

    regions: list[FileRegion] = attrs.Factory(list)
    bases: list[int] = attrs.Factory(list)  # of each region, if ``apart``
    size: int = 0
    apart: bool = False  # each batch is a region by itself

    def add(self, file: FileRegion, position: int, header: BatchHeader) -> None:
        last = self.regions[-1] if self.regions and not self.apart else None
        if last is not None and last.file is file.file and last.offset + last.size == position:
            last.size += header.size
        else:
            self.regions.append(FileRegion(file.file, position, header.size))
            self.bases.append(header.base_offset)
        self.size += header.size


def take(link: Link, wanted: Wanted, now: float, *, first: bool, may_block: bool) -> Taken | None:
    """Take records for a session whose link was taken out of its queue. ``first``: a batch larger than ``max_bytes`` is sent.

    Raises Cold, unless ``may_block``, and leaves the link in its place; Refusal, StorageError.
    """
    entry = link.entry
    if may_block:
        _warm(entry, wanted)
    with entry.lock:
        if link.closed:
            link.queued = False
            return None
        partition = entry.partition
        if not may_block and (partition is None or entry.log.state.has_entries):
            raise Cold
        if partition is None:  # another session is about to begin
            entry.looked_at(link)
            return None
        entry.configure(wanted.settings)
        version = partition.version
        acquired, batches = _acquire(entry, partition, wanted, now, first=first, may_block=may_block)
        moved = partition.version != version
        entry.arm()
        entry.looked_at(link)
    if moved:
        entry.changed()
    if not acquired:
        return None
    parts: Sequence[Part] = batches.regions
    size = batches.size
    if batches.apart:
        acquired, parts, size = _translate(entry, wanted.member_id, acquired, batches)
    if may_block:
        try:
            parts = brought(parts)
        except OSError as error:
            entry.undo(wanted.member_id, acquired)
            raise entry.log.state.failed("it could not be read", error) from error
    wanted.max_bytes -= size
    wanted.max_records -= sum(last - first_offset + 1 for first_offset, last, _ in acquired)
    return Taken(entry, acquired, parts, size) if acquired else None


def brought(parts: Sequence[Part]) -> Sequence[Part]:
    """``parts`` without regions of files that are in the object store. Raises OSError."""
    if not any(isinstance(part, FileRegion) and part.file.is_remote for part in parts):
        return parts
    return warm_all(parts)


def available_bytes(link: Link, wanted: Wanted) -> int:
    """Approximate size of a fetch from here. Raises Refusal, StorageError."""
    entry = link.entry
    with entry.lock:
        partition = entry.partition
        offset = None if partition is None else partition.next_offset()
        end = entry.readable_end
    if offset is None or not entry.log.log_start_offset <= offset < end:
        return 0
    try:
        return entry.log.read(offset, min(wanted.max_bytes, READ_BYTES_MAX), up_to=end, may_wait=False).size
    except Elsewhere:
        return wanted.max_bytes  # probably


def _read(
    entry: PartitionEntry, partition: SharePartition, most: int, *, first: bool, may_block: bool
) -> tuple[int, ReadResult] | None:
    """The first offset and the result, or None if there is nothing to read. Raises Cold unless ``may_block``."""
    log = entry.log
    for _ in range(2):
        if log.log_start_offset > partition.start:
            partition.move_start(log.log_start_offset)
        offset, end = partition.next_offset(), entry.readable_end
        if offset is None or offset >= end:
            return None
        try:
            return offset, log.read(
                offset, min(most, READ_BYTES_MAX), at_least_one=first, up_to=end, may_wait=may_block
            )
        except Elsewhere:
            raise InStore from None
        except OffsetOutOfRange:
            if log.log_start_offset <= offset:
                raise
    return None


def _acquire(
    entry: PartitionEntry, partition: SharePartition, wanted: Wanted, now: float, *, first: bool, may_block: bool
) -> tuple[list[AcquiredRecords], _Batches]:
    """The lock is held."""
    log = entry.log
    batches = _Batches(apart=log.state.has_entries)
    most = min(wanted.max_bytes, fetches.MOST_BYTES // 4) if batches.apart else wanted.max_bytes
    result = _read(entry, partition, most, first=first, may_block=may_block)
    if result is None:
        return [], batches
    offset, read = result
    if not read.resident and not may_block:
        raise Cold
    aborted: Sequence[AbortedTransaction] = ()
    if partition.settings.reads_committed:
        aborted = log.transactions.aborted(offset, read, entry.readable_end)
    acquisition = Acquisition(
        partition,
        wanted.member_id,
        offset,
        now,
        max_records=wanted.max_records,
        # Batches with entries are acquired one by one, since each may have to be released.
        batch_size=1 if batches.apart else wanted.batch_size,
        mode=wanted.mode,
    )
    try:
        _walk(read, acquisition, batches, wanted, aborted)
    except (ProtocolError, OSError) as error:
        partition.undo(wanted.member_id, acquisition.finish())
        if isinstance(error, OSError):
            raise log.state.failed("it could not be read", error) from error
        raise log.state.go_offline(f"a record batch is damaged: {error}") from error
    return acquisition.finish(), batches


def _walk(
    read: ReadResult,
    acquisition: Acquisition,
    batches: _Batches,
    wanted: Wanted,
    aborted: Sequence[AbortedTransaction],
) -> None:
    for region in read.regions:
        for header, position, _ in walk(region, _CHUNK, _header_only):
            visible = not (header.is_control or (aborted and _is_aborted(header, aborted)))
            if acquisition.take(header.base_offset, header.last_offset, visible=visible):
                batches.add(region, position, header)
            wanted.headers -= 1
            if acquisition.full or wanted.headers <= 0:
                return


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        transaction.producer_id == header.producer_id
        and transaction.first_offset <= header.base_offset <= transaction.last_offset
        for transaction in aborted
    )


def _warm(entry: PartitionEntry, wanted: Wanted) -> None:
    """Load the records to be acquired, without the lock. They are read again under the lock."""
    with entry.lock:
        partition = entry.partition
        offset = None if partition is None else partition.next_offset()
    log: Log = entry.log
    if offset is None or not log.log_start_offset <= offset < log.high_watermark:
        return
    try:
        read = log.read(offset, min(wanted.max_bytes, READ_BYTES_MAX))
        if not read.resident:
            for region in read.regions:
                region.warm()
    except OffsetOutOfRange:
        pass
    except OSError as error:
        raise log.state.failed("it could not be read", error) from error


def _translate(
    entry: PartitionEntry, member_id: str, acquired: list[AcquiredRecords], batches: _Batches
) -> tuple[list[AcquiredRecords], list[Part], int]:
    """Translate entries to records. Entries that do not fit are released; on StorageError all are."""
    parts: list[Part] = []
    size = 0
    try:
        for region, base in zip(batches.regions, batches.bases, strict=True):
            translated = fetches.translate(entry.log, [region], fetches.MOST_BYTES - size, at_least_one=not parts)
            if not translated.whole:
                kept = [records for records in acquired if records.last < base]
                entry.undo(member_id, acquired[len(kept) :])
                return kept, parts, size
            parts += translated.parts
            size += translated.size
    except StorageError:
        entry.undo(member_id, acquired)
        raise
    return acquired, parts, size


def _header_only(_: BatchHeader) -> int:
    return HEADER_SIZE
