"""Compressed buffers: eight bytes of header, little-endian (compressed size, original size), then one block.

Which codec it is does not stand on the wire: writers and readers have to agree. LZ4 is a raw block, ZSTD a frame. Flink
also has LZO, which is not served: it is rare, and Python has it only on top of a system library. A broker does not look
into buffers, so it passes LZO on like anything else.
"""

from __future__ import annotations

import struct
from enum import Enum

import cramjam
import lz4.block

from protocol.errors import ProtocolError
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE
from protocol.wire import BytesLike

_SIZES = struct.Struct("<ii")
_HEADER_BYTES = _SIZES.size


class Codec(Enum):
    """Named as in Flink's ``taskmanager.network.compression.codec``."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


def compress(codec: Codec, data: BytesLike) -> bytes | None:
    """The block of ``data`` with its header; None if it would not be smaller, and ``data`` is to be sent as it is."""
    if codec is Codec.NONE or len(data) <= _HEADER_BYTES:
        return None
    block = lz4.block.compress(data, store_size=False) if codec is Codec.LZ4 else bytes(cramjam.zstd.compress(data))
    if len(block) + _HEADER_BYTES >= len(data):
        return None
    return b"".join((_SIZES.pack(len(block), len(data)), block))


def decompress(codec: Codec, data: BytesLike, max_size: int = DEFAULT_BUFFER_SIZE) -> bytes:
    """What ``compress`` made ``data`` from. ProtocolError if it is not that, or is above ``max_size`` bytes."""
    view = memoryview(data)
    if codec is Codec.NONE:
        raise ProtocolError("a compressed buffer where no codec is set")
    if len(view) < _HEADER_BYTES:
        raise ProtocolError("a compressed buffer without its header")
    compressed_size, size = _SIZES.unpack_from(view)
    if compressed_size != len(view) - _HEADER_BYTES:
        raise ProtocolError(f"a compressed block of {compressed_size} bytes in a buffer of {len(view)}")
    if not 0 <= size <= max_size:
        raise ProtocolError(f"a compressed buffer of {size} bytes: at most {max_size} have room here")
    block = view[_HEADER_BYTES:]
    # Both write into memory of the size that is stated, which is within the bound, and fail where it does not do.
    try:
        if codec is Codec.LZ4:
            out: bytes = lz4.block.decompress(block, uncompressed_size=size)
        else:
            room = bytearray(size)
            out = bytes(memoryview(room)[: cramjam.zstd.decompress_into(block, room)])
    except (lz4.block.LZ4BlockError, cramjam.DecompressionError, OSError, ValueError) as error:
        raise ProtocolError(f"a bad {codec.value} block: {error}") from None
    if len(out) != size:
        raise ProtocolError(f"a compressed buffer of {len(out)} bytes that claims to be {size}")
    return out
