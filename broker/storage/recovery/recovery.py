"""Opening a log: what is on disk becomes segments, offsets and producer state; what a crash left behind is put right.

Runs at the start, on the thread that opens the broker, before anybody else knows the log.

Everything before the recovery point was fsynced and is taken as it is (the scrub looks at it later). From the recovery point
on, at most the last minute before a crash and next to nothing after a clean stop, every batch is verified:

| found                                                        | then                                            |
|--------------------------------------------------------------|-------------------------------------------------|
| a bad batch, no good one behind it, in the last segment      | a torn tail: the log is cut there               |
| pages that were never written; a segment that ends too early | power went before they were: the log is cut     |
|                                                              | there, and with it all that follows (no fsync   |
|                                                              | can have covered what follows and not these)    |
| any other bad batch: a good one or a segment follows it      | damage: the partition goes offline (StorageError) |
| the log ends before its recovery point                       | damage: the partition goes offline (StorageError) |
| a segment before the recovery point is missing               | damage: the partition goes offline (StorageError) |
| an empty segment with offsets that the one before has        | a new segment was begun and given up: dropped   |

That a segment is missing shows where the next one does not begin at the offset at which the one before ends, unless compaction
may have been there, and where the first one does not begin at or before the log start offset.

Indexes are made again from there on, and wherever one does not fit its segment, or is not what its checkpoint says
(``aborted_checkpoint.py``). Producer state, with the transactions that are open, is read from the newest snapshot that is good
and not newer than the recovery point, and continued from the batches.
"""

import itertools
from collections.abc import Iterable

import attrs

from broker.errors import StorageError
from broker.log import get_logger
from broker.runtime.open_files import OpenFiles
from broker.storage.checkpoints import CLEANER_OFFSETS, LOG_STARTS
from broker.storage.log import aborted_checkpoint
from broker.storage.log.producer_state import CorruptSnapshot, ProducerState
from broker.storage.log.state import LoadedLog
from broker.storage.partition_dir import sort_out
from broker.storage.recovery.replay import aborted_transactions, replay_batch
from broker.storage.recovery.scan import find_batch, never_written, scan
from broker.storage.segments.file_names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offset_of,
)
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import (
    BASE_OFFSET,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    CorruptSegment,
    Header,
    Segment,
    new_segment,
)
from protocol.kafka.records.batch import LOG_OVERHEAD

log = get_logger("storage")

# An index without an entry for so much log, with batches in it, has lost some; no sensible interval is as long.
LARGEST_INDEX_GAP = 2 * 1024 * 1024

_INDEXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
_PASSING = (DELETED, CLEANED, SWAP, ".tmp")  # the ends of names that files do not keep


@attrs.frozen(kw_only=True)
class LogOnDisk:
    """What is to be opened. ``recovery_point`` and ``start_offset`` come from the checkpoints (0 without one)."""

    files: OpenFiles
    directory: str
    names: list[str]  # of the files in it that are a partition's
    clean: bool  # the broker was stopped in order
    recovery_point: int
    start_offset: int
    start_known: bool  # the checkpoint is to be believed: the log begins there and not later
    dense_from: int  # compaction has made no gaps from here on
    newest_epoch: int
    index_interval_bytes: int
    now_ms: int


