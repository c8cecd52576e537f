"""What makes a log durable: fsync, and the checkpoint from which the next start goes on. Methods of ``Log``.

Blocks on the disk, so it runs on the flusher, the background thread, or a handler that may wait. ``lock`` is held only to look;
``sync_lock`` sees to it that one fsync of a log runs at a time, so that those who waited for it find their work done.
"""

from typing import TYPE_CHECKING

from broker.errors import StorageError
from broker.runtime.disk import NO_DESCRIPTORS
from broker.storage.log import aborted_checkpoint
from broker.storage.segments.file_names import SNAPSHOT, file_name

if TYPE_CHECKING:
    from broker.storage.log.log import Log


def flush_to(log: "Log", offset: int) -> None:
    """fsync, so that everything before ``offset`` (at most the log end offset) is durable.

    Raises StorageError; the partition is then offline, because after a failed fsync nobody knows what is on disk. For want of
    a descriptor it stays online.
    """
    if log.durable_offset >= offset:
        return
    with log.sync_lock:
        if log.durable_offset >= offset:
            return
        with log.lock:
            if log.offline is not None:
                raise StorageError(str(log.offline))
            end = log.log_end_offset
            unsynced = log.segments_from(log.durable_offset)
            cut, log.cut = log.cut, False
            dir_dirty, log.dir_dirty = log.dir_dirty, False
        try:
            for segment in unsynced:
                try:
                    segment.log.get().sync()
                except FileNotFoundError:
                    if segment in log.view.segments:
                        raise  # else it was deleted meanwhile, or compacted, which is durable
            if dir_dirty:
                log.around.disk.sync_dir(log.dir)
        except OSError as error:
            if log.deleted:
                raise StorageError(f"{log.topic}-{log.partition} was deleted") from error
            if (
                error.errno in NO_DESCRIPTORS
            ):  # of an open, not of a sync: nothing is lost, and the next call does it all
                with log.lock:
                    log.cut = log.cut or cut
                    log.dir_dirty = log.dir_dirty or dir_dirty
                raise StorageError(f"{log.topic}-{log.partition} could not be made durable: {error}") from error
            raise log.go_offline(f"fsync failed: {error}") from error
        log.durable_offset = end
        log.last_flush_ms = log.around.clock.time_ms()


def checkpoint(log: "Log", *, closing: bool = False) -> bool:
    """Move the recovery point up to the log end offset: data, indexes and producer state are durable then.

    True if it moved. When the broker closes, a producer state that is empty is not written: that there is no snapshot says so.
    Raises StorageError.
    """
    if log.offline is not None:
        return False
    with log.lock:
        end = log.log_end_offset
        known = end in log.snapshots
        if log.recovery_point == end and (not closing or known or not len(log.producers)):
            return False
        assert log.active is not None
        segments = log.segments_from(log.recovery_point)
        try:
            aborted = aborted_checkpoint.counts(log.view.segments)
            log.active.finish_indexes()
        except OSError as error:
            raise log.failed("an index could not be written", error) from error
        producers = log.producers.freeze()
    log.flush_to(end)
    try:
        for segment in segments:
            if segment in log.view.segments:
                segment.sync_indexes()
        if producers.producers or not closing:
            log.write_snapshot(end, producers.to_snapshot())
        aborted_checkpoint.save(log, aborted)
        log.around.disk.sync_dir(log.dir)
        _remove_snapshots(log, end)
    except OSError as error:
        if log.deleted:
            return False
        raise log.failed("a checkpoint could not be made", error) from error
    log.recovery_point = end
    return True


def write_snapshot(log: "Log", offset: int, data: bytes) -> None:
    """Durably. Raises OSError."""
    file = log.around.disk.open(f"{log.dir}/{file_name(offset, SNAPSHOT)}", create=True)
    try:
        file.truncate(0)
        file.pwrite([data], 0)
        file.sync()
    finally:
        file.close()
    log.snapshots.add(offset)


def _remove_snapshots(log: "Log", newest: int) -> None:
    """Those before ``newest`` but the one before it, in case that one gets damaged."""
    with log.lock:
        old = sorted(offset for offset in log.snapshots if offset < newest)[:-1]
        log.snapshots.difference_update(old)
    for offset in old:
        log.around.disk.remove(f"{log.dir}/{file_name(offset, SNAPSHOT)}")
