"""The names of segments in the object store. They say what the start of the broker has to know of a segment, so that it reads
none, and what somebody needs who has nothing but the store.

``segments/<topic id>/<partition>/<base offset>-<end offset>-<largest timestamp>-<its offset>-<written>-<unique>``. Offsets have
20 digits, so that names sort as they do; times are ms since 1970, the largest timestamp ``none`` if no record has any. Each
attempt to upload a segment has another name, because of a failed one nobody knows whether it takes effect later.

The object has the files of the segment one after another: log, offset index, time index and, if the segment has aborted
transactions, their index. Values: no thread, no I/O.
"""

import re
import uuid

import attrs

PREFIX = "segments"
_KEY = re.compile(
    rf"{PREFIX}/(?P<topic>[0-9a-f]{{32}})/(?P<partition>[0-9]{{1,10}})/(?P<base>[0-9]{{20}})-(?P<end>[0-9]{{20}})"
    r"-(?P<timestamp>none|[0-9]{1,20})-(?P<offset>[0-9]{20})-(?P<written>[0-9]{1,20})-(?P<unique>[0-9a-f]{32})"
)


@attrs.frozen
class SegmentKey:
    """``end`` follows the last offset. ``largest_timestamp`` (ms; -1: none) is that of the batch that ends with
    ``timestamp_offset``. ``written_ms`` is when the upload began."""

    topic_id: uuid.UUID
    partition: int
    base: int
    end: int
    largest_timestamp: int
    timestamp_offset: int
    written_ms: int
    unique: uuid.UUID

    def __str__(self) -> str:
        timestamp = "none" if self.largest_timestamp < 0 else str(self.largest_timestamp)
        return (
            f"{PREFIX}/{self.topic_id.hex}/{self.partition}/{self.base:020d}-{self.end:020d}-{timestamp}"
            f"-{self.timestamp_offset:020d}-{self.written_ms}-{self.unique.hex}"
        )


def parse(key: str) -> SegmentKey | None:
    """None for another name."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    timestamp = -1 if match["timestamp"] == "none" else int(match["timestamp"])
    return SegmentKey(
        uuid.UUID(match["topic"]),
        int(match["partition"]),
        int(match["base"]),
        int(match["end"]),
        timestamp,
        int(match["offset"]),
        int(match["written"]),
        uuid.UUID(match["unique"]),
    )