def load(source: LogOnDisk) -> LoadedLog:
    """Raises StorageError where the partition must not be served, OSError where the disk does not answer."""
    disk, directory = source.files.disk, source.directory
    names = _tidy(source)
    bases = sorted(offset for name in names if (offset := offset_of(name, LOG)) is not None)
    if not bases:
        if source.recovery_point > 0:
            raise _lost(source, 0)
        bases = [source.start_offset]
        disk.open(f"{directory}/{file_name(bases[0], LOG)}", create=True).close()
        disk.sync_dir(directory)
    segments = []
    for base in bases:
        segment = Segment(source.files, directory, base, 0, source.now_ms)
        segment.size = segment.hot_from = segment.log.size()
        segments.append(segment)
    loaded = LoadedLog(segments, 0, 0, ProducerState(), _snapshots(names))
    _drop_left_over(source, loaded)
    while len(segments) > 1 and segments[1].base_offset <= source.start_offset:
        _drop(source, loaded, 0, 1)  # deleted, and only their files were still there
    if source.start_known and segments[0].base_offset > source.start_offset:
        raise _missing(source, source.start_offset, segments[0].base_offset)
    _check_closed(source, segments, names)
    _check_aborted(source, loaded, names)
    _verify(source, loaded)
    loaded.log_start_offset = max(source.start_offset, loaded.segments[0].base_offset)
    if loaded.log_end_offset < loaded.log_start_offset:
        # Its records were deleted, and the log lost more than them: it goes on where it must.
        _drop(source, loaded, 0)
        segment = new_segment(source.files, directory, loaded.log_start_offset, source.now_ms)
        loaded.segments = [segment]
        loaded.log_end_offset = loaded.log_start_offset
    return loaded


def _tidy(source: LogOnDisk) -> list[str]:
    """Finish what deletion and compaction had begun. Returns the names of the files that are left."""
    disk, directory = source.files.disk, source.directory
    changed = False
    names = source.names
    if not any(name.endswith(_PASSING) for name in names) and not _stray_indexes(names):
        return names
    left_over = [name for name in names if name.endswith(_PASSING) and not name.endswith(SWAP)]
    for name in left_over:
        disk.remove(f"{directory}/{name}")
        changed = True
    if any(name.endswith(SWAP) for name in names):
        for name in names:
            if name.endswith(LOG + SWAP):
                finish_swap(source.files, directory, name)
        names = _own(disk.listdir(directory))
        for name in names:
            if name.endswith(SWAP):
                disk.remove(f"{directory}/{name}")
        changed = True
    names = [name for name in names if not name.endswith(_PASSING)]
    for name in _stray_indexes(names):
        disk.remove(f"{directory}/{name}")
        changed = True
    if changed:
        disk.sync_dir(directory)
        names = _own(disk.listdir(directory))
    return names


def _stray_indexes(names: list[str]) -> list[str]:
    """Those that have no log file."""
    logs = {name.removesuffix(LOG) for name in names if name.endswith(LOG)}
    return [name for name in names if name.endswith(_INDEXES) and name.rpartition(".")[0] not in logs]


def _own(names: Iterable[str]) -> list[str]:
    return sorted(sort_out(names).own)


def finish_swap(files: OpenFiles, directory: str, name: str) -> None:
    """A compacted segment was complete and about to replace the ones it was made from: their files go, its file gets its name.

    In two durable steps: were the new name to survive a crash and the removals not, old and new segments would overlap.
    The index of aborted transactions gets its name before the log does: as long as there is a ``.swap`` log, this runs again.
    The index that has the name is the new one then, or an old one that is to be replaced, or one of which no record is left.
    """
    disk = files.disk
    base = offset_of(name, LOG + SWAP)
    if base is None:
        return
    swapped = Segment(files, directory, base, 0, 0)
    swapped.log.path += SWAP
    end_offset = base
    for _, header in swapped.walk(0, swapped.log.get().size()):
        end_offset = header[BASE_OFFSET] + header[LAST_DELTA] + 1
    swapped.drop_files()
    aborted = f"{directory}/{file_name(base, TXN_INDEX)}"
    for other in disk.listdir(directory):
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
            offset = offset_of(other, suffix)
            if offset is None or not base <= offset < max(end_offset, base + 1):
                continue
            if offset > base or suffix not in (LOG, TXN_INDEX):
                disk.remove(f"{directory}/{other}")
    disk.sync_dir(directory)
    if disk.exists(aborted + SWAP):
        disk.rename(aborted + SWAP, aborted)
        disk.sync_dir(directory)
    disk.rename(f"{directory}/{name}", f"{directory}/{file_name(base, LOG)}")
    disk.sync_dir(directory)


