"""Making a log durable: fsync, and the checkpoint from which the next start goes on.

These functions wait for the disk, so they run on the flusher, the background thread, or a handler that may wait. Only
``begin_flush`` and ``end_flush``, which do not wait, run on processors, too. ``sync_lock`` lets one thread at a time have the
data of a log fsynced; a thread that waited for it usually finds that its records are durable by now. A processor keeps it until
the kernel reports that the log is synced, and does other work meanwhile; so nothing on a processor may wait for it. ``lock`` is
held to note what is to be synced, and in a checkpoint to write the newest index entries, but never during an fsync.
"""

from collections.abc import Mapping

import attrs

from broker.config.setting import LONG_MAX
from broker.errors import StorageError
from broker.runtime.disk import NO_DESCRIPTORS, PAGE_BYTES, File
from broker.runtime.threads import Lock
from broker.storage.log import state as aborted_checkpoint
from broker.storage.log.state import LoadedLog, LogState, Sums, Watchers
from broker.storage.segments.segment import SNAPSHOT, Segment, file_name


@attrs.frozen(slots=True)
class Sync:
    """What one fsync is to make durable: all before ``end``, which is in ``segments``; a cut at the end of the last segment; the
    names in the directory. It began at ``started`` (Clock.monotonic() s). ``tail`` is for readers who see only durable records:
    the end, and the segment and its size there."""

    end: int
    tail: tuple[int, Segment, int]
    segments: tuple[Segment, ...]
    cut: bool
    dir_dirty: bool
    began: float


