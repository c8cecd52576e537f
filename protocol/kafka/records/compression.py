"""The four codecs of record batches, as Kafka's clients frame them, with a bound on the decompressed size.

Codec ids are those of the batch's attributes: 1 gzip, 2 snappy (xerial's framing, or raw as librdkafka writes it), 3 lz4 frames,
4 zstd. A few bytes can claim to hold gigabytes, or really hold them: no function allocates more than the caller's bound, and a
size stated in the data is checked against the most that the data could yield before it is used. Pure.

Libraries: the standard library's zlib is as fast as any other; lz4 compresses ten times faster than cramjam's. Those two are
imported with the first data of their codecs: they take 2-3 MB, and a broker passes batches on as they are.
"""

from __future__ import annotations

import struct
import zlib

from protocol.errors import ProtocolError
from protocol.wire import BytesLike, Reader

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_GZIP_WINDOW = 31  # asks zlib for the largest window and a gzip header

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")  # magic, version, oldest compatible version
_XERIAL_BLOCK = 32 * 1024  # xerial's default block
_I32 = struct.Struct(">i")
# A copy element of three bytes yields at most 64 bytes: snappy's best ratio.
_SNAPPY_RATIO = 22

# The most bytes that a byte of compressed data yields: in deflate two bits may stand for 258 bytes, in lz4 a byte of a length for
# 255, and a zstd block of four bytes for 128 KiB.
LARGEST_RATIO = {GZIP: 1032, SNAPPY: _SNAPPY_RATIO, LZ4: 255, ZSTD: 32 * 1024}

_LZ4_PIECE = 64 * 1024

_MAGICS = {GZIP: b"\x1f\x8b\x08", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f: a skippable frame of zstd
_ELEMENTS = 64  # of raw snappy that are checked
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50  # to ...5F
_ZSTD_BLOCK = 128 * 1024  # the largest block of any frame
_U32LE = struct.Struct("<I")

# A member, frame or block costs a few microseconds however little it holds. Clients write one member or frame, of blocks of 32
# KiB (snappy) or 128 KiB (zstd), smaller where they flush. So ``_PARTS_MAX`` are read, and one more for each so many bytes of
# either side.
_PARTS_MAX = 1024
_PART_COMPRESSED = 256
_PART_BYTES = 32 * 1024
# Input that zlib gets at a time, because it copies the bytes after a member.
_GZIP_PIECE = 64 * 1024


class DecompressedTooLarge(ProtocolError):
    """The decompressed data would exceed the bound."""


def compress(codec: int, data: BytesLike, level: int | None = None) -> bytes:
    """``data`` compressed with codec 1 to 4. ``level``: on the codec's own scale; None: its default; snappy has none."""
    if codec == GZIP:
        compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
        return compressor.compress(data) + compressor.flush()
    if codec == SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == LZ4:
        import lz4.frame

        # Java's reader accepts only frames whose blocks do not depend on each other.
        return bytes(lz4.frame.compress(data, compression_level=level or 0, block_linked=False))
    if codec == ZSTD:
        import cramjam

        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise ValueError(f"no codec has the id {codec}")


def decompress(codec: int, data: BytesLike, max_size: int) -> bytes:
    """``data`` decompressed with codec 1 to 4. Raises ProtocolError for invalid data and for more than ``max_size`` bytes."""
    if codec == GZIP:
        return _decompress_gzip(data, max_size)
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), max_size)
    if codec == LZ4:
        return _decompress_lz4(data, max_size)
    if codec == ZSTD:
        return _decompress_zstd(memoryview(data), max_size)
    raise ProtocolError(f"no codec has the id {codec}")


def begins_as(codec: int, data: BytesLike, least: int) -> bool:
    """Whether the data begins as the codec's data does. Raw snappy has no magic number, but states the decompressed size, which
    must be at least ``least`` bytes, and its first elements must be valid."""
    start = bytes(data[:10])
    if codec != SNAPPY:
        magic = _MAGICS.get(codec)
        if codec == ZSTD and start[1:4] == _SKIPPABLE and start[0] & 0xF0 == 0x50:
            return True
        return magic is not None and start.startswith(magic)
    if start.startswith(_XERIAL_MAGIC):
        return True
    size = shift = 0
    for at, byte in enumerate(start[:5]):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            fits = least <= size <= len(data) * LARGEST_RATIO[SNAPPY]
            return fits and _begins_with_elements(data, at + 1, size)
    return False


def _begins_with_elements(data: BytesLike, pos: int, size: int) -> bool:
    """Whether ``data[pos:]`` can be the first elements of raw snappy of ``size`` decompressed bytes: complete literals, and
    copies of bytes before them."""
    end, made = len(data), 0
    try:
        for _ in range(_ELEMENTS):
            if pos == end:
                return made == size
            tag = data[pos]
            kind, length = tag & 3, (tag >> 2) + 1
            if kind == 0:
                extra = max(0, length - 60)  # bytes of the length
                if extra:
                    length = int.from_bytes(data[pos + 1 : pos + 1 + extra], "little") + 1
                pos += 1 + extra + length
            elif kind == 1:
                length = (tag >> 2 & 7) + 4
                offset = (tag >> 5) << 8 | data[pos + 1]
                pos += 2
            else:
                width = 2 if kind == 2 else 4
                offset = int.from_bytes(data[pos + 1 : pos + 1 + width], "little")
                pos += 1 + width
            if pos > end or (kind and not 0 < offset <= made):
                return False
            made += length
    except IndexError:
        return False
    return made <= size


