"""Removing the oldest records of a log, and replacing its closed segments.

First the log start offset moves, which readers see at once; then it is made durable; then the files are renamed, and removed
later. Any thread that may wait for the disk.
"""

from collections.abc import Callable, Sequence

from broker.storage.log.durability import Durability
from broker.storage.log.reading import LogReader
from broker.storage.log.state import LogState
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.file_names import DELETED, SNAPSHOT
from broker.storage.segments.segment import Segment


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
        after so many ms, on another thread."""
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
                # A segment that was just begun must not be lost once the old ones are. The next flush syncs the directory once
                # more: it does not wait here, and must not take the directory for durable before it is.
                if state.dir_dirty:
                    state.disk.sync_dir(state.dir)
                # Checkpoints remove the snapshots: the newest may have the offset of one of these segments.
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
