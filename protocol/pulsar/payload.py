"""The payload of an entry: one message, or a batch of them, compressed as a whole and perhaps encrypted after that.

A batch is [size][SingleMessageMetadata][payload] for each message. The broker itself never looks into a payload; what compacts a
topic or serves it to Kafka's clients does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.pulsar.compression import decompress
from protocol.pulsar.metadata import SMALLEST_BATCHED, is_chunk, is_encrypted
from protocol.pulsar.parsing import parse
from protocol.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from protocol.pulsar.varint import varint
from protocol.wire import BytesLike

# The most that is decompressed of one entry. Clients take any size that a compressed message of 5 MiB decompresses to; this is
# what it costs a thread of the broker at most.
MAX_PAYLOAD_SIZE = 64 << 20

_SIZE = struct.Struct(">I")


class Batched(NamedTuple):
    """One message of a batch."""

    metadata: SingleMessageMetadata
    payload: memoryview


def is_readable(metadata: MessageMetadata) -> bool:
    """Whether the payload can be decompressed and split: not if it is encrypted, nor if it is a part of a larger message."""
    return not is_encrypted(metadata) and not is_chunk(metadata)


def decompressed(metadata: MessageMetadata, payload: BytesLike, max_size: int = MAX_PAYLOAD_SIZE) -> BytesLike:
    """The payload of a readable entry. Raises ProtocolError, also for one of more than ``max_size`` bytes."""
    return decompress(metadata.compression, payload, metadata.uncompressed_size, max_size)


def split_batch(payload: BytesLike, count: int) -> Iterator[Batched]:
    """The messages of a batch that is no longer compressed. Raises ProtocolError, at the latest when it reaches bad bytes."""
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
    """The payload of a batch of these messages: metadata, as ``single_metadata`` returns it, and payload of each."""
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
