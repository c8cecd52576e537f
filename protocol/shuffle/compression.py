"""Compressed buffers: eight bytes of header, little-endian (compressed size, original size), then one block.

The codec is not on the wire, so writers and readers must have the same configuration. LZ4 is a raw block, ZSTD a frame. Flink's
LZO is missing here: it is rare, and Python has it only on top of a system library. The broker forwards it, because it does not
look into buffers. Pure.
"""

from __future__ import annotations

import struct
from enum import Enum

import cramjam
import lz4.block

from protocol.errors import ProtocolError
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE
from protocol.wire import BytesLike, Reader

_SIZES = struct.Struct("<ii")
_HEADER_BYTES = _SIZES.size

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# 8 MiB: the largest window that Flink's library takes. A decoder allocates the window's memory before it reads any data.
_ZSTD_WINDOW_MAX = 1 << 23


class Codec(Enum):
    """Named as in Flink's ``taskmanager.network.compression.codec``."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


def compress(codec: Codec, data: BytesLike) -> bytes | None:
    """The block of ``data`` with its header. None if it would not be smaller: ``data`` is then to be sent uncompressed."""
    if codec is Codec.NONE or len(data) <= _HEADER_BYTES:
        return None
    block = lz4.block.compress(data, store_size=False) if codec is Codec.LZ4 else bytes(cramjam.zstd.compress(data))
    if len(block) + _HEADER_BYTES >= len(data):
        return None
    return b"".join((_SIZES.pack(len(block), len(data)), block))


def decompress(codec: Codec, data: BytesLike, max_size: int = DEFAULT_BUFFER_SIZE) -> bytes:
    """The decompressed bytes. Raises ProtocolError for damaged ``data`` and for more than ``max_size`` bytes."""
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
    # Both decoders write into memory of the stated size, which is within the bound, and fail if it is too small.
    try:
        if codec is Codec.LZ4:
            out: bytes = lz4.block.decompress(block, uncompressed_size=size)
        else:
            _check_zstd_frame(block, size)
            target = bytearray(size)
            out = bytes(memoryview(target)[: cramjam.zstd.decompress_into(block, target)])
    except (lz4.block.LZ4BlockError, cramjam.DecompressionError, OSError, ValueError) as error:
        raise ProtocolError(f"a bad {codec.value} block: {error}") from None
    if len(out) != size:
        raise ProtocolError(f"a compressed buffer of {len(out)} bytes that claims to be {size}")
    return out


def _check_zstd_frame(block: memoryview, size: int) -> None:
    """Raises ProtocolError unless it is a single frame (RFC 8878, section 3.1.1) with window and content in bounds."""
    reader = Reader(block)
    if reader.take(4, "a zstd frame") != _ZSTD_MAGIC:
        raise ProtocolError("a ZSTD block without its magic number")
    descriptor = reader.u8()
    single_segment = descriptor & 0x20
    if not single_segment:
        window = reader.u8()
        base = 1 << 10 + (window >> 3)
        if base + (base >> 3) * (window & 7) > _ZSTD_WINDOW_MAX:
            raise ProtocolError("a ZSTD block with a window of more than 8 MiB")
    reader.skip((0, 1, 2, 4)[descriptor & 3])  # dictionary id
    field = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    stated = int.from_bytes(reader.take(field), "little") + (256 if field == 2 else 0)
    if field and stated != size:
        raise ProtocolError(f"a ZSTD block of {stated} bytes that claims to be {size}")
    last = 0
    while not last:
        header = int.from_bytes(reader.take(3), "little")
        last, kind = header & 1, header >> 1 & 3
        reader.skip(1 if kind == 1 else header >> 3)  # 1: one byte, to be repeated
    if descriptor & 4:
        reader.skip(4)  # checksum
    if reader.remaining:
        raise ProtocolError(f"a ZSTD block with {reader.remaining} bytes after its end")
