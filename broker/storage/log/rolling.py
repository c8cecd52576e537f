"""When a log begins a new segment, and how. Kafka's rules (LogSegment.shouldRoll).

The caller holds the log's ``lock``; ``configure`` takes it itself.

Tests: tests/storage/log/test_log.py, tests/storage/log/test_failed_rolls.py.
"""

from collections.abc import Callable

from broker.runtime.entropy import Entropy
from broker.runtime.open_files import OpenFiles
from broker.storage.log.log_config import LogConfig
from broker.storage.log.state import LogState
from broker.storage.segments.segment import NEVER, Segment, new_segment


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
        """Set when ``segment`` is full by age: counted from the time of its first batch, or from its creation if that has none.

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
        """Begin a new segment, unless the active one is empty. Returns the active one. ``lock`` is held. Raises StorageError."""
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
            # Whatever the error, a full disk included: the kernel takes the pages for clean now, so the next fsync would succeed
            # without having written them.
            raise state.go_offline(f"fsync failed: {error}") from error
        state.cut_unsynced = False
