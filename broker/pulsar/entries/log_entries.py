"""Reads entries from a log: entries as Pulsar's producers sent them, and batches of Kafka's producers, transcoded.

For threads that may block. Batches are read a chunk at a time, and the entries of a chunk share its bytes. Of a large entry only
the beginning is read; the entry leaves by sendfile. Consumers do not get control batches, batches of aborted transactions,
batches that compaction has emptied, and batches that cannot be read as messages.

The CRC of a batch that was read whole is checked, because a client acknowledges a damaged message, which would then be lost.

Tests: tests/pulsar/entries/test_reader.py.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.log import EventLimit, get_logger
from broker.pulsar import entry as entry_factory
from broker.pulsar.entry import Entry
from broker.runtime.disk import FileRegion
from broker.runtime.threads import Lock
from broker.storage.log.inspection import walk
from broker.storage.log.log import Log
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.index_file import AbortedTransaction
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import TRANSACTIONAL, BatchHeader, check_crc, read_header

logger = get_logger("pulsar")
_unreadable = EventLimit()

# Entries of at least this size (bytes) leave by sendfile. Sending 64 KiB took 6 us by sendfile and 10 us from memory, the read
# included; 4 KiB took 3.4 us and 1.3 us, because a system call sends many such entries (loopback, November 2026).
SENDFILE_BYTES = 64 * 1024
# Bytes of a read of the file, at least and at most.
_LEAST_CHUNK = 16 * 1024
_MOST_CHUNK = 512 * 1024
# Bytes that are read of a large entry: its header and, as a rule, all of its metadata.
_PREFIX_BYTES = 8 * 1024


class Found(NamedTuple):
    """``entries`` in order: all that consumers see before the offset ``searched``. ``more`` are entries of the last batch of a
    Kafka producer that follow them."""

    entries: list[Entry]
    searched: int
    more: Sequence[Entry] = ()


class LogEntriesReader:
    """Reads a log. ``read`` and ``replay`` may run on several threads at once. ``by_key``: batches of Kafka's producers are split
    so that all messages of an entry have the same key."""

    __slots__ = ("_average", "_by_key", "_large", "_log")

    def __init__(self, log: Log, large: Lock, *, by_key: bool = False) -> None:
        """``large`` is held while a batch of a Kafka producer that is large when decompressed is transcoded."""
        self._log = log
        self._large = large
        self._by_key = by_key
        self._average = 1024  # moving average of the bytes of a batch; it determines how much is read at a time

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Found:
        """The entries from ``offset`` on, up to the last stable offset; the first is returned whatever its size. If ``offset``
        lies within an entry, that entry is the first.

        Raises StorageError, and Refusal if the topic was deleted.
        """
        log = self._log
        entries: list[Entry] = []
        stable = log.last_stable_offset
        offset = max(offset, log.log_start_offset)
        left = max_bytes
        while offset < stable and len(entries) < max_entries and (left > 0 or not entries):
            want = min(_MOST_CHUNK, left, max(_LEAST_CHUNK, self._average * (max_entries - len(entries))))
            try:
                chunk = self._chunk(offset, stable, want, max_entries - len(entries))
            except OffsetOutOfRange:
                if offset >= log.log_start_offset:
                    break
                offset = log.log_start_offset  # retention has deleted these records meanwhile
                continue
            if chunk.searched <= offset:
                break
            for number, entry in enumerate(chunk.entries):
                if entries and (entry.size > left or len(entries) >= max_entries):
                    return Found(entries, entry.offset, chunk.entries[number:])
                entries.append(entry)
                left -= entry.size
            offset = chunk.searched
        return Found(entries, offset)

    def replay(self, offsets: Sequence[int]) -> list[Entry]:
        """The entries at these offsets, which ascend, without those that were deleted. Raises as ``read``."""
        entries: list[Entry] = []
        batch: Sequence[Entry] = ()  # the entries of the last batch, in which the next offsets may be, too
        for offset in offsets:
            if entries and offset <= entries[-1].last:
                continue
            if not batch or not batch[0].offset <= offset <= batch[-1].last:
                result = self.read(offset, 1, 1)
                batch = [*result.entries, *result.more]
            number = bisect_right(batch, offset, key=_offset_of) - 1
            if number >= 0 and batch[number].last >= offset:
                entries.append(batch[number])
        return entries

    def _chunk(self, offset: int, stable: int, size: int, max_entries: int) -> Found:
        log = self._log
        read = log.read(offset, size, up_to=stable)
        if not read.size:  # compaction has removed all batches up to the end
            return Found([], stable)
        aborted = log.transactions.aborted(offset, read, stable)
        entries: list[Entry] = []
        searched = offset
        try:
            for region in read.regions:
                for header, batch, place in _batches(region, offset):
                    self._average += (header.size - self._average) // 16
                    if header.base_offset >= stable or len(entries) >= max_entries:
                        return Found(entries, min(header.base_offset, stable))
                    searched = header.next_offset
                    if not header.record_count or header.is_control or _is_aborted(header, aborted):
                        continue
                    entries += [entry for entry in self._entries(header, batch, place) if entry.last >= offset]
        except ProtocolError as error:
            raise log.state.go_offline(f"a record batch is damaged: {error}") from error
        except OSError as error:
            raise log.state.failed("entries could not be read", error) from error
        return Found(entries, min(searched, stable))

    def _entries(self, header: BatchHeader, batch: memoryview, place: FileRegion | None) -> Sequence[Entry]:
        try:
            if header.is_entry:
                try:
                    if place is not None:
                        return (entry_factory.from_prefix(batch, header, place),)
                    return (entry_factory.from_batch(batch, header),)
                except ProtocolError:
                    if place is not None:  # it has the mark of an entry, but is a batch of a Kafka producer
                        batch = memoryview(place.file.pread(place.size, place.offset))
            return entry_factory.from_kafka(batch, header, self._large, by_key=self._by_key)
        except ProtocolError as error:
            dropped = _unreadable.take(self._log.around.clock.monotonic())
            if dropped is not None:
                log, offset = self._log, header.base_offset
                logger.warning(
                    "batch_left_out",
                    topic=log.topic,
                    partition=log.partition,
                    offset=offset,
                    reason=str(error),
                    dropped=dropped,
                )
            return ()


def _offset_of(entry: Entry) -> int:
    return entry.offset


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    if not header.attributes & TRANSACTIONAL:
        return False
    return any(
        other.producer_id == header.producer_id and other.first_offset <= header.base_offset <= other.last_offset
        for other in aborted
    )


def _batches(region: FileRegion, offset: int) -> Iterable[tuple[BatchHeader, memoryview, FileRegion | None]]:
    """Header and bytes of each batch with ``offset`` or a later offset. Of a large entry only the beginning is read, and its
    place in the file is returned, too. Raises ProtocolError for bytes that are no batch or fail the CRC; OSError."""
    # What is in the object store does not leave by sendfile: entries are kept, and the piece of the cache may be gone by then.
    for header, position, data in walk(region, _MOST_CHUNK, _whole if region.file.is_remote else _needed):
        if len(data) == header.size:
            check_crc(data, 0, read_header(data))
            if header.last_offset >= offset:
                yield header, data, None
        elif header.last_offset >= offset:
            place = FileRegion(region.file, position, header.size)
            yield header, _prefix(header, data, place), place


def _whole(header: BatchHeader) -> int:
    return header.size


def _needed(header: BatchHeader) -> int:
    size = header.size
    return min(_PREFIX_BYTES, size) if header.is_entry and size >= SENDFILE_BYTES else size


def _prefix(header: BatchHeader, data: memoryview, place: FileRegion) -> memoryview:
    """The beginning of a large entry, with all of its metadata."""
    try:
        needed = entry_factory.prefix_size(data, header)
    except ProtocolError:  # ``from_prefix`` will raise it again
        return data
    return data if needed <= len(data) else memoryview(place.file.pread(needed, place.offset))


def warm(entries: Iterable[Entry]) -> None:
    """Read entries that leave by sendfile into the page cache, so that no processor waits for the disk. Raises OSError."""
    for entry in entries:
        region = entry.data
        if isinstance(region, FileRegion) and not region.file.is_resident(region.offset, region.size):
            region.warm()
