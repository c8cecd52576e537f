"""Which old segments of a log are removed: by age and by size. Kafka's rules.

Housekeeper thread. This only moves the log start offset; when that is durable, ``Log.drop_old_segments`` removes the files.
"""

from broker.storage.log.log import Log
from broker.storage.segments.segment import Segment


def advance_start(log: Log, now_ms: int) -> bool:
    """Move the log start offset past the segments that are not kept. True if it moved. Raises StorageError."""
    config = log.config
    if not config.delete:
        return False
    segments = log.view.segments
    count = max(
        _too_old(log, segments, now_ms) if config.retention_ms >= 0 else 0,
        _too_many(segments, config.retention_bytes) if config.retention_bytes >= 0 else 0,
    )
    if count == 0:
        return False
    if count == len(segments):
        # Even the newest record is too old: close the active segment, so that it can be removed too.
        with log.lock:
            if log.offline is not None:
                raise log.why_unavailable()
            if log.view.segments[-1] is not segments[-1] or _latest(segments[-1]) >= now_ms - config.retention_ms:
                count -= 1  # a record was appended meanwhile
            else:
                log.roll(now_ms)
    start = segments[count].base_offset if count < len(segments) else log.view.bases[-1]
    return log.advance_start(start)


def _latest(segment: Segment) -> int:
    """The timestamp of the newest record of the segment, in ms; if records have none, the time when the segment was created."""
    timestamp, _ = segment.largest()
    return timestamp if timestamp >= 0 else segment.created_ms


def _too_old(log: Log, segments: tuple[Segment, ...], now_ms: int) -> int:
    """How many segments, from the first one, have only records that are older than retention.ms."""
    oldest_ms = now_ms - log.config.retention_ms
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