def _snapshots(names: Iterable[str]) -> list[int]:
    return sorted(offset for name in names if (offset := offset_of(name, SNAPSHOT)) is not None)


def _drop_left_over(source: LogOnDisk, loaded: LoadedLog) -> None:
    """Drop empty segments whose offsets the segment before has: a new segment was begun and not finished, its file could not be
    removed or came back after a power loss, and the records went on where they had been."""
    segments = loaded.segments
    number = 1
    while number < len(segments):
        empty = segments[number]
        if empty.size == 0:
            end, whole = _known_end(segments[number - 1], empty.base_offset)
            if end > empty.base_offset or (not whole and empty.base_offset > source.dense_from):
                log.warning("empty segment dropped", path=empty.log.path, reason="the segment before has its offsets")
                _drop(source, loaded, number, number + 1)
                continue  # there may be several: the next one is compared with the segment that has records
        number += 1


def _known_end(segment: Segment, offset: int) -> tuple[int, bool]:
    """The offset behind the last batch that looks like one, found from the index entry before ``offset`` on; is that the end of
    the file?"""
    position, _ = _start_of_scan(segment, offset)
    end = segment.base_offset
    try:
        for _, header in segment.walk(position, segment.size):
            end = max(end, header[BASE_OFFSET] + header[LAST_DELTA] + 1)
    except CorruptSegment:
        return end, False
    return end, True


def _check_closed(source: LogOnDisk, segments: list[Segment], names: list[str]) -> None:
    """Of the segments before the recovery point: do they follow on each other, and do the indexes fit? Those that do not are made
    again. Raises StorageError where a segment is missing."""
    there = set(names)
    for segment, following in itertools.pairwise(segments):
        if following.base_offset > source.recovery_point:
            return  # verified, and indexed, below
        missing = [
            suffix for suffix in (OFFSET_INDEX, TIME_INDEX) if file_name(segment.base_offset, suffix) not in there
        ]
        end = None if missing else indexed_end(segment, following.base_offset)
        if end is None:
            log.warning("index made again", path=segment.log.path, missing=missing)
            segment.rebuild_indexes(source.index_interval_bytes)
            end, _ = _known_end(segment, following.base_offset)
        if end > following.base_offset:
            log.warning("segments overlap", path=segment.log.path, ends_at=end, next_begins_at=following.base_offset)
        elif end < following.base_offset and following.base_offset > source.dense_from:
            raise _missing(source, end, following.base_offset)


def _check_aborted(source: LogOnDisk, loaded: LoadedLog, names: list[str]) -> None:
    """Make those indexes of aborted transactions again that are not, before the recovery point, what they were."""
    there = set(names)
    wrong = []
    sums = aborted_checkpoint.read(source.files.disk, source.directory) if aborted_checkpoint.NAME in there else {}
    for segment in loaded.segments:
        if file_name(segment.base_offset, TXN_INDEX) not in there:
            segment.aborted.is_missing()
        if segment.base_offset < source.recovery_point and not aborted_checkpoint.agrees(segment, sums):
            wrong.append(segment)
    if wrong:
        found = aborted_transactions(loaded.segments[: loaded.segments.index(wrong[-1]) + 1], source.recovery_point)
        for segment in wrong:
            entries = found.get(segment, [])
            log.warning(
                "index of aborted transactions made again", path=segment.aborted.cached.path, entries=len(entries)
            )
            segment.aborted.replace(entries)
            sums[segment.base_offset] = len(entries), segment.aborted.checksum(len(entries))
        source.files.disk.sync_dir(source.directory)
        aborted_checkpoint.write(source.files.disk, source.directory, sums)
    # What is said of the rest may be about a log that was cut since.
    known = [segment.base_offset for segment in loaded.segments if segment.base_offset < source.recovery_point]
    loaded.aborted_sums = {base: sums[base] for base in known if base in sums}


