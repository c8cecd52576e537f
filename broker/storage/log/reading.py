"""Reading a log: what ``Log.read`` does, and what the look-ups by time (``times.py``) share with it.

No lock is taken. ``Log.tail`` and ``Log.view`` are each replaced as a whole, the bytes and index entries behind them never
change, and a segment that was deleted meanwhile shows as a missing file: then the look-up begins again with what is there now.
Nothing here reads the data that a consumer gets: it leaves the disk when the response is sent.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from broker.errors import Refusal
from broker.runtime.disk import FileRegion
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import CorruptSegment, Segment

if TYPE_CHECKING:
    from broker.storage.log.log import Log, View

T = TypeVar("T")

# So much of the end of a segment that this process wrote is taken to be in the page cache without asking the kernel.
HOT_BYTES = 16 * 1024 * 1024
# Positions that are kept for readers that go on where they stopped. One each is enough, so this is for as many readers.
READ_ENDS = 256
# How often a look-up begins again because segments were deleted under it.
ATTEMPTS = 20


class AppendInfo(NamedTuple):
    """``log_append_time_ms`` is -1 unless the topic has LogAppendTime."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class ReadResult(NamedTuple):
    """Whole batches. The first may begin before the offset that was asked for. ``size`` is that of all regions, in bytes.
    ``resident``: none of it has to come from the disk first."""

    regions: list[FileRegion]
    size: int
    high_watermark: int
    log_start_offset: int
    resident: bool


_new_result = tuple.__new__


def read(log: "Log", offset: int, max_bytes: int, *, at_least_one: bool = True, up_to: int | None = None) -> ReadResult:
    """The batches from ``offset`` on, as many as fit ``max_bytes``; with ``at_least_one`` the first one even if it does not.

    Never beyond the high watermark, or ``up_to`` if that is less. At the high watermark there is nothing: an empty result.
    Raises OffsetOutOfRange, StorageError.
    """
    if log.offline is not None:
        raise log.gone()
    high_watermark, active, end = log.tail
    start = log.log_start_offset
    if not start <= offset < high_watermark or (up_to is not None and offset >= up_to):
        if start <= offset <= high_watermark:
            return _new_result(ReadResult, ([], 0, high_watermark, start, True))
        raise _out_of_range(log, offset)
    if up_to is None or up_to >= high_watermark:
        # The usual reader goes on where it stopped, and takes what is there.
        found = log.read_ends.get(offset)
        if found is not None:
            segment, position = found
            size = end - position
            if segment is active and 0 < size <= max_bytes and size <= HOT_BYTES and position >= segment.hot_from:
                file = segment.log.file
                if file is not None:
                    segment.log.used = True
                    remember(log, high_watermark, segment, end)
                    regions = [FileRegion(file, position, size)]
                    return _new_result(ReadResult, (regions, size, high_watermark, start, True))
    return search(log, lambda: _read(log, offset, max_bytes, at_least_one, up_to))


def _out_of_range(log: "Log", offset: int) -> Refusal:
    return OffsetOutOfRange(
        f"Offset {offset} is not in the log, which has {log.log_start_offset} to {log.high_watermark}.",
    )


def remember(log: "Log", offset: int, segment: Segment, position: int) -> None:
    """``offset`` is, or will be, at ``position``."""
    ends = log.read_ends
    if len(ends) >= READ_ENDS and offset not in ends:
        ends.clear()
    ends[offset] = (segment, position)


def _read(log: "Log", offset: int, max_bytes: int, at_least_one: bool, up_to: int | None) -> ReadResult:
    high_watermark, active, active_end = log.tail
    assert active is not None
    view = log.view  # looked at once: the numbers of segments change when old ones go
    segments = view.segments
    number, position = _locate(log, view, offset)
    regions: list[FileRegion] = []
    size = 0
    resident = True
    while number < len(segments):
        segment = segments[number]
        if segment.base_offset > active.base_offset:  # made since
            break
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
                stop, next_offset = segment.end_within(offset, position, max(0, max_bytes - size), end)
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
                remember(log, next_offset, segment, stop)
        if last:
            break
        number += 1
        position = 0
    # As of now: where a compacted segment took the active one's place meanwhile, it may go further than `tail` did.
    return ReadResult(regions, size, log.high_watermark, log.log_start_offset, resident)


def _locate(log: "Log", view: "View", offset: int) -> tuple[int, int]:
    """Number of the segment, and position in it, of the batch that has ``offset`` or is the first one behind it."""
    bases, segments = view
    number = bisect_right(bases, offset) - 1
    if number < 0:  # deleted just now
        raise _out_of_range(log, offset)
    found = log.read_ends.get(offset)
    if found is not None and found[0] is segments[number]:
        return number, found[1]
    segment = segments[number]
    # The size of a segment that grows is never less than what was published before.
    return number, segment.locate(offset, segment.size)


def search(log: "Log", attempt: Callable[[], T]) -> T:
    """Run a look-up; again where segments were deleted under it, or an index had to be made again first."""
    last: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except FileNotFoundError as error:
            last = error
            log.read_ends.clear()
        except CorruptIndex as error:
            last = error
            log.read_ends.clear()
            log.repair_index(error)
        except CorruptSegment as error:
            raise log.go_offline(str(error)) from error
        except OSError as error:
            raise log.failed("it could not be read", error) from error
        if log.offline is not None:
            raise log.gone()
    raise log.go_offline(f"it could not be read: {last}") from last
