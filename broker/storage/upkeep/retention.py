"""Which old segments of a log are removed: by age and by size. Kafka's rules.

Housekeeper thread. This only moves the log start offset; when that is durable, ``Log.drop_old_segments`` removes the files.

A service whose consumers keep their positions elsewhere may give a log a ``Rule``: nothing is removed that they still need,
and the service may have an age and a size of its own.
"""

from typing import NamedTuple

from broker.storage.log.log import Log
from broker.storage.segments.segment import Segment


class Rule(NamedTuple):
    needed_from: int | None = None  # offset; None: nothing is needed
    retention_ms: int | None = None  # None: as the topic's settings say
    retention_bytes: int | None = None


_SETTINGS_ONLY = Rule()


def advance_start(log: Log, now_ms: int, rule: Rule | None = None) -> bool:
    """Move the log start offset past the segments that are not kept. True if it moved. Raises StorageError."""
    config = log.config
    if not config.delete:
        return False
    needed_from, retention_ms, retention_bytes = rule or _SETTINGS_ONLY
    if retention_ms is None:
        retention_ms = config.retention_ms
    if retention_bytes is None:
        retention_bytes = config.retention_bytes
    segments = log.view.segments
    count = max(
        _too_old(log, segments, now_ms, retention_ms) if retention_ms >= 0 else 0,
        _too_many(segments, retention_bytes) if retention_bytes >= 0 else 0,
    )
    if needed_from is not None:
        count = min(count, _not_needed(log, segments, needed_from))
    if count == 0:
        return False
    log.make_visible()  # the log must not begin after what consumers see
    if count == len(segments):
        # Even the newest record is too old: close the active segment, so that it can be removed too.
        with log.lock:
            if log.offline is not None:
                raise log.why_unavailable()
            if log.view.segments[-1] is not segments[-1] or _latest(segments[-1]) >= now_ms - retention_ms:
                count -= 1  # a record was appended meanwhile
            else:
                log.roll(now_ms)
    start = segments[count].base_offset if count < len(segments) else log.view.bases[-1]
    return log.advance_start(start)


def _latest(segment: Segment) -> int:
    """The timestamp of the newest record of the segment, in ms; if records have none, the time when the segment was created."""
    timestamp, _ = segment.largest()
    return timestamp if timestamp >= 0 else segment.created_ms


def _not_needed(log: Log, segments: tuple[Segment, ...], needed_from: int) -> int:
    """How many segments, from the first one, end before this offset."""
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
    return sum(end <= needed_from for end in ends)


def _too_old(log: Log, segments: tuple[Segment, ...], now_ms: int, retention_ms: int) -> int:
    """How many segments, from the first one, have only records that are older than ``retention_ms``."""
    oldest_ms = now_ms - retention_ms
    count = 0
    for segment in segments:
        if segment.size == 0 and segment is segments[-1]:
            break
        if log.search(lambda: _latest(segment)) >= oldest_ms:  # noqa: B023 (called here)
            break
        # What is deleted by mistake is lost, so the time index is checked first.
        log.search(segment.check_largest)
        if _latest(segment) >= oldest_ms:
            break
        count += 1
    return count


def _too_many(segments: tuple[Segment, ...], retention_bytes: int) -> int:
    """How many segments can be removed so that at least ``retention_bytes`` are left."""
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments[:-1]:
        if excess < segment.size:
            break
        excess -= segment.size
        count += 1
    return count