def indexed_end(segment: Segment, next_base: int) -> int | None:
    """The offset behind the last batch of a closed segment; None if its indexes do not agree with it, as their ends tell."""
    try:
        position, end = 0, segment.base_offset
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
        timestamp, offset = segment.times.largest()
        if timestamp < 0:
            timeless = segment.size == 0 or next(segment.walk(0, segment.size))[1][MAX_TIMESTAMP] < 0
            return end if timeless else None
        if not segment.base_offset <= offset < next_base:
            return None
        segment.check_largest()
        return end
    except (CorruptIndex, StorageError):
        return None


def _verify(source: LogOnDisk, loaded: LoadedLog) -> None:
    """From the recovery point on: verify, cut, index, and continue the producer state."""
    segments = loaded.segments
    point = source.recovery_point
    first = max((i for i, segment in enumerate(segments) if segment.base_offset <= point), default=0)
    position, offset = _start_of_scan(segments[first], point)
    known = _load_producers(source, loaded, max(point, segments[0].base_offset))
    _replay(source, loaded, known, first, position)
    number = first
    while number < len(segments):
        segment = segments[number]
        if number > first:
            position, offset = 0, max(offset, segment.base_offset)
        offset = _verify_segment(source, loaded, number, position, offset, known)
        number += 1
    loaded.log_end_offset = max(offset, loaded.segments[-1].base_offset)
    if loaded.log_end_offset < point:
        raise _lost(source, loaded.log_end_offset)
    for stray in [s for s in loaded.snapshots if s > loaded.log_end_offset]:
        source.files.disk.remove(f"{source.directory}/{file_name(stray, SNAPSHOT)}")
        loaded.snapshots.remove(stray)