class Durability:
    """``sync_lock`` is held while the data are fsynced; ``last_flush_ms`` says when that was last done. ``snapshots`` has the
    offsets of the snapshot files. Checkpoints are made by one thread at a time: the background thread, or after it has ended the
    threads that close the logs."""

    __slots__ = (
        "_aborted_saved",
        "_begun",
        "_is_apart",
        "_state",
        "_watchers",
        "aborted_sums",
        "last_flush_ms",
        "snapshots",
        "sync_lock",
    )

    def __init__(self, state: LogState, watchers: Watchers) -> None:
        self._state = state
        self._watchers = watchers
        self.sync_lock = Lock()
        # An fsync has begun (``begin_flush``), and the thread that has begun it does not wait for it.
        self._is_apart = False
        self.last_flush_ms = 0
        self.snapshots: set[int] = set()
        # Which entries of the indexes of aborted transactions are durable, and what the checkpoint file says of them.
        self.aborted_sums: Sums = {}
        self._aborted_saved: Sums = {}
        self._begun: tuple[Segment | None, int] = (
            None,
            0,
        )  # up to where the operating system was asked to write a segment

    def start(self, loaded: LoadedLog, recovery_point: int) -> None:
        """Begin with what the checkpoints say is durable; nothing else is known when a log is opened. ``lock`` is held."""
        state = self._state
        state.durable_offset = state.recovery_point = state.saved_point = min(recovery_point, loaded.log_end_offset)
        if loaded.indexes_written and state.recovery_point == loaded.log_end_offset:
            # The next checkpoint must make the indexes durable; otherwise it would have nothing to do.
            state.recovery_point = loaded.segments[-1].base_offset
        self.snapshots = set(loaded.snapshots)
        self.aborted_sums = self._aborted_saved = loaded.aborted_sums
        self.last_flush_ms = state.clock.time_ms()

    def flush_to(self, offset: int) -> None:
        """fsync, so that everything before ``offset`` (at most the log end offset) is durable: first the segments, then the
        directory.

        Raises StorageError. The partition is offline then, because after a failed fsync the disk's content is unknown. If only
        a descriptor was missing, it stays online.
        """
        state = self._state
        if state.durable_offset >= offset:
            return
        with self.sync_lock:
            if state.durable_offset >= offset:
                return
            shown = self._flush()
        if shown:
            self._watchers.wake()

    def show_all(self) -> None:
        """Have readers see the whole log, which becomes durable. Raises StorageError as ``flush_to``."""
        with self.sync_lock:
            shown = self._flush()
        if shown:
            self._watchers.wake()

    def _flush(self) -> bool:
        """True if readers see more now. ``sync_lock`` is held."""
        state = self._state
        sync = self._begin()
        try:
            for segment in sync.segments:
                try:
                    segment.log.get().sync()
                except FileNotFoundError:
                    if segment in state.view.segments:
                        raise  # otherwise it was meanwhile deleted, or compacted, which makes it durable
            if sync.dir_dirty:
                state.disk.sync_dir(state.dir)
        except OSError as error:
            raise self._failed(sync, error) from error
        return self._done(sync)

    def flush_appended(self, offset: int) -> None:
        """``flush_to`` for an append to a log with flush.messages. It may be on the processor that has to end an fsync.

        Such a log is not synced apart (``begin_flush``). If flush.messages was set while that was done, the next append flushes.
        """
        if not self._is_apart:
            self.flush_to(offset)

    def _flushes_appends(self) -> bool:
        return self._state.config.flush_messages != LONG_MAX

    def begin_flush(self, offset: int) -> tuple[Sync, File] | None:
        """Begin what ``flush_to`` does. The caller has the file synced; then any thread calls ``end_flush``.

        None if ``flush_to`` has to be called instead: to wait for another thread, to do more than sync one file, or to say what
        is wrong.
        """
        state = self._state
        if state.durable_offset >= offset or self._flushes_appends() or not self.sync_lock.acquire(blocking=False):
            return None
        self._is_apart = True  # before the settings are read again, which change before appends see them
        begun = None if self._flushes_appends() else self._begin_one(offset)
        if begun is None:
            self._is_apart = False
            self.sync_lock.release()
        return begun

    def _begin_one(self, offset: int) -> tuple[Sync, File] | None:
        state = self._state
        if not state.lock.acquire(blocking=False):  # an append may be waiting for the disk
            return None
        try:
            segments = state.segments_from(state.durable_offset)
            if state.durable_offset >= offset or state.offline is not None or state.dir_dirty or len(segments) != 1:
                return None
            file = segments[0].log.file
            return None if file is None else (self._note(segments), file)  # to open it might take the disk a while
        except OSError:
            return None
        finally:
            state.lock.release()

    def end_flush(self, sync: Sync, error: OSError | None) -> None:
        """Note the result of the fsync. Raises StorageError as ``flush_to`` does."""
        shown = False
        try:
            if error is not None:
                raise self._failed(sync, error) from error
            shown = self._done(sync)
        finally:
            self._is_apart = False
            self.sync_lock.release()
        if shown:
            self._watchers.wake()

    def _begin(self) -> Sync:
        """Take note of everything that is not durable. ``sync_lock`` is held. Raises StorageError if the partition is offline."""
        state = self._state
        with state.lock:
            if state.offline is not None:
                raise StorageError(str(state.offline))
            return self._note(state.segments_from(state.durable_offset))

    def _note(self, segments: tuple[Segment, ...]) -> Sync:
        """``lock`` is held."""
        state = self._state
        active, end = state.active, state.log_end_offset
        assert active is not None
        sync = Sync(
            end, (end, active, active.size), segments, state.cut_unsynced, state.dir_dirty, state.clock.monotonic()
        )
        state.cut_unsynced = state.dir_dirty = False
        return sync

    def _undo(self, sync: Sync) -> None:
        """Take back ``_note``: no fsync has failed, so nothing is lost, and the next fsync does all of it."""
        state = self._state
        with state.lock:
            state.cut_unsynced = state.cut_unsynced or sync.cut
            state.dir_dirty = state.dir_dirty or sync.dir_dirty

    def _done(self, sync: Sync) -> bool:
        """True if readers see more now."""
        state = self._state
        state.observe_fsync(state.clock.monotonic() - sync.began)
        shown = False
        if state.high_watermark < sync.end:
            with state.lock:
                shown = state.show(sync.tail)
        state.durable_offset = sync.end  # last: a thread that waits for this offset may read up to it
        self.last_flush_ms = state.clock.time_ms()
        return shown

    def _failed(self, sync: Sync, error: OSError) -> StorageError:
        """The error for those who wait for the fsync."""
        state = self._state
        if state.deleted:
            return StorageError(f"{state.topic}-{state.partition} was deleted")
        if error.errno in NO_DESCRIPTORS:  # a file could not be opened
            self._undo(sync)
            return StorageError(f"{state.topic}-{state.partition} could not be made durable: {error}")
        return state.go_offline(f"fsync failed: {error}")

    def begin_sync(self) -> None:
        """Have the operating system begin to write the active segment, so that a later fsync, of any log, waits less. A hint, so
        errors are ignored; it may wait for the disk. Flusher thread."""
        state = self._state
        _, segment, size = state.tail
        begun, position = self._begun
        if begun is not segment:
            position = 0
        end = size - size % PAGE_BYTES  # the last page is still being filled
        if segment is None or end <= position:
            return
        self._begun = segment, end
        try:
            segment.log.get().begin_sync(position, end - position)
        except OSError:
            pass  # deleted, or no descriptor is left

    def checkpoint(self, *, closing: bool = False) -> bool:
        """Move the recovery point up to the log end offset. True if it moved. Raises StorageError.

        Before it moves these are made durable, in this order: the data, the indexes, the snapshot of the producer state, the
        checkpoint of the indexes of aborted transactions, the names of all of them. When the broker closes, no snapshot of an
        empty producer state is written: its absence says so.
        """
        state = self._state
        if state.offline is not None:
            return False
        with state.lock:
            end = state.log_end_offset
            has_snapshot = end in self.snapshots
            if state.recovery_point == end and (not closing or has_snapshot or not len(state.producers)):
                return False
            assert state.active is not None
            segments = state.segments_from(state.recovery_point)
            try:
                aborted = aborted_checkpoint.counts(state.view.segments)
                state.active.finish_indexes()
            except OSError as error:
                raise state.failed("an index could not be written", error) from error
            producers = state.producers.freeze()
        self.flush_to(end)
        try:
            for segment in segments:
                if segment in state.view.segments:
                    segment.sync_indexes()
            if producers.producers or not closing:
                self._write_snapshot(end, producers.to_snapshot())
            self.save_aborted(aborted)
            state.disk.sync_dir(state.dir)
            self._remove_snapshots(end)
        except OSError as error:
            if state.deleted:
                return False
            raise state.failed("a checkpoint could not be made", error) from error
        state.recovery_point = end
        return True

    def _write_snapshot(self, offset: int, data: bytes) -> None:
        """Make ``data`` the durable content of the snapshot file of ``offset``. Raises OSError."""
        file = self._state.disk.open(f"{self._state.dir}/{file_name(offset, SNAPSHOT)}", create=True)
        try:
            file.truncate(0)
            file.pwrite([data], 0)
            file.sync()
        finally:
            file.close()
        self.snapshots.add(offset)

    def save_aborted(self, durable: Mapping[Segment, int]) -> None:
        """Write the checkpoint of the indexes of aborted transactions: the number of durable entries of each segment. Background
        thread. Raises OSError."""
        sums = {segment.base_offset: (count, segment.aborted.checksum(count)) for segment, count in durable.items()}
        self.aborted_sums = sums
        if sums != self._aborted_saved:
            aborted_checkpoint.write(self._state.disk, self._state.dir, sums)
            self._aborted_saved = sums

    def distrust_from(self, offset: int) -> None:
        """Put the recovery point back to ``offset``, where the scrub found damage, so that the next start verifies it. Background
        thread."""
        self._state.recovery_point = min(self._state.recovery_point, offset)

    def note_saved_point(self, offset: int) -> None:
        """The checkpoint file now has this recovery point."""
        self._state.saved_point = offset

    def note_saved_start(self, offset: int) -> None:
        """The checkpoint file now has this log start offset: segments before it may be deleted."""
        self._state.saved_start = offset

    def _remove_snapshots(self, newest: int) -> None:
        """Remove the snapshots before ``newest``, except the last of them, in case ``newest`` gets damaged. Raises OSError."""
        with self._state.lock:
            old = sorted(offset for offset in self.snapshots if offset < newest)[:-1]
            self.snapshots.difference_update(old)
        for offset in old:
            self._state.disk.remove(f"{self._state.dir}/{file_name(offset, SNAPSHOT)}")
