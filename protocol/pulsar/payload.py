"""The payload of an entry: one message, or a batch, compressed as a whole and then perhaps encrypted; and its codecs.

A batch is [size][SingleMessageMetadata][payload] for each message. Only compaction and the translation for Kafka's clients read
payloads; the broker otherwise passes them on.

Metadata states the payload's size before compression. A few bytes can claim to hold gigabytes, or really hold them: a claim is
checked against the caller's bound and against the most that the codec could yield before anything is allocated for it, and data
of any other length than claimed is refused, as clients refuse it. Pure.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import cramjam
import lz4.block

from protocol.errors import ProtocolError
from protocol.pulsar.frames import parse, varint
from protocol.pulsar.metadata import SMALLEST_BATCHED, is_chunk, is_encrypted
from protocol.pulsar.pulsar_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from protocol.wire import BytesLike

NONE: int = CompressionType.NONE
LZ4: int = CompressionType.LZ4
ZLIB: int = CompressionType.ZLIB
ZSTD: int = CompressionType.ZSTD
SNAPPY: int = CompressionType.SNAPPY

CODEC_NAMES = {NONE: "none", LZ4: "lz4", ZLIB: "zlib", ZSTD: "zstd", SNAPPY: "snappy"}

# The most bytes that a byte yields: of an LZ4 length, of two bits of deflate, of a zstd block that repeats a byte, of a copy in
# snappy. A little more for the bytes before the first of them.
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
    """``data`` decompressed, which must yield ``size`` bytes. Raises ProtocolError, also if ``size`` exceeds ``max_size``."""
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
        # One byte above the size shows that there is more; 0 would mean no bound.
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


# The most that an entry is decompressed to. Clients take any size that a compressed message of 5 MiB yields; this bounds the
# cost to a thread of the broker.
MAX_PAYLOAD_SIZE = 64 << 20

_SIZE = struct.Struct(">I")


class Batched(NamedTuple):
    """One message of a batch."""

    metadata: SingleMessageMetadata
    payload: memoryview


def is_readable(metadata: MessageMetadata) -> bool:
    """Whether the payload can be decompressed and split: not if it is encrypted or a chunk of a larger message."""
    return not is_encrypted(metadata) and not is_chunk(metadata)


def decompressed(metadata: MessageMetadata, payload: BytesLike, max_size: int = MAX_PAYLOAD_SIZE) -> BytesLike:
    """The payload of a readable entry. Raises ProtocolError, also for more than ``max_size`` bytes."""
    return decompress(metadata.compression, payload, metadata.uncompressed_size, max_size)


def split_batch(payload: BytesLike, count: int) -> Iterator[Batched]:
    """The messages of a decompressed batch. Raises ProtocolError, at the latest when it reaches invalid bytes."""
    view = memoryview(payload)
    if count < 1 or count * SMALLEST_BATCHED > len(view):
        raise ProtocolError(f"a batch of {count} messages in {len(view)} bytes")
    pos, end = 0, len(view)
    for _ in range(count):
        if end - pos < 4:
            raise ProtocolError("a batch that ends before its last message")
        (size,) = _SIZE.unpack_from(view, pos)
        start = pos + 4 + size
        if start > end:
            raise ProtocolError(f"metadata of {size} bytes where {end - pos - 4} are left")
        metadata = parse(SingleMessageMetadata, view[pos + 4 : start])
        pos = start + metadata.payload_size
        if not start <= pos <= end:
            raise ProtocolError(f"a message of {metadata.payload_size} bytes where {end - start} are left")
        yield Batched(metadata, view[start:pos])


def build_batch(messages: Iterable[tuple[bytes, BytesLike]]) -> bytearray:
    """The payload of a batch of these messages (metadata from ``single_metadata``, payload)."""
    out = bytearray()
    for metadata, payload in messages:
        out += _SIZE.pack(len(metadata))
        out += metadata
        out += payload
    return out


def single_metadata(
    payload_size: int,
    properties: Iterable[tuple[str, str]] = (),
    key: str | None = None,
    key_is_base64: bool = False,
    event_time: int = 0,
    null_value: bool = False,
) -> bytes:
    """A SingleMessageMetadata. Written by hand, because protobuf takes three times as long."""
    parts = [_property(name, value) for name, value in properties]
    if key is not None:
        data = key.encode()
        parts.append(b"\x12" + varint(len(data)) + data)
    parts.append(b"\x18" + varint(payload_size))
    if event_time:
        parts.append(b"\x28" + varint(event_time))
    if key_is_base64:
        parts.append(b"\x30\x01")
    if null_value:
        parts.append(b"\x48\x01")
    return b"".join(parts)


def _property(name: str, value: str) -> bytes:
    name_data, value_data = name.encode(), value.encode()
    pair = b"".join((b"\x0a", varint(len(name_data)), name_data, b"\x12", varint(len(value_data)), value_data))
    return b"\x0a" + varint(len(pair)) + pair
