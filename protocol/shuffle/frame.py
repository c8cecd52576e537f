"""The header of every frame of the shuffle protocol: the frame's length (header included), a magic number, an id."""

from __future__ import annotations

import struct
from functools import lru_cache

from protocol.errors import ProtocolError
from protocol.frames import DEFAULT_MAX_FRAME
from protocol.wire import BytesLike

MAGIC = 0xBADC0FFE
MAGIC_BYTES = MAGIC.to_bytes(4, "big")

HEADER = struct.Struct(">iIB")  # length, magic, id
HEADER_BYTES = HEADER.size

# Ids from here on belong to the frames of the writer extension.
FIRST_WRITER_ID = 64

_LENGTH_AND_MAGIC = struct.Struct(">iI")
# Frame lengths, of both kinds, with a cached struct. A peer that sends full buffers has one or two.
_LENGTHS = 128


def frame_size(view: BytesLike, limit: int = DEFAULT_MAX_FRAME) -> int:
    """Size of the frame at the beginning of ``view``, header included; 0 while there are too few bytes.

    Raises ProtocolError for a length below 9 or above ``limit`` and for a wrong magic number, as soon as it has wrong bytes.
    """
    if len(view) < 8:
        _check_beginning(view, limit)
        return 0
    length: int
    length, magic = _LENGTH_AND_MAGIC.unpack_from(view)
    if magic != MAGIC:
        raise ProtocolError(f"a frame whose magic number is {magic:08x}")
    if length < HEADER_BYTES or length > limit:
        raise ProtocolError(f"a frame of {length} bytes: {HEADER_BYTES} to {limit} are allowed")
    return length


def _check_beginning(view: BytesLike, limit: int) -> None:
    if len(view) >= 4:
        length = int.from_bytes(view[:4], "big", signed=True)
        if length < HEADER_BYTES or length > limit:
            raise ProtocolError(f"a frame of {length} bytes: {HEADER_BYTES} to {limit} are allowed")
        if not MAGIC_BYTES.startswith(bytes(view[4:])):
            raise ProtocolError(f"a frame whose magic number begins with {bytes(view[4:]).hex()}")


@lru_cache(_LENGTHS)
def whole_frame(header: str, length: int) -> struct.Struct:
    """A struct for frames of this length: the fields of ``header``, a struct format, and the payload in one piece."""
    return struct.Struct(f"{header}{length - struct.calcsize(header)}s")
