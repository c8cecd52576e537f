"""Opening a log: making segments, offsets and producer state from the files on disk, and repairing the damage of a crash.

Runs at the start, on the thread that opens the broker, before other threads know the log.

Everything before the recovery point was fsynced and is taken as it is (the scrub verifies it later). From the recovery point on,
every batch is verified: at most the last minute before a crash, and next to nothing after a clean stop.

| found                                                        | then                                            |
|--------------------------------------------------------------|-------------------------------------------------|
| a bad batch, no good one after it, in the last segment       | a torn tail: the log is cut there               |
| pages that were never written; a segment that ends too early | a power failure came before: the log is cut     |
|                                                              | there, and with it all that follows (no fsync   |
|                                                              | can have covered what follows and not these)    |
| any other bad batch: a good one or a segment follows it      | damage: the partition goes offline (StorageError) |
| the log ends before its recovery point                       | damage: the partition goes offline (StorageError) |
| a segment before the recovery point is missing               | damage: the partition goes offline (StorageError) |
| an empty segment with offsets that the segment before has    | a new segment was begun and given up: dropped   |

A segment is missing if the next segment does not begin where the segment before ends, unless compaction may have been there, or
if the first segment begins after the log start offset.

Indexes are rebuilt from the recovery point on, and wherever an index does not fit its segment or its checkpoint
(``storage/log/state.py``). Producer state, with the open transactions, is read from the newest valid snapshot that is not newer
than the recovery point, and continued from the batches.

Segments that are in the object store only are not read: they were verified, and durable, before they were uploaded, and their
names say where they end and which timestamp is their largest (``storage/tier/keys.py``).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import attrs

from broker.errors import StorageError
from broker.log import get_logger
from broker.storage.log import state
from broker.storage.log.producer_state import ProducerState
from broker.storage.log.state import LoadedLog
from broker.storage.partition_dir import ENTRIES, mark_entries
from broker.storage.recovery.leftovers import LogOnDisk, drop, tidy
from broker.storage.recovery.verification import aborted_transactions, start_of_scan, verify
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import (
    BASE_OFFSET,
    LAST_DELTA,
    LOG,
    MAX_TIMESTAMP,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    CorruptSegment,
    Segment,
    file_name,
    new_segment,
    offset_of,
)

logger = get_logger("storage")

# An index without an entry for this many bytes of log with batches has lost some: no sensible interval is that long.
LARGEST_INDEX_GAP = 2 * 1024 * 1024


def load(source: LogOnDisk) -> LoadedLog:
    """Open the log. Raises StorageError if the partition must not be served, OSError if the disk fails."""
    disk, directory = source.files.disk, source.directory
    names = tidy(source)
    bases = sorted(offset for name in names if (offset := offset_of(name, LOG)) is not None)
    if not bases:
        if source.recovery_point > 0:
            raise source.lost(0)
        bases = [source.start_offset]
        disk.open(f"{directory}/{file_name(bases[0], LOG)}", create=True).close()
        disk.sync_dir(directory)
    there = set(names)
    segments = []
    for base in bases:
        segment = Segment(source.files, directory, base, 0, source.now_ms)
        segment.size = segment.hot_from = segment.log.size()
        if file_name(base, TIME_INDEX) not in there:
            segment.times.is_missing()
            if file_name(base, OFFSET_INDEX) in there:
                # Both are rebuilt: a scan from the end of this index would find only the timestamps from there on.
                disk.remove(segment.offsets.cached.path)
                there.remove(file_name(base, OFFSET_INDEX))
        if file_name(base, OFFSET_INDEX) not in there:
            segment.offsets.is_missing()
        segments.append(segment)
    remote = _in_store(segments)
    if remote:  # they were uploaded below the recovery point, whatever has become of the checkpoint
        following = (after for each, after in itertools.pairwise(segments) if each in remote)
        source = attrs.evolve(
            source, recovery_point=max(source.recovery_point, *(segment.base_offset for segment in following))
        )
    loaded = LoadedLog(segments, 0, 0, ProducerState(), _snapshots(names), has_entries=ENTRIES in names)
    _drop_left_over(source, loaded)
    while len(segments) > 1 and segments[1].base_offset <= source.start_offset:
        drop(source, loaded, 0, 1)  # it was deleted, but its files remained
    if source.start_known and segments[0].base_offset > source.start_offset:
        raise source.missing(source.start_offset, segments[0].base_offset)
    _check_closed(source, segments, names, remote)
    _check_aborted(source, loaded, names, remote)
    verify(source, loaded)
    if loaded.has_entries and ENTRIES not in names:
        mark_entries(disk, directory)  # the log was copied here without the mark
    loaded.log_start_offset = max(source.start_offset, loaded.segments[0].base_offset)
    if loaded.log_end_offset < loaded.log_start_offset:
        # The log has lost more than its deleted records: it continues at its start offset.
        drop(source, loaded, 0)
        segment = new_segment(source.files, directory, loaded.log_start_offset, source.now_ms)
        loaded.segments = [segment]
        loaded.log_end_offset = loaded.log_start_offset
    return loaded


def _in_store(segments: Sequence[Segment]) -> dict[Segment, int]:
    """The segments that are in the object store only, with the offsets at which they end. What a start has to know of them is
    noted in them."""
    remote: dict[Segment, int] = {}
    for segment in segments[:-1]:
        if not segment.log.get().is_remote:
            continue
        from broker.storage.tier.remote_view import view_of

        view = view_of(segment.log.get())
        key = None if view is None else view.key
        if key is not None:
            segment.largest_timestamp, segment.largest_timestamp_offset = key.largest_timestamp, key.timestamp_offset
            remote[segment] = key.end
    return remote


def _snapshots(names: Iterable[str]) -> list[int]:
    return sorted(offset for name in names if (offset := offset_of(name, SNAPSHOT)) is not None)


def _drop_left_over(source: LogOnDisk, loaded: LoadedLog) -> None:
    """Drop empty segments whose offsets the segment before has: beginning a new segment had failed, its file could not be
    removed or came back after a power failure, and the records went to the segment before."""
    segments = loaded.segments
    number = 1
    while number < len(segments):
        empty = segments[number]
        if empty.size == 0:
            end, whole = _known_end(segments[number - 1], empty.base_offset)
            if end > empty.base_offset or (not whole and empty.base_offset > source.dense_from):
                logger.warning(
                    "empty_segment_dropped", path=empty.log.path, reason="the segment before has its offsets"
                )
                drop(source, loaded, number, number + 1)
                continue  # there may be several: compare the next segment with the same segment
        number += 1


def _known_end(segment: Segment, offset: int) -> tuple[int, bool]:
    """The offset after the last batch that looks valid, searched from the index entry before ``offset`` on; and whether the file
    ends there."""
    position, _ = start_of_scan(segment, offset)
    end = segment.base_offset
    try:
        for _, header in segment.walk(position, segment.size):
            end = max(end, header[BASE_OFFSET] + header[LAST_DELTA] + 1)
    except CorruptSegment:
        return end, False
    return end, True


def _check_closed(source: LogOnDisk, segments: list[Segment], names: list[str], remote: Mapping[Segment, int]) -> None:
    """Check that the segments before the recovery point follow each other, and rebuild the indexes that do not fit. Raises
    StorageError if a segment is missing."""
    there = set(names)
    for segment, following in itertools.pairwise(segments):
        if following.base_offset > source.recovery_point:
            return  # verified and indexed later
        if segment in remote:
            if remote[segment] < following.base_offset > source.dense_from:
                raise source.missing(remote[segment], following.base_offset)
            continue
        missing = [
            suffix for suffix in (OFFSET_INDEX, TIME_INDEX) if file_name(segment.base_offset, suffix) not in there
        ]
        end = None if missing else indexed_end(segment, following.base_offset)
        if end is None:
            if not (missing and source.may_lack_indexes):
                logger.warning("index_rebuilt", path=segment.log.path, missing=missing)
            segment.rebuild_indexes(source.index_interval_bytes)
            end, _ = _known_end(segment, following.base_offset)
        if end > following.base_offset:
            logger.warning(
                "segments_overlapped", path=segment.log.path, ends_at=end, next_begins_at=following.base_offset
            )
        elif end < following.base_offset and following.base_offset > source.dense_from:
            raise source.missing(end, following.base_offset)


def _check_aborted(source: LogOnDisk, loaded: LoadedLog, names: list[str], remote: Mapping[Segment, int]) -> None:
    """Rebuild the indexes of aborted transactions that differ from their checkpoint before the recovery point, and remove the
    entries that no checkpoint vouches for: ``verify`` adds them again."""
    there = set(names)
    wrong = []
    sums = state.read(source.files.disk, source.directory) if state.NAME in there else {}
    for segment in loaded.segments:
        if file_name(segment.base_offset, TXN_INDEX) not in there:
            segment.aborted.is_missing()
        if segment in remote:
            if len(segment.aborted) == sums.get(segment.base_offset, (0, 0))[0] > 0:
                segment.aborted.trust(*sums[segment.base_offset])
        elif segment.base_offset >= source.recovery_point:
            segment.aborted.keep(0)
        elif not state.agrees(segment, sums) or state.without_checkpoint(segment, sums, source.recovery_point):
            wrong.append(segment)
        else:
            segment.aborted.keep(sums.get(segment.base_offset, (0, 0))[0])
    if wrong:
        aborted = aborted_transactions(loaded.segments[: loaded.segments.index(wrong[-1]) + 1], source.recovery_point)
        for segment in wrong:
            entries = aborted.get(segment, [])
            logger.warning("txnindex_rebuilt", path=segment.aborted.cached.path, entries=len(entries))
            segment.aborted.replace(entries)
            sums[segment.base_offset] = len(entries), segment.aborted.checksum(len(entries))
        source.files.disk.sync_dir(source.directory)
        state.write(source.files.disk, source.directory, sums)
    # The checkpoint may describe later segments as they were before the log was cut.
    known = [segment.base_offset for segment in loaded.segments if segment.base_offset < source.recovery_point]
    loaded.aborted_sums = {base: sums[base] for base in known if base in sums}


def indexed_end(segment: Segment, next_base: int) -> int | None:
    """The offset after the last batch of a closed segment; None if the ends of its indexes do not agree with it."""
    try:
        position, end, newest = 0, segment.base_offset, -1
        entry = segment.offsets.last()
        if entry is not None:
            position = entry[1]
            header = segment.header(position, segment.size)
            if header is None or header[BASE_OFFSET] + header[LAST_DELTA] != entry[0] + segment.base_offset:
                return None
        for at, header in segment.walk(position, segment.size):
            if at - position > LARGEST_INDEX_GAP:
                return None
            end = header[BASE_OFFSET] + header[LAST_DELTA] + 1
            newest = max(newest, header[MAX_TIMESTAMP])
        timestamp, offset = segment.times.largest()
        if newest > timestamp:  # rebuilding the indexes was interrupted
            return None
        if timestamp < 0:
            timeless = segment.size == 0 or next(segment.walk(0, segment.size))[1][MAX_TIMESTAMP] < 0
            return end if timeless else None
        if not segment.base_offset <= offset < next_base:
            return None
        segment.check_largest()
        return end
    except (CorruptIndex, StorageError):
        return None
