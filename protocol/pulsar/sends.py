"""SEND frames: a producer's message, whose bytes the broker stores as they are.

After the command a frame has [0x0e01][CRC-32C][metadata size][metadata][payload], or the same without the first two; the checksum
covers what follows it. All of this is the *stored part*: it is what a MESSAGE frame ends with (``deliveries.py``).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from protocol.checksum import crc32c
from protocol.errors import ProtocolError
from protocol.pulsar.frames import COMMAND_AT, command_end
from protocol.pulsar.parsing import parse
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandSend
from protocol.wire import BytesLike

MAGIC_CRC32C = 0x0E01
CHECKED = 6  # bytes of magic and checksum

_HEADER = struct.Struct(">HII")  # magic, CRC, metadata size
_METADATA_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")
# A frame whose SEND is shorter than 128 bytes: both sizes, the type's tag and value, the SEND's tag, and its size.
_SHORT = struct.Struct(">III")
_SHORT_TAGS = 0x08063200 - 4
_SHORT_MAX = 131
_MAX_INT32 = 0x7FFFFFFF
_new = tuple.__new__


class StoredPart(NamedTuple):
    """Where things are in the bytes that are stored, which begin at ``start`` and end at ``end``. ``crc`` -1: none was sent."""

    start: int
    metadata: int
    payload: int
    end: int
    crc: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Send(NamedTuple):
    """A SEND. ``start`` to ``crc`` are its stored part, as positions in the frame. A transaction is left out: nobody gets one."""

    producer_id: int
    sequence_id: int
    num_messages: int  # what the client says; what the metadata says counts
    highest_sequence_id: int  # 0: as ``sequence_id``
    is_chunk: bool
    start: int
    metadata: int
    payload: int
    end: int
    crc: int


def read_send(frame: BytesLike) -> Send:
    """A whole SEND frame. The checksum is not verified (``crc_matches`` does that). Raises ProtocolError."""
    try:
        total, size, tags = _SHORT.unpack_from(frame)
        start = COMMAND_AT + size
        end = total + 4
        # The type, the tag of the SEND, and its size in one byte, which must reach to the end of the command.
        if tags - size != _SHORT_TAGS or size > _SHORT_MAX or end != len(frame):
            return _read_any_send(frame)
        magic, crc, metadata_size = _HEADER.unpack_from(frame, start)
        metadata = start + 10
        payload = metadata + metadata_size
        if magic != MAGIC_CRC32C or payload > end:
            return _read_any_send(frame)
        data = bytes(frame[:metadata])
        pos = COMMAND_AT + 4
        producer_id = sequence_id = -1
        num_messages, highest_sequence_id, is_chunk = 1, 0, False
        while pos < start:
            tag = data[pos]
            value = data[pos + 1]
            pos += 2
            if value > 0x7F:
                value &= 0x7F
                shift = 7
                while (byte := data[pos]) > 0x7F:
                    value |= (byte & 0x7F) << shift
                    shift += 7
                    pos += 1
                value |= byte << shift
                pos += 1
                if shift > 49:
                    return _read_any_send(frame)
            if tag == 0x10:
                sequence_id = value
            elif tag == 0x08:
                producer_id = value
            elif tag == 0x18 and value <= _MAX_INT32:
                num_messages = value
            elif tag == 0x30:
                highest_sequence_id = value
            elif tag == 0x38:
                is_chunk = value != 0
            else:
                return _read_any_send(frame)
    except (struct.error, IndexError):
        return _read_any_send(frame)
    if pos != start or producer_id < 0 or sequence_id < 0:
        return _read_any_send(frame)
    send: Send = _new(
        Send,
        (
            producer_id,
            sequence_id,
            num_messages,
            highest_sequence_id,
            is_chunk,
            start,
            metadata,
            payload,
            end,
            crc,
        ),
    )
    return send


def _read_any_send(frame: BytesLike) -> Send:
    """The same with protobuf: for fields that are rare, for an order that no client uses, and to say what is wrong."""
    start = command_end(frame)
    command = parse(BaseCommand, frame[COMMAND_AT:start])
    if not command.HasField("send"):
        raise ProtocolError("a SEND frame without a SEND")
    send = command.send
    return Send(
        send.producer_id,
        send.sequence_id,
        send.num_messages,
        send.highest_sequence_id,
        send.is_chunk,
        *read_stored_part(frame, start, len(frame)),
    )


def metadata_size(frame: BytesLike) -> int:
    """What the metadata of a SEND frame is said to take, without a look at anything else. 0 if that cannot be told."""
    try:
        start = COMMAND_AT + _SIZES.unpack_from(frame)[1]
        magic, _, size = _HEADER.unpack_from(frame, start)
        if magic != MAGIC_CRC32C:
            size = _METADATA_SIZE.unpack_from(frame, start)[0]
    except struct.error:
        return 0
    return int(size)


def read_stored_part(view: BytesLike, start: int = 0, end: int = -1) -> StoredPart:
    """The parts of what is stored of a message, from ``start`` to ``end`` (-1: to the end). Raises ProtocolError."""
    if end < 0:
        end = len(view)
    crc = -1
    try:
        magic, crc, size = _HEADER.unpack_from(view, start)
    except struct.error:
        magic = size = 0
    if magic == MAGIC_CRC32C:
        metadata = start + 10
    else:
        # Without a checksum the size of the metadata comes first, and no frame is so large that it could look like the magic.
        crc = -1
        metadata = start + 4
        try:
            size = _METADATA_SIZE.unpack_from(view, start)[0]
        except struct.error:
            raise ProtocolError("a message without metadata") from None
    payload = metadata + size
    if payload > end:
        raise ProtocolError(f"metadata of {size} bytes where {end - metadata} are left")
    stored: StoredPart = _new(StoredPart, (start, metadata, payload, end, crc))
    return stored


def crc_matches(view: BytesLike, stored: StoredPart | Send) -> bool:
    """Whether metadata and payload are those whose checksum the client sent. True if it sent none."""
    return stored.crc < 0 or crc32c(view[stored.metadata - 4 : stored.end]) == stored.crc


def write_stored_part(metadata: bytes, payload: BytesLike, *, checksum: bool = True) -> bytes:
    """The stored part of a message."""
    body = b"".join((_METADATA_SIZE.pack(len(metadata)), metadata, payload))
    if not checksum:
        return body
    return b"".join((MAGIC_CRC32C.to_bytes(2, "big"), crc32c(body).to_bytes(4, "big"), body))


def write_send(send: CommandSend, stored: BytesLike) -> bytes:
    """A SEND frame, as a client writes it."""
    command = BaseCommand(type=BaseCommand.Type.SEND, send=send).SerializeToString()
    return b"".join((_SIZES.pack(len(command) + 4 + len(stored), len(command)), command, stored))
