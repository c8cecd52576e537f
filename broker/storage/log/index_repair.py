"""Rebuilding an index that does not fit its segment.

It runs on the thread whose look-up noticed it, for as long as reading all headers of the segment takes. Meanwhile ``files_lock``
keeps compaction and retention from the files.

Tests: tests/storage/log/test_reading.py.
"""

from broker.log import get_logger
from broker.storage.log.state import LogState
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import CorruptSegment

logger = get_logger("storage")


class IndexRepair:
    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def repair(self, error: CorruptIndex) -> None:
        """Rebuild both indexes of the segment to which the file in ``error`` belongs. Raises StorageError."""
        state = self._state
        interval_bytes = state.config.index_interval_bytes
        with state.files_lock:
            for segment in state.view.segments:
                if error.path not in (segment.offsets.cached.path, segment.times.cached.path):
                    continue
                logger.warning("index_rebuilt", reason=str(error))
                try:
                    if segment is state.active:
                        with state.lock:
                            segment.rebuild_indexes(interval_bytes)
                    else:
                        segment.rebuild_indexes(interval_bytes)
                except CorruptSegment as corrupt:
                    raise state.go_offline(str(corrupt)) from corrupt
                except OSError as second:
                    raise state.failed("an index could not be rebuilt", second) from second
