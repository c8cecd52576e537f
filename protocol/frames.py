"""Length-prefixed frames: four bytes, big-endian, that state how many bytes follow; and the checksum of Kafka's record batches.

Pure functions over a buffer that the caller owns; every frame includes its prefix. The reactor reads the socket and keeps the
rest of an incomplete frame. ``crc32c``: see ``checksum.py``.
"""

from __future__ import annotations

import struct

from protocol.checksum import crc32c
from protocol.errors import ProtocolError
from protocol.wire import BytesLike

__all__ = ["crc32c"]


LENGTH = struct.Struct(">i")

# 100 MiB: Kafka's socket.request.max.bytes, so that its clients agree.
DEFAULT_MAX_FRAME = 104857600


def frame_size(buffer: BytesLike, pos: int = 0, limit: int = DEFAULT_MAX_FRAME) -> int | None:
    """The size of the frame at ``pos``, prefix included; None while its four length bytes are incomplete.

    Raises ProtocolError if the length is negative or above ``limit`` (the prefix is not counted).
    """
    if len(buffer) - pos < 4:
        return None
    size: int = LENGTH.unpack_from(buffer, pos)[0]
    if size < 0 or size > limit:
        raise ProtocolError(f"a frame of {size} bytes, the limit is {limit}")
    return size + 4


def split_frames(buffer: BytesLike, limit: int = DEFAULT_MAX_FRAME) -> tuple[list[memoryview], int]:
    """All whole frames in ``buffer``, in order, and the number of bytes that they take. An incomplete frame is omitted."""
    view = memoryview(buffer)
    frames: list[memoryview] = []
    pos = 0
    while True:
        size = frame_size(view, pos, limit)
        if size is None or pos + size > len(view):
            return frames, pos
        frames.append(view[pos : pos + size])
        pos += size


def framed(body: BytesLike) -> bytes:
    """``body``, prefixed with its length."""
    return LENGTH.pack(len(body)) + body


def with_correlation_id(frame: bytes, correlation_id: int) -> bytes:
    """A cached response frame with another correlation id, which is bytes 4 to 7 in every version."""
    return frame[:4] + LENGTH.pack(correlation_id) + frame[8:]
