"""ConsumerGroupHeartbeat (68) without changes, the usual case: read and answered without Kafka's schema.

Such a request has the group, the member, its epoch and perhaps the instance id, followed by constant bytes. All other requests
are left to ``schema/control.py``. Pure.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_I32 = struct.Struct(">i").unpack_from
# The bytes after the instance id, by version: no rack, rebalance timeout -1, no names, (1: no expression,) no assignor, no
# partitions, no tagged fields.
_UNCHANGED = {0: b"\0\xff\xff\xff\xff\0\0\0\0", 1: b"\0\xff\xff\xff\xff\0\0\0\0\0"}
# Frame length, correlation id, tags, throttle time, error code, message (null), length of the member id.
_HEAD = struct.Struct(">iiBihBB").pack
# Member epoch, heartbeat interval, no assignment, no tagged fields.
_TAIL = struct.Struct(">iibB").pack
# The size of both without the frame's length.
_FIXED_BYTES = 23
# Only texts whose encoded length (length + 1, because 0 is null) takes one byte are read and written.
_LONG = 0x80


class Unchanged(NamedTuple):
    """A heartbeat of a member without changes."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None


def parse_unchanged(frame: memoryview, pos: int, version: int) -> Unchanged | None:
    """The request whose body begins at ``pos``; None if it has changes or cannot be read here."""
    try:
        size = frame[pos]
        if not 0 < size < _LONG:
            return None
        end = pos + size
        group_id = str(frame[pos + 1 : end], "utf-8")
        size = frame[end]
        if not 0 < size < _LONG:
            return None
        pos, end = end + 1, end + size
        member_id = str(frame[pos:end], "utf-8")
        (epoch,) = _I32(frame, end)
        pos = end + 4
        size = frame[pos]
        if size >= _LONG:
            return None
        instance_id = None
        if size:
            instance_id = str(frame[pos + 1 : pos + size], "utf-8")
            pos += size
        else:
            pos += 1
        if frame[pos:] != _UNCHANGED[version]:
            return None
    except (IndexError, UnicodeDecodeError, struct.error):
        return None
    return Unchanged(group_id, member_id, epoch, instance_id)


def encode_unchanged(correlation_id: int, member_id: str, epoch: int, interval_ms: int) -> bytes | None:
    """The frame of the answer without error and assignment, in any version. None if the member id is too long."""
    text = member_id.encode()
    size = len(text)
    if size + 1 >= _LONG:
        return None
    return _HEAD(_FIXED_BYTES + size, correlation_id, 0, 0, 0, 0, size + 1) + text + _TAIL(epoch, interval_ms, -1, 0)
