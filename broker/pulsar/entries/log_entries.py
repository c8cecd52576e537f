"""Reading entries from a log: entries as their producers have sent them, and batches of Kafka's producers, transcoded.

Threads that may block. Batches are read a chunk at a time, and the entries of a chunk share its bytes. A large entry is not read:
it leaves by sendfile, and only the beginning of it is looked at. What consumers do not see is left out: control batches, what
aborted transactions have written, batches of which compaction has left nothing, and what cannot be read as messages.

A batch that was read whole is verified, because a client that gets a damaged message acknowledges it, and so it would be lost.

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

# Entries of at least this size (bytes) leave by sendfile. Sending one of 64 KiB took 6 us by sendfile and 10 us from memory, the
# read included; one of 4 KiB took 3.4 us and 1.3 us, because one system call sends many (loopback, November 2026).
SENDFILE_BYTES = 64 * 1024
# One read of the file, at least and at most.
_LEAST_CHUNK = 16 * 1024
_MOST_CHUNK = 512 * 1024
# What is read of a large entry: its header and, as a rule, all of its metadata.
_PREFIX_BYTES = 8 * 1024


class Found(NamedTuple):
    """``entries`` in order; up to ``searched`` there are no others for consumers. ``more`` follow them, which a batch of a Kafka
    producer has become as well."""

    entries: list[Entry]
    searched: int
    more: Sequence[Entry] = ()


class LogEntriesReader:
    """Reads one log. ``read`` and ``replay`` may run on several threads at once. ``by_key``: batches of Kafka's producers are cut
    so that each entry has one key."""

    __slots__ = ("_average", "_by_key", "_large", "_log")

    def __init__(self, log: Log, large: Lock, *, by_key: bool = False) -> None:
        """``large`` is held while a batch of a Kafka producer is translated that is large inside."""
        self._log = log
        self._large = large
        self._by_key = by_key
        self._average = 1024  # bytes of a batch, as of late: how much is read at a time follows from it

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Found:
        """The entries from ``offset`` on, up to the last stable offset; the first one whatever its size. If ``offset`` lies
        within an entry, that entry is the first.

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
                found = self._chunk(offset, stable, want, max_entries - len(entries))
            except OffsetOutOfRange:
                if offset >= log.log_start_offset:
                    break
                offset = log.log_start_offset  # retention was faster
                continue
            if found.searched <= offset:
                break
            for number, entry in enumerate(found.entries):
                if entries and (entry.size > left or len(entries) >= max_entries):
                    return Found(entries, entry.offset, found.entries[number:])
                entries.append(entry)
                left -= entry.size
            offset = found.searched
        return Found(entries, offset)

    def replay(self, offsets: Sequence[int]) -> list[Entry]:
        """The entries that have these offsets, ascending; those that are gone are left out. Raises as ``read``."""
        entries: list[Entry] = []
        batch: Sequence[Entry] = ()  # what the last batch has become: the next offsets may be in it, too
        for offset in offsets:
            if entries and offset <= entries[-1].last:
                continue
            if not batch or not batch[0].offset <= offset <= batch[-1].last:
                found = self.read(offset, 1, 1)
                batch = [*found.entries, *found.more]
            number = bisect_right(batch, offset, key=_offset_of) - 1
            if number >= 0 and batch[number].last >= offset:
                entries.append(batch[number])
        return entries

    def _chunk(self, offset: int, stable: int, size: int, max_entries: int) -> Found:
        log = self._log
        read = log.read(offset, size, up_to=stable)
        if not read.size:  # compaction has left nothing up to the end
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
                    if place is not None:  # it only has the mark of an entry
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
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def _batches(region: FileRegion, offset: int) -> Iterable[tuple[BatchHeader, memoryview, FileRegion | None]]:
    """Header and bytes of each batch with ``offset`` or a later one. Of a large entry only the beginning is read, and its place
    in the file comes with it. Raises ProtocolError for bytes that are no batch, or not what they were; OSError."""
    for header, position, data in walk(region, _MOST_CHUNK, _needed):
        if len(data) == header.size:
            check_crc(data, 0, read_header(data))
            if header.last_offset >= offset:
                yield header, data, None
        elif header.last_offset >= offset:
            place = FileRegion(region.file, position, header.size)
            yield header, _prefix(header, data, place), place


def _needed(header: BatchHeader) -> int:
    size = header.size
    return min(_PREFIX_BYTES, size) if header.is_entry and size >= SENDFILE_BYTES else size


def _prefix(header: BatchHeader, data: memoryview, place: FileRegion) -> memoryview:
    """The beginning of a large entry, with all of its metadata if there is any."""
    try:
        needed = entry_factory.prefix_size(data, header)
    except ProtocolError:  # whoever looks into it will see
        return data
    return data if needed <= len(data) else memoryview(place.file.pread(needed, place.offset))


def warm(entries: Iterable[Entry]) -> None:
    """Read what is to leave by sendfile into the page cache, so that no processor waits for the disk. Raises OSError."""
    for entry in entries:
        region = entry.data
        if isinstance(region, FileRegion) and not region.file.is_resident(region.offset, region.size):
            region.warm()
