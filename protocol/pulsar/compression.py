"""The codecs of Pulsar's payloads, with a bound on the decompressed size.

Metadata says how large a payload was before it was compressed. A few bytes can claim to hold gigabytes, or really hold them: a
claim is checked against the caller's bound and against the most that the codec could yield, before anything is allocated for it,
and whatever is not exactly as long as claimed is refused, as clients refuse it.
"""

from __future__ import annotations

import zlib

import cramjam
import lz4.block

from protocol.errors import ProtocolError
from protocol.pulsar.pulsar_pb2 import CompressionType
from protocol.wire import BytesLike

NONE: int = CompressionType.NONE
LZ4: int = CompressionType.LZ4
ZLIB: int = CompressionType.ZLIB
ZSTD: int = CompressionType.ZSTD
SNAPPY: int = CompressionType.SNAPPY

CODEC_NAMES = {NONE: "none", LZ4: "lz4", ZLIB: "zlib", ZSTD: "zstd", SNAPPY: "snappy"}

# The most bytes that one byte yields: of an LZ4 length, of two bits of deflate, of a zstd block that repeats a byte, of a copy in
# snappy. A little more for what stands before the first of them.
_LARGEST_RATIO = {LZ4: 255, ZLIB: 1032, ZSTD: 32 * 1024, SNAPPY: 22}


def compress(codec: int, data: BytesLike) -> bytes:
    """``data`` as a client compresses it."""
    if codec == NONE:
        return bytes(data)
    if codec == LZ4:
        return bytes(lz4.block.compress(data, store_size=False))
    if codec == ZLIB:
        return zlib.compress(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=1))
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    raise ValueError(f"no codec has the number {codec}")


def decompress(codec: int, data: BytesLike, size: int, max_size: int) -> BytesLike:
    """``data`` decompressed, which must yield ``size`` bytes. Raises ProtocolError, also if that is more than ``max_size``."""
    if codec == NONE:
        return data
    if codec not in _LARGEST_RATIO:
        raise ProtocolError(f"no codec has the number {codec}")
    if size > max_size:
        raise ProtocolError(f"compressed data of {size} bytes, where {max_size} are read")
    if size > len(data) * _LARGEST_RATIO[codec]:
        raise ProtocolError(f"{CODEC_NAMES[codec]} data of {len(data)} bytes that claims to be {size}")
    try:
        out = _decompress(codec, data, size)
    except (
        cramjam.DecompressionError,
        lz4.block.LZ4BlockError,
        zlib.error,
        OSError,
        ValueError,
        OverflowError,
    ) as error:
        raise ProtocolError(f"bad {CODEC_NAMES[codec]} data: {error}") from None
    if len(out) != size:
        raise ProtocolError(f"{CODEC_NAMES[codec]} data of {len(out)} bytes that claims to be {size}")
    return out


def _decompress(codec: int, data: BytesLike, size: int) -> BytesLike:
    if codec == LZ4:
        return bytes(lz4.block.decompress(data, uncompressed_size=size))
    if codec == ZLIB:
        decompressor = zlib.decompressobj()
        # One byte more shows that there is more; 0 would mean no bound.
        out = decompressor.decompress(data, size + 1)
        if not decompressor.eof and len(out) <= size:
            raise ProtocolError("zlib data that ends too early")
        return out
    room = bytearray(size)
    if codec == ZSTD:
        written = cramjam.zstd.decompress_into(data, room)
    else:
        written = cramjam.snappy.decompress_raw_into(data, room)
    return memoryview(room)[:written]
