"""Verifying every batch of a log from its recovery point on, and rebuilding indexes, producer state and aborted transactions.

At the start, on the thread that opens the broker. The table in ``recovery.py`` lists the possible damage and the reactions.

Tests: tests/storage/recovery/test_recovery.py,
tests/storage/log/test_state_aborted_checkpoint.py.
"""

from collections.abc import Sequence

from broker.errors import StorageError
from broker.log import get_logger
from broker.storage.log.producer_state import CorruptSnapshot, ProducerState
from broker.storage.log.state import LoadedLog
from broker.storage.recovery.leftovers import LogOnDisk, drop
from broker.storage.recovery.scan import find_batch, never_written, scan
from broker.storage.segments.index_file import AbortedTransaction, CorruptIndex
from broker.storage.segments.segment import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SNAPSHOT,
    CorruptSegment,
    Header,
    Segment,
    file_name,
)
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import CONTROL, ENTRY, LOG_OVERHEAD, TRANSACTIONAL
from protocol.kafka.records.records import read_marker


def replay_batch(
    producers: ProducerState, segment: Segment, position: int, header: Header, now_ms: int
) -> AbortedTransaction | None:
    """Apply a batch to the producer state. Returns the transaction that it aborts, if any.

    The log does not tell when the producer was last seen (the timestamps of its records may be anything). ``now_ms`` gives it a
    full period before it expires.
    """
    producer_id = header[PRODUCER_ID]
    if producer_id < 0:
        return None
    if not header[ATTRIBUTES] & CONTROL:
        producers.appended(
            producer_id,
            header[PRODUCER_EPOCH],
            header[BASE_SEQUENCE],
            header[LAST_DELTA],
            header[BASE_OFFSET] + header[LAST_DELTA],
            header[MAX_TIMESTAMP],
            now_ms,
        )
        if header[ATTRIBUTES] & TRANSACTIONAL:
            producers.began(producer_id, header[BASE_OFFSET])
        return None
    try:
        marker = read_marker(segment.log.get().pread(header[LENGTH] + LOG_OVERHEAD, position))
    except ProtocolError as error:
        raise StorageError(
            f"{segment.log.path} has a control batch at {position} that cannot be read: {error}"
        ) from error
    if marker is None:
        return None
    first = producers.ended(producer_id, header[PRODUCER_EPOCH], marker.coordinator_epoch, now_ms)
    if first is None or marker.commit:
        return None
    offset = header[BASE_OFFSET]
    stable = producers.first_unstable()
    return AbortedTransaction(producer_id, first, offset, offset + 1 if stable is None else stable)


def aborted_transactions(segments: Sequence[Segment], before: int) -> dict[Segment, list[AbortedTransaction]]:
    """The aborted transactions by the segment of their ABORT marker, from the batches before this offset. ``segments`` begin
    with the first segment of the log.

    Reads all headers and markers. Raises StorageError.
    """
    producers = ProducerState()
    by_segment: dict[Segment, list[AbortedTransaction]] = {}
    for segment in segments:
        next_offset = segment.base_offset
        try:
            for position, header in segment.walk(0, segment.size):
                if header[BASE_OFFSET] >= before:
                    break
                next_offset = header[BASE_OFFSET] + header[LAST_DELTA] + 1
                aborted = replay_batch(producers, segment, position, header, 0)
                if aborted is not None:
                    by_segment.setdefault(segment, []).append(aborted)
        except CorruptSegment:
            if next_offset < before:
                raise
    return by_segment


logger = get_logger("storage")


def verify(source: LogOnDisk, loaded: LoadedLog) -> None:
    """Verify from the recovery point on: cut a torn tail, index the batches, continue the producer state. Raises StorageError."""
    segments = loaded.segments
    point = source.recovery_point
    first = max((i for i, segment in enumerate(segments) if segment.base_offset <= point), default=0)
    position, offset = start_of_scan(segments[first], point)
    known = _load_producers(source, loaded, max(point, segments[0].base_offset))
    _replay(source, loaded, known, first, position)
    number = first
    while number < len(segments):
        segment = segments[number]
        if number > first:
            position, offset = 0, max(offset, segment.base_offset)
        offset = _verify_segment(source, loaded, number, position, offset, known)
        number += 1
    active = loaded.segments[-1]
    loaded.log_end_offset = max(offset, active.base_offset)
    if active.offsets.written or active.times.written:
        # A page of one index was full. If the other index, or the rest, were not written, the next start would find that an index
        # ends long before the other, but begin at the end of the longer index.
        active.keep_indexes()
        loaded.indexes_written = True
    if loaded.log_end_offset < point:
        raise source.lost(loaded.log_end_offset)
    for stray in [s for s in loaded.snapshots if s > loaded.log_end_offset]:
        source.files.disk.remove(f"{source.directory}/{file_name(stray, SNAPSHOT)}")
        loaded.snapshots.remove(stray)


def start_of_scan(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """The position of the indexed batch before the recovery point, and its base offset; the start of the segment if the index
    has none."""
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
    segment.start_indexes_from(position, offset, torn=not source.clean)
    producers = loaded.producers

    def on_batch(at: int, header: Header) -> None:
        size, last_offset = header[LENGTH] + LOG_OVERHEAD, header[BASE_OFFSET] + header[LAST_DELTA]
        segment.index(at, size, last_offset, header[MAX_TIMESTAMP], source.index_interval_bytes)
        if header[ATTRIBUTES] & ENTRY:
            loaded.has_entries = True
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
            raise source.lost(offset)
        torn = follows is None and (last or segment.torn_at(good, end))
        if not torn and not never_written(file, good, end if follows is None else follows, offset):
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
            raise source.missing(offset, loaded.segments[number + 1].base_offset)
        _cut(source, loaded, number, good, end)
    elif not last:
        segment.keep_indexes()
    return offset


def _cut(source: LogOnDisk, loaded: LoadedLog, number: int, position: int, end: int) -> None:
    segment = loaded.segments[number]
    dropped = sum(s.size for s in loaded.segments[number + 1 :])
    logger.warning("torn_tail_cut", path=segment.log.path, position=position, bytes=end - position + dropped)
    loaded.cut_bytes += end - position + dropped
    file = segment.log.get()
    file.truncate(position)
    file.sync()  # once another segment follows, recovery would not cut here again
    drop(source, loaded, number + 1)


def _load_producers(source: LogOnDisk, loaded: LoadedLog, point: int) -> int:
    """Read the newest valid snapshot that is not newer than ``point``. Returns its offset: it has the batches before that."""
    if source.clean and point not in loaded.snapshots:
        return point  # a clean stop writes a snapshot unless there is nothing to write
    for offset in sorted(loaded.snapshots, reverse=True):
        if offset > point:
            continue
        path = f"{source.directory}/{file_name(offset, SNAPSHOT)}"
        file = source.files.disk.open(path, read_only=True)
        try:
            loaded.producers = ProducerState.from_snapshot(file.pread(file.size(), 0))
            return offset
        except CorruptSnapshot as error:
            logger.warning("snapshot_ignored", path=path, error=str(error))
            loaded.snapshots.remove(offset)
            source.files.disk.remove(path)
        finally:
            file.close()
    return loaded.segments[0].base_offset


def _replay(source: LogOnDisk, loaded: LoadedLog, known: int, first: int, position: int) -> None:
    """Continue the producer state with the batches from the snapshot to the start of the scan."""
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
