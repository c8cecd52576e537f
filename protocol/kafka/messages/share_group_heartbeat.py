"""ShareGroupHeartbeat (76) without changes, the usual case: read without Kafka's schema.

Such a request has the group, the member and its epoch, followed by constant bytes. All other requests are left to
``schema/control.py``. The response has the form of ConsumerGroupHeartbeat's (``consumer_group_heartbeat.py``). Pure.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_I32 = struct.Struct(">i").unpack_from
# No rack, no names of topics, no tagged fields.
_UNCHANGED = b"\0\0\0"
# Only texts whose encoded length (length + 1, because 0 is null) takes one byte are read.
_LONG = 0x80


class Unchanged(NamedTuple):
    """A heartbeat of a member without changes."""

    group_id: str
    member_id: str
    member_epoch: int


def parse_unchanged(frame: memoryview, pos: int) -> Unchanged | None:
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
        if frame[end + 4 :] != _UNCHANGED:
            return None
    except (IndexError, UnicodeDecodeError, struct.error):
        return None
    return Unchanged(group_id, member_id, epoch)
