"""Reading a log: finding the batches of a fetch, repeating a look-up when segments change under it, repairing an index.

Any thread, without a lock: ``state.py`` says why that is safe. The records for consumers are not read here; they leave the disk
when the response is sent.

An index that does not fit its segment is rebuilt on the thread whose look-up noticed it, which takes as long as reading all
headers of the segment. Meanwhile ``files_lock`` keeps compaction and retention from the files.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from broker.errors import Refusal
from broker.log import get_logger
from broker.runtime.disk import FileRegion, Unreachable
from broker.storage.log.state import LogState, View
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import CorruptSegment, Segment

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


T = TypeVar("T")

# The last bytes, up to this many, that this process wrote to a segment are assumed in the page cache without asking the kernel.
HOT_BYTES = 16 * 1024 * 1024
# Positions that are kept for readers that go on where they stopped. Each reader needs one, so this is the number of readers.
READ_ENDS = 256
# Segments that one read goes through. Each is a file that stays open until its records are sent.
READ_SEGMENTS = 100
# How often a look-up begins again because segments were deleted meanwhile.
ATTEMPTS = 20


class Elsewhere(Exception):
    """The records are in the object store, and the caller's thread must not wait for them."""


class ReadResult(NamedTuple):
    """Whole batches. The first may begin before the requested offset. ``size`` is that of all regions, in bytes. ``resident``
    means that all of it is in the page cache."""

    regions: list[FileRegion]
    size: int
    high_watermark: int
    log_start_offset: int
    resident: bool


_new_result = tuple.__new__