def _start_of_scan(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """The indexed batch before the recovery point, and its base offset; the segment's begin if the index does not help."""
    indexed = segment.offsets.batch_before(recovery_point)
    if indexed is not None:
        header = segment.header(indexed[1], segment.size)
        if header is not None and header[BASE_OFFSET] + header[LAST_DELTA] == indexed[0]:
            return indexed[1], header[BASE_OFFSET]
    return 0, segment.base_offset


def _verify_segment(source: LogOnDisk, loaded: LoadedLog, number: int, position: int, offset: int, known: int) -> int:
    """Verify one segment from ``position`` (which has ``offset``) on. Returns the offset that follows."""
    segment, last = loaded.segments[number], number == len(loaded.segments) - 1
    end = segment.size
    segment.start_indexes_from(position, offset)
    producers = loaded.producers

    def on_batch(at: int, header: Header) -> None:
        size, last_offset = header[LENGTH] + LOG_OVERHEAD, header[BASE_OFFSET] + header[LAST_DELTA]
        segment.index(at, size, last_offset, header[MAX_TIMESTAMP], source.index_interval_bytes)
        if header[BASE_OFFSET] >= known:
            aborted = replay_batch(producers, segment, at, header, source.now_ms)
            if aborted is not None:
                segment.aborted.add(aborted)

    segment.aborted.truncate_from(max(offset, known))
    file = segment.log.get()
    dense_from = source.dense_from
    good, offset, _ = scan(
        file,
        position,
        end,
        offset,
        base_offset=segment.base_offset,
        dense_from=dense_from,
        newest_epoch=source.newest_epoch,
        on_batch=on_batch,
    )
    loaded.scanned_bytes += good - position
    segment.size = segment.hot_from = good
    if good < end:
        follows = find_batch(file, good + 1, end, offset)
        if follows is None and offset < source.recovery_point:
            raise _lost(source, offset)
        torn = follows is None and (last or segment.torn_at(good, end))
        if not torn and not never_written(file, good, end if follows is None else follows):
            raise StorageError(
                f"{segment.log.path} is damaged: no valid record batch at position {good} (offset {offset}), "
                + ("and valid ones behind it" if follows is not None else "and another segment behind it")
                + "; nothing was changed"
            )
        _cut(source, loaded, number, good, end)
    elif (
        not last
        and dense_from < loaded.segments[number + 1].base_offset
        and offset < loaded.segments[number + 1].base_offset
    ):
        if offset < source.recovery_point:
            raise _missing(source, offset, loaded.segments[number + 1].base_offset)
        _cut(source, loaded, number, good, end)
    elif not last:
        segment.keep_indexes()
    return offset


def _cut(source: LogOnDisk, loaded: LoadedLog, number: int, position: int, end: int) -> None:
    segment = loaded.segments[number]
    dropped = sum(s.size for s in loaded.segments[number + 1 :])
    log.warning("torn tail cut", path=segment.log.path, position=position, bytes=end - position + dropped)
    loaded.cut_bytes += end - position + dropped
    file = segment.log.get()
    file.truncate(position)
    file.sync()  # once another segment follows, nobody would cut here again
    _drop(source, loaded, number + 1)


def _drop(source: LogOnDisk, loaded: LoadedLog, first: int, end: int | None = None) -> None:
    """Take segments out of the log. Their files wait, renamed, for the next start."""
    disk = source.files.disk
    for segment in loaded.segments[first:end]:
        segment.drop_files()
        for path in segment.paths():
            if disk.exists(path) and not path.endswith(SNAPSHOT):
                disk.rename(path, path + DELETED)
    del loaded.segments[first:end]
    disk.sync_dir(source.directory)


def _load_producers(source: LogOnDisk, loaded: LoadedLog, point: int) -> int:
    """Read the newest good snapshot that is not newer than ``point``; returns its offset: batches from there on are not in it."""
    if source.clean and point not in loaded.snapshots:
        return point  # a stop in order writes one unless there is nothing to write
    for offset in sorted(loaded.snapshots, reverse=True):
        if offset > point:
            continue
        path = f"{source.directory}/{file_name(offset, SNAPSHOT)}"
        file = source.files.disk.open(path, read_only=True)
        try:
            loaded.producers = ProducerState.from_snapshot(file.pread(file.size(), 0))
            return offset
        except CorruptSnapshot as error:
            log.warning("snapshot ignored", path=path, error=str(error))
            loaded.snapshots.remove(offset)
            source.files.disk.remove(path)
        finally:
            file.close()
    return loaded.segments[0].base_offset


def _replay(source: LogOnDisk, loaded: LoadedLog, known: int, first: int, position: int) -> None:
    """Continue the producer state with the batches between the snapshot and where the scan begins."""
    for number, segment in enumerate(loaded.segments[: first + 1]):
        following = loaded.segments[number + 1].base_offset if number < first else None
        if following is not None and following <= known:
            continue
        end = position if number == first else segment.size
        try:
            begin = segment.locate(known, end) if known > segment.base_offset else 0
        except CorruptIndex:
            begin = 0
        for at, header in segment.walk(begin, end):
            if header[BASE_OFFSET] >= known:
                replay_batch(loaded.producers, segment, at, header, source.now_ms)


def _missing(source: LogOnDisk, first: int, following: int) -> StorageError:
    """``following`` is where the next segment begins."""
    directory, _, name = source.directory.rpartition("/")
    topic, _, partition = name.rpartition("-")
    if first == source.start_offset:
        way_out = f"setting the line of the partition in {LOG_STARTS} to '{topic} {partition} {following}'"
    else:
        way_out = (
            f"adding the line '{topic} {partition} 0' to {CLEANER_OFFSETS} (its second line is the number of lines)"
        )
    return StorageError(
        f"{source.directory} has no records from offset {first} to {following - 1}: {file_name(first, LOG)}, or what followed "
        f"it, is missing. Nothing was changed. Bring the missing files back, or accept the loss by {way_out} in {directory} "
        "while the broker is stopped"
    )


def _lost(source: LogOnDisk, end_offset: int) -> StorageError:
    return StorageError(
        f"{source.directory} ends at offset {end_offset}, but was durable up to {source.recovery_point}: records are lost. "
        "Bring the missing files back, or accept the loss by taking the partition's line out of "
        "recovery-point-offset-checkpoint while the broker is stopped"
    )
