"""Removing the oldest records of a log, replacing its closed segments, and beginning new ones.

Trimming: first the log start offset moves, which readers see at once; then it is made durable; then the files are renamed, and
removed later. Any thread that may wait for the disk.

Rolling to a new segment follows Kafka's rules (LogSegment.shouldRoll). The caller holds the log's ``lock``; ``configure`` takes
it itself.

Tests: tests/storage/log/test_log.py,
tests/storage/log/test_failed_rolls.py.
"""

from collections.abc import Callable, Sequence

from broker.runtime.entropy import Entropy
from broker.runtime.open_files import OpenFiles
from broker.storage.log.durability import Durability
from broker.storage.log.log_config import LogConfig
from broker.storage.log.reading import LogReader
from broker.storage.log.state import LogState
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.segment import DELETED, NEVER, SNAPSHOT, Segment, new_segment


class Trimming:
    __slots__ = ("_delete_later", "_durability", "_reader", "_save_log_start", "_state")

    def __init__(
        self,
        state: LogState,
        reader: LogReader,
        durability: Durability,
        save_log_start: Callable[[], None],
        delete_later: Callable[[list[str], int], None],
    ) -> None:
        """``save_log_start`` makes the log start offset durable before it returns. ``delete_later(paths, ms)`` removes files
        after that many ms, on another thread."""
        self._state = state
        self._reader = reader
        self._durability = durability
        self._save_log_start = save_log_start
        self._delete_later = delete_later

    def delete_records(self, before: int) -> int:
        """Delete the records before ``before`` (-1: before the high watermark). Returns the new, durable log start offset.

        Raises OffsetOutOfRange, StorageError.
        """
        state = self._state
        if before == -1:
            before = state.high_watermark
        if not 0 <= before <= state.high_watermark:
            raise OffsetOutOfRange(f"{before} is not in the log, which ends at {state.high_watermark}.")
        # A log must not begin after its durable end.
        self._durability.flush_to(before)
        self.advance_start(before)
        self._save_log_start()  # even if it did not move: an earlier attempt may have failed here
        self.drop_old_segments()
        return state.log_start_offset

    def advance_start(self, offset: int) -> bool:
        """Move the log start offset up, in memory. True if it moved."""
        state = self._state
        with state.lock:
            if state.offline is not None:
                raise state.why_unavailable()
            if offset <= state.log_start_offset:
                return False
            state.log_start_offset = offset
            self._reader.forget_positions()
            return True

    def drop_old_segments(self) -> int:
        """Take the segments that end before the saved log start offset out of the log. Their files are renamed now and removed
        after ``file.delete.delay.ms``. Returns the number of segments. Raises StorageError."""
        state = self._state
        with state.files_lock:
            with state.lock:
                bases, segments = state.view
                count = 0
                while count + 1 < len(bases) and bases[count + 1] <= state.saved_start:
                    count += 1
                if not count:
                    return 0
                state.set_segments(segments[count:])
                self._reader.forget_positions()
            try:
                # A segment that was just begun must not be lost once the old segments are. The next flush syncs the directory
                # again: it does not wait here, and must not take the directory for durable before it is.
                if state.dir_dirty:
                    state.disk.sync_dir(state.dir)
                # Checkpoints remove the snapshots, because the newest may have the offset of one of these segments.
                paths = [path for segment in segments[:count] for path in segment.paths()]
                self.discard([path for path in paths if not path.endswith(SNAPSHOT)])
            except OSError as error:
                raise state.failed("old segments could not be deleted", error) from error
            return count

    def discard(self, paths: list[str]) -> None:
        """Rename files durably, so that they no longer belong to the log, and remove them later. Raises OSError."""
        disk = self._state.disk
        renamed = []
        for path in paths:
            if disk.exists(path):
                disk.rename(path, path + DELETED)
                renamed.append(path + DELETED)
        disk.sync_dir(self._state.dir)
        self._delete_later(renamed, self._state.config.file_delete_delay_ms)

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Put ``new``, which compaction has made of the segments ``old``, in their place. ``files_lock`` is held, and the files
        already have the names with which recovery would finish the replacement."""
        state = self._state
        with state.lock:
            segments = state.view.segments
            first = segments.index(old[0])
            state.set_segments((*segments[:first], new, *segments[first + len(old) :]))
        self._reader.forget_positions()

    def expect_gaps_before(self, offset: int) -> None:
        """Note that compaction is about to make gaps between offsets, all before ``offset``. Background thread."""
        self._state.dense_from = max(self._state.dense_from, offset)

    def mark_cleaned(self, offset: int) -> None:
        """Note that compaction has seen the records before this offset. Background thread."""
        self._state.first_dirty_offset = offset


class Rolling:
    __slots__ = ("_entropy", "_files", "_flush_soon", "_jitter_ms", "_state")

    def __init__(self, state: LogState, files: OpenFiles, entropy: Entropy, flush_soon: Callable[[], None]) -> None:
        """``flush_soon`` lets another thread fsync the log."""
        self._state = state
        self._files = files
        self._entropy = entropy
        self._flush_soon = flush_soon
        self.configure(state.config)

    def configure(self, config: LogConfig) -> None:
        """Follow a change of the topic's settings. The state has the new ones; ``lock`` is not held."""
        self._jitter_ms = 0  # taken off segment.ms, so that not all logs roll at once
        if config.segment_jitter_ms:
            random = int.from_bytes(self._entropy.bytes(8), "big")
            self._jitter_ms = random % min(config.segment_jitter_ms, config.segment_ms)
        state = self._state
        with state.lock:
            if state.active is not None and state.active.size:
                self.set_roll_time(state.active)

    def set_roll_time(self, segment: Segment) -> None:
        """Set when ``segment`` is full by age: counted from the time of its first batch, or from its creation if unknown.

        ``lock`` is held.
        """
        config = self._state.config
        after = config.segment_ms - self._jitter_ms
        if config.compact:  # only closed segments are compacted
            after = min(after, config.max_compaction_lag_ms)
        index_full = segment.roll_at_ms < 0
        if segment.first_timestamp >= 0:
            segment.roll_at_timestamp, segment.roll_at_ms = segment.first_timestamp + after, NEVER
        else:
            segment.roll_at_timestamp, segment.roll_at_ms = NEVER, segment.created_ms + after
        segment.max_entries = config.segment_index_bytes // segment.offsets.ENTRY.size
        if index_full:
            segment.roll_at_ms = -1

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment unless the active one is empty. Returns the active one. ``lock`` is held. Raises StorageError."""
        state = self._state
        old = state.active
        assert old is not None
        if old.size == 0:
            return old
        offset = state.log_end_offset
        try:
            if state.cut_unsynced:  # recovery looks for a torn write only at the end of the last segment
                self._sync_cut(old)
            old.finish_indexes()
            segment = new_segment(self._files, state.dir, offset, now_ms)
        except OSError as error:
            raise state.failed("a new segment could not be made", error) from error
        segment.max_entries = state.config.segment_index_bytes // segment.offsets.ENTRY.size
        state.dir_dirty = True
        state.active = segment
        state.set_segments((*state.view.segments, segment))
        if state.high_watermark == offset:
            state.tail = (offset, segment, 0)
        # On another thread, so that recovery never has much to scan and the next wait_durable has little to write.
        self._flush_soon()
        return segment

    def _sync_cut(self, segment: Segment) -> None:
        """Make it durable that a failed write was taken back. Raises OSError if the file cannot be opened, StorageError."""
        state = self._state
        file = segment.log.get()
        try:
            file.sync()
        except OSError as error:
            # Whatever the error, a full disk included: the kernel now takes the pages for clean, so the next fsync would succeed
            # without having written them.
            raise state.go_offline(f"fsync failed: {error}") from error
        state.cut_unsynced = False