class LogReader:
    """``read_ends`` maps an offset to its segment and position, for readers that go on where they stopped. Any thread adds to it
    without a lock, because each entry is checked by itself when it is used. It is cleared when files are replaced."""

    __slots__ = ("_indexes", "_state", "read_ends")

    def __init__(self, state: LogState, indexes: IndexRepair) -> None:
        self._state = state
        self._indexes = indexes
        self.read_ends: dict[int, tuple[Segment, int]] = {}

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True, up_to: int | None = None, may_wait: bool = True
    ) -> ReadResult:
        """The batches from ``offset`` on, as many as fit ``max_bytes``; with ``at_least_one`` the first even if it does not fit.
        They come from at most ``READ_SEGMENTS`` segments.

        The result ends at the high watermark, or at ``up_to`` if that is less. From there to the log's end it is empty. Raises
        OffsetOutOfRange, StorageError. Without ``may_wait``, Elsewhere for records that are in the object store; their regions
        are those of a ``RemoteFile``.
        """
        state = self._state
        if state.offline is not None:
            raise state.why_unavailable()
        high_watermark, active, end = state.tail
        start = state.log_start_offset
        if not start <= offset < high_watermark or (up_to is not None and offset >= up_to):
            if start <= offset <= state.log_end_offset:  # as in Kafka, also if nobody sees it yet
                return _new_result(ReadResult, ([], 0, high_watermark, start, True))
            raise self._out_of_range(offset)
        if up_to is None or up_to >= high_watermark:
            # The usual reader goes on where it stopped, and takes the rest.
            remembered = self.read_ends.get(offset)
            if remembered is not None:
                segment, position = remembered
                size = end - position
                if segment is active and 0 < size <= max_bytes and size <= HOT_BYTES and position >= segment.hot_from:
                    file = segment.log.file
                    if file is not None:
                        segment.log.used = True
                        self._remember(high_watermark, segment, end)
                        regions = [FileRegion(file, position, size)]
                        return _new_result(ReadResult, (regions, size, high_watermark, start, True))
        return self.search(lambda: self._read(offset, max_bytes, at_least_one, up_to, may_wait))

    def _out_of_range(self, offset: int) -> Refusal:
        start, end = self._state.log_start_offset, self._state.log_end_offset
        return OffsetOutOfRange(f"Offset {offset} is not in the log, which has {start} to {end}.")

    def forget_positions(self) -> None:
        """Segments were deleted or replaced: look positions up again."""
        self.read_ends.clear()

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """Note that ``offset`` is at ``position``, or will be once it is appended."""
        ends = self.read_ends
        if len(ends) >= READ_ENDS and offset not in ends:
            ends.clear()
        ends[offset] = (segment, position)

    def _read(self, offset: int, max_bytes: int, at_least_one: bool, up_to: int | None, may_wait: bool) -> ReadResult:
        state = self._state
        high_watermark, active, active_end = state.tail
        assert active is not None
        view = state.view  # read once: the numbers of segments change when old ones are deleted
        segments = view.segments
        number, position = self._locate(view, offset, may_wait)
        first = number
        regions: list[FileRegion] = []
        size = 0
        resident = True
        while number < len(segments):
            segment = segments[number]
            if segment.base_offset > active.base_offset:  # begun since `tail` was read
                break
            if number > first and not may_wait:
                _must_be_here(segment)
            end = active_end if segment is active else segment.size
            last = segment is active
            if up_to is not None and up_to < high_watermark and segment.base_offset < up_to:
                bound = segment.locate(up_to, end)
                last = last or bound < end
                end = bound
            elif up_to is not None and segment.base_offset >= up_to:
                break
            if position < end:
                stop, next_offset = end, high_watermark if segment is active and end == active_end else -1
                if end - position > max_bytes - size:
                    try:
                        stop, next_offset = segment.end_within(offset, position, max(0, max_bytes - size), end)
                    except Unreachable:
                        if not regions:
                            raise
                        break  # its index is in the store: what comes before can be read
                    if stop == position and at_least_one and not regions:
                        stop, next_offset = segment.first_end(position, end)
                    last = True
                if stop > position:
                    file = segment.log.get()
                    hot = position >= segment.hot_from and end - position <= HOT_BYTES
                    resident = resident and (hot or file.is_resident(position, stop - position))
                    regions.append(FileRegion(file, position, stop - position))
                    size += stop - position
                if next_offset >= 0:
                    self._remember(next_offset, segment, stop)
            if last or len(regions) == READ_SEGMENTS:
                break
            number += 1
            position = 0
        # Read again: a compacted segment that has replaced the active segment may go further than `tail` did.
        return ReadResult(regions, size, state.high_watermark, state.log_start_offset, resident)

    def _locate(self, view: View, offset: int, may_wait: bool) -> tuple[int, int]:
        """The number of the segment, and the position in it, of the batch with ``offset``, or of the first batch after it."""
        bases, segments = view
        number = bisect_right(bases, offset) - 1
        if number < 0:  # it was deleted just now
            raise self._out_of_range(offset)
        if not may_wait:
            _must_be_here(segments[number])
        remembered = self.read_ends.get(offset)
        if remembered is not None and remembered[0] is segments[number]:
            return number, remembered[1]
        segment = segments[number]
        # A growing segment is at least as large as was published.
        return number, segment.locate(offset, segment.size)

    def search(self, attempt: Callable[[], T]) -> T:
        """Run a look-up, and again if segments were deleted meanwhile or an index had to be rebuilt first.

        Raises what ``attempt`` raises, and StorageError.
        """
        state = self._state
        last: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                return attempt()
            except FileNotFoundError as error:
                last = error
                self.forget_positions()
            except CorruptIndex as error:
                last = error
                self.forget_positions()
                self._indexes.repair(error)
            except CorruptSegment as error:
                raise state.go_offline(str(error)) from error
            except OSError as error:
                raise state.failed("it could not be read", error) from error
            if state.offline is not None:
                raise state.why_unavailable()
        raise state.go_offline(f"it could not be read: {last}") from last


def _must_be_here(segment: Segment) -> None:
    """Raises Elsewhere if the segment is in the object store only. Its indexes are where its log is."""
    if segment.log.get().is_remote:
        raise Elsewhere