def largest_size(codec: int, data: BytesLike) -> int:
    """An upper bound for the decompressed size, without decompressing. Raises ProtocolError for bytes of another codec."""
    if codec == ZSTD:
        return _zstd_bound(memoryview(data), 0)
    if codec not in LARGEST_RATIO:
        raise ProtocolError(f"no codec has the id {codec}")
    return len(data) * LARGEST_RATIO[codec]


def _too_large(max_size: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"compressed data of more than {max_size} bytes")


def _decompress_gzip(data: BytesLike, max_size: int) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = []
    left, position = max_size, 0
    for _ in range(_PARTS_MAX):  # a gzip stream may have several members
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            piece = view[position : position + _GZIP_PIECE]
            if not piece:
                raise ProtocolError("gzip data that ends too early")
            try:
                # One byte above the bound shows that it is exceeded; 0 would mean no bound.
                part = member.decompress(piece, left + 1)
            except zlib.error as error:
                raise ProtocolError(f"bad gzip data: {error}") from None
            left -= len(part)
            if left < 0:
                raise _too_large(max_size)
            parts.append(part)
            position += len(piece)
        position -= len(member.unused_data)
        if position == len(view):
            return b"".join(parts)
    raise _too_many(_PARTS_MAX)


def _most_parts(data: memoryview, max_size: int) -> int:
    return _PARTS_MAX + len(data) // _PART_COMPRESSED + max_size // _PART_BYTES


def _too_many(parts: int) -> ProtocolError:
    return ProtocolError(f"compressed data of more than {parts} parts")


def _compress_xerial(data: memoryview) -> bytes:
    import cramjam

    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts.append(_I32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_size: int) -> bytes:
    if data[:8] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, max_size)
    reader = Reader(data, 8)
    reader.skip(8)  # both versions; only version 1 exists
    parts: list[bytes] = []
    left = max_size
    most = _most_parts(data, max_size)
    while reader.remaining:
        if len(parts) == most:
            raise _too_many(most)
        block = _decompress_snappy_block(reader.bytes(), left)
        left -= len(block)
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy_block(data: memoryview, max_size: int) -> bytes:
    import cramjam

    size = Reader(data).uvarint()
    if size > max_size:
        raise _too_large(max_size)
    if size > len(data) * _SNAPPY_RATIO:
        raise ProtocolError(f"snappy data of {len(data)} bytes that claims to be {size}")
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"bad snappy data: {error}") from None


def _decompress_lz4(data: BytesLike, max_size: int) -> bytes:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    parts: list[bytes] = []
    left = max_size
    piece = max(_LZ4_PIECE, 4 * len(data))
    rest: BytesLike = data
    while not decompressor.eof:
        try:
            part = bytes(decompressor.decompress(rest, max_length=min(piece, left + 1)))
        except (RuntimeError, EOFError) as error:
            raise ProtocolError(f"bad lz4 data: {error}") from None
        left -= len(part)
        if left < 0:
            raise _too_large(max_size)
        if not part and not decompressor.eof:
            raise ProtocolError("lz4 data that ends too early")
        parts.append(part)
        rest = b""  # the decompressor keeps unused input
    return b"".join(parts)


def _decompress_zstd(data: memoryview, max_size: int) -> bytes:
    import cramjam

    bound = _zstd_bound(data, max_size)
    out = bytearray(min(bound, max_size))
    try:
        size = cramjam.zstd.decompress_into(data, out)
    except (cramjam.DecompressionError, OSError) as error:
        if bound > max_size:
            raise _too_large(max_size) from None
        raise ProtocolError(f"bad zstd data: {error}") from None
    return bytes(memoryview(out)[:size])


def _zstd_bound(data: memoryview, max_size: int) -> int:
    """The most bytes that the frames in ``data`` can yield, from their block headers (RFC 8878, section 3.1.1).

    Where a frame states a smaller size, that size is used, so that no buffer is larger than necessary. The more bytes
    ``max_size`` allows, the more frames and blocks there may be.
    """
    reader = Reader(data)
    total = 0
    most = left = _most_parts(data, max_size)
    while reader.remaining:
        left -= 1
        if left < 0:
            raise _too_many(most)
        (magic,) = _U32LE.unpack(reader.take(4))
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            reader.skip(_U32LE.unpack(reader.take(4))[0])
            continue
        if magic != _ZSTD_MAGIC:
            raise ProtocolError("zstd data without its magic number")
        descriptor = reader.u8()
        single_segment = descriptor & 0x20
        if not single_segment:
            reader.skip(1)  # window size
        reader.skip((0, 1, 2, 4)[descriptor & 3])  # dictionary id
        field = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        stated = int.from_bytes(reader.take(field), "little") + (256 if field == 2 else 0)
        possible = 0
        last = 0
        while not last:
            left -= 1
            if left < 0:
                raise _too_many(most)
            header = int.from_bytes(reader.take(3), "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            if kind == 1:  # one byte, repeated
                possible += min(size, _ZSTD_BLOCK)
                reader.skip(1)
            else:
                possible += size if kind == 0 else _ZSTD_BLOCK
                reader.skip(size)
        if descriptor & 4:
            reader.skip(4)  # content checksum
        total += min(stated, possible) if field else possible
    return total
