"""Reads a log for a member of a share group, and acquires what it sends: whole batches, as regions of files, for sendfile.

Only the headers of the batches are read here. They tell which offsets there are, and which of them consumers may see: markers of
transactions, and in a group that reads committed records those of aborted transactions, are passed over.

A processor reads what is in the page cache. ``Cold`` says that a handler has to do it, which loads the bytes first, without the
share partition's lock; so nobody waits for the disk under it. Entries, which Pulsar's producers write, are written anew by the
handler (``broker/kafka/fetches.py``) after they were acquired; what then does not fit is given back.

Any thread.

One member acquires records of one share partition, batch by batch of the log. Pure; under the share partition's lock.

Whoever reads the log calls ``take`` for each batch from ``offset`` on, ascending, until it is ``full``, and sends those batches
of which something was taken. What lies between two batches is absent from the log.

In the *batch-optimized* mode ``max_records`` is reached by whole batches of the log, so that no other member has to decompress
the rest of one; in the *record-limit* mode it is not exceeded. The bound of the share partition is never exceeded.

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
from broker.runtime.disk import FileRegion
from broker.storage.log.inspection import walk
from broker.storage.log.log import Log
from broker.storage.log.reading import ReadResult
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.index_file import AbortedTransaction
from protocol.errors import ProtocolError
from protocol.kafka.messages.share_fetch import AcquiredRecords
from protocol.kafka.records.batch import HEADER_SIZE, BatchHeader

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1

_NO_LIMIT = 1 << 62


class Acquisition:
    """``acquired``: what the member has got, ascending; complete after ``finish``. ``count``: how many offsets that are."""

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
        """``batch_size``: how many records the client would like to acknowledge at once; 0: as many as there are."""
        self._partition = partition
        self._member_id = member_id
        self._owner = partition.owner(member_id)
        self._at = offset
        self._now = now
        self._most = max_records
        self._batch_size = batch_size if batch_size > 0 else _NO_LIMIT
        self._exact = mode == RECORD_LIMIT
        # New offsets that the member has got and that are not in flight yet: whole batches become one range.
        self._first = self._end = 0
        self.acquired: list[AcquiredRecords] = []
        self.count = 0
        self.full = False

    def take(self, base: int, last: int, *, visible: bool = True) -> bool:
        """The next batch of the log has these offsets. Whether the member gets one. ``visible``: consumers may see them."""
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


# Of one share partition at a time. Who wants more gets it by turns with the other partitions.
READ_BYTES_MAX = 1024 * 1024
# Headers of batches that one fetch reads: 1 us each.
HEADERS_MAX = 2_000
_CHUNK = 16 * 1024


class Cold(Exception):
    """A handler must do this: the records are not in memory, or have to be written anew, or a look-up reads the disk."""


@attrs.define(eq=False)
class Wanted:
    """What a fetch may still take."""

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
    """What a member gets of one share partition."""

    entry: PartitionEntry
    acquired: Sequence[AcquiredRecords]
    parts: Sequence[Part]
    size: int


@attrs.define
class _Batches:
    """Batches of the log that are sent, in the order of their offsets."""

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
    """What there is for a session whose link was taken out of its queue. ``first``: a batch larger than ``max_bytes`` is sent.

    Raises Cold, unless ``may_block``, with the link where it was; Refusal, StorageError.
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
    wanted.max_bytes -= size
    wanted.max_records -= sum(last - first_offset + 1 for first_offset, last, _ in acquired)
    return Taken(entry, acquired, parts, size) if acquired else None


def available_bytes(link: Link, wanted: Wanted) -> int:
    """About how many bytes a fetch would get from here. Raises Refusal, StorageError."""
    entry = link.entry
    with entry.lock:
        partition = entry.partition
        offset = None if partition is None else partition.next_offset()
        end = entry.readable_end
    if offset is None or not entry.log.log_start_offset <= offset < end:
        return 0
    return entry.log.read(offset, min(wanted.max_bytes, READ_BYTES_MAX), up_to=end).size


def _read(entry: PartitionEntry, partition: SharePartition, most: int, *, first: bool) -> tuple[int, ReadResult] | None:
    """From which offset, and what. None: there is nothing."""
    log = entry.log
    for _ in range(2):
        if log.log_start_offset > partition.start:
            partition.move_start(log.log_start_offset)
        offset, end = partition.next_offset(), entry.readable_end
        if offset is None or offset >= end:
            return None
        try:
            return offset, log.read(offset, min(most, READ_BYTES_MAX), at_least_one=first, up_to=end)
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
    found = _read(entry, partition, most, first=first)
    if found is None:
        return [], batches
    offset, read = found
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
        batch_size=1
        if batches.apart
        else wanted.batch_size,  # each batch by itself, since it may have to be given back
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
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def _warm(entry: PartitionEntry, wanted: Wanted) -> None:
    """Load what is about to be acquired, without the lock. It is read once more under the lock."""
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
    """Records in the place of entries. What does not fit is given back; raises StorageError, and gives everything back."""
    parts: list[Part] = []
    size = 0
    try:
        for region, base in zip(batches.regions, batches.bases, strict=True):
            translated = fetches.translate(entry.log, [region], fetches.MOST_BYTES - size, at_least_one=not parts)
            if not translated.whole:
                kept = [one for one in acquired if one.last < base]
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
