"""How a log gets shorter at its begin, and how its closed files are replaced. Methods of ``Log``.

First the log start offset moves, which readers see at once; then it is made durable; then the files go. ``files_lock`` is held
while files of closed segments change their names; it may wait for the disk, so no append and no read ever takes it.
"""

from typing import TYPE_CHECKING

from broker.log import get_logger
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.file_names import DELETED, SNAPSHOT
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import CorruptSegment

if TYPE_CHECKING:
    from broker.storage.log.log import Log

logger = get_logger("storage")


def delete_records(log: "Log", before: int) -> int:
    """Serve nothing before ``before`` any more (-1: before the high watermark). Returns the new log start offset, durable.

    Raises OffsetOutOfRange, StorageError.
    """
    if before == -1:
        before = log.high_watermark
    if not 0 <= before <= log.high_watermark:
        raise OffsetOutOfRange(f"{before} is not in the log, which ends at {log.high_watermark}.")
    # A log must not begin behind its durable end.
    log.flush_to(before)
    log.advance_start(before)
    log.around.save_log_start(log)  # even if it did not move: an earlier attempt may have failed here
    log.drop_old_segments()
    return log.log_start_offset


def advance_start(log: "Log", offset: int) -> bool:
    """Move the log start offset up, in memory. True if it moved."""
    with log.lock:
        if log.offline is not None:
            raise log.gone()
        if offset <= log.log_start_offset:
            return False
        log.log_start_offset = offset
        log.read_ends.clear()
        return True


def drop_old_segments(log: "Log") -> int:
    """Take the segments that end before the log start offset, as it was saved, out of the log. Their files are renamed now and
    removed after ``file.delete.delay.ms``. Returns how many segments there were. Raises StorageError."""
    with log.files_lock:
        with log.lock:
            bases, segments = log.view
            count = 0
            while count + 1 < len(bases) and bases[count + 1] <= log.saved_start:
                count += 1
            if not count:
                return 0
            log.set_segments(segments[count:])
            log.read_ends.clear()
        try:
            # The new segment must not be lost when the old ones already are. Whoever fsyncs it does this once more: he does not
            # wait here, and must not take the directory for durable before it is.
            if log.dir_dirty:
                log.around.disk.sync_dir(log.dir)
            # Snapshots go with the checkpoints: the newest may well have the offset of one of these segments.
            paths = [path for segment in segments[:count] for path in segment.paths()]
            log.discard([path for path in paths if not path.endswith(SNAPSHOT)])
        except OSError as error:
            raise log.failed("old segments could not be deleted", error) from error
        return count


def discard(log: "Log", paths: list[str]) -> None:
    """Rename files so that they no longer belong to the log, durably, and remove them later. Raises OSError."""
    disk = log.around.disk
    renamed = []
    for path in paths:
        if disk.exists(path):
            disk.rename(path, path + DELETED)
            renamed.append(path + DELETED)
    disk.sync_dir(log.dir)
    log.around.delete_later(renamed, log.config.file_delete_delay_ms)


def repair_index(log: "Log", error: CorruptIndex) -> None:
    """A look-up found an index that does not fit its segment: make it again. Blocks for as long as that takes.

    Raises StorageError.
    """
    with log.files_lock:
        for segment in log.view.segments:
            if error.path not in (segment.offsets.cached.path, segment.times.cached.path):
                continue
            logger.warning("index made again", reason=str(error))
            try:
                if segment is log.active:
                    with log.lock:
                        segment.rebuild_indexes(log.config.index_interval_bytes)
                else:
                    segment.rebuild_indexes(log.config.index_interval_bytes)
            except CorruptSegment as corrupt:
                raise log.go_offline(str(corrupt)) from corrupt
            except OSError as second:
                raise log.failed("an index could not be made again", second) from second
