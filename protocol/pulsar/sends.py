"""SEND frames: a producer's messages, whose bytes the broker stores unchanged.

After the command a frame has [0x0e01][CRC-32C][metadata size][metadata][payload], or the same without the first two; the checksum
covers the bytes after it. All of this is the *stored part*, with which a MESSAGE frame ends (``deliveries.py``).

``read_send`` reads any SEND. ``UsualSends`` reads a producer's SENDs by what they have in common with earlier ones. A message's
metadata is the producer's name, the sequence id and the time, followed by fields that are the same in message after message,
except the key and a batch's highest sequence id. Protobuf has read those of an earlier message, and ``UsualSends`` reads only the
differences: a SEND with its metadata and checksum takes 2.4 us, or 2.8 us with a key, instead of 3.9 us. It returns what
``read_send``, ``metadata.read_metadata`` and ``metadata.check_batch`` would, and leaves all other SENDs to them: another
producer, other fields, a field order that no client uses, a wrong checksum. A ``UsualSends`` is used by one thread at a time.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.pulsar.frames import COMMAND_AT, command_end
from protocol.pulsar.metadata import SMALLEST_BATCHED, is_batch, read_stored_metadata
from protocol.pulsar.parsing import parse, varint
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandSend, MessageMetadata
from protocol.wire import BytesLike

MAGIC_CRC32C = 0x0E01

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
    """Positions in the stored bytes, which begin at ``start`` and end at ``end``. ``crc`` -1: none was sent."""

    start: int
    metadata: int
    payload: int
    end: int
    crc: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Send(NamedTuple):
    """A SEND. ``start`` to ``crc`` are its stored part, as positions in the frame. It has no transaction: clients get none."""

    producer_id: int
    sequence_id: int
    num_messages: int  # by the client; the metadata's number is used
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
        (producer_id, sequence_id, num_messages, highest_sequence_id, is_chunk, start, metadata, payload, end, crc),
    )
    return send


def _read_any_send(frame: BytesLike) -> Send:
    """The same with protobuf: for rare fields, for an order that no client uses, and for the error of an invalid frame."""
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
    """The stated size of a SEND frame's metadata, without any other check. 0 if it cannot be read."""
    try:
        start = COMMAND_AT + _SIZES.unpack_from(frame)[1]
        magic, _, size = _HEADER.unpack_from(frame, start)
        if magic != MAGIC_CRC32C:
            size = _METADATA_SIZE.unpack_from(frame, start)[0]
    except struct.error:
        return 0
    return int(size)


def read_stored_part(view: BytesLike, start: int = 0, end: int = -1) -> StoredPart:
    """The parts of a message's stored bytes, from ``start`` to ``end`` (-1: to the end). Raises ProtocolError."""
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
        # Without a checksum the metadata's size is first, and no frame is large enough for it to look like the magic.
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
    """Whether metadata and payload match the client's checksum. True if it sent none."""
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


_STARTS = struct.Struct(">III")  # both sizes; the type's tag and value, the tag of the SEND, and its size
_USUAL_SENDS_SHORT_TAGS: Final = 0x08063200 - 4
_USUAL_SENDS_SHORT_MAX: Final = 131
# after magic, CRC, metadata size
_FIELDS_AT: Final = COMMAND_AT + 4
# The longest command and metadata of a SEND that ``UsualSends`` reads.
_MOST_BYTES: Final = 512
# Kinds of metadata that are remembered, and how many SENDs in a row may be unusual before it gives up.
_MOST_KINDS: Final = 32
_MOST_MISSES: Final = 64
_KEY: Final = 0x32  # tag of partition_key
_HIGHEST: Final = b"\xc0\x01"  # tag of highest_sequence_id


class UsualSend(NamedTuple):
    """``start`` and ``end`` of the stored part are positions in the bytes that ``read`` got. The message has no chunk, delivery
    time, encryption or marker."""

    sequence_id: int
    highest_sequence_id: int  # of the command; 0: as ``sequence_id``
    messages: int
    batched: bool
    publish_ms: int
    start: int
    end: int


class UsualSends:
    __slots__ = ("_kinds", "_misses", "_name", "_producer", "_time", "_time_ms")

    def __init__(self, producer_id: int) -> None:
        self._producer = b"\x08" + varint(producer_id) + b"\x10"  # the command up to the sequence id
        self._name = b""  # the metadata up to the sequence id; empty: none is known yet
        self._time, self._time_ms = b"none", 0  # of the last message; at first a value of no message
        # By the bytes after the time: messages, whether they are a batch, and the smallest payload that can hold them.
        self._kinds: dict[bytes, tuple[int, bool, int]] = {}
        self._misses = 0

    def read(self, frames: memoryview, at: int, end: int) -> UsualSend | None:
        """The SEND frame in ``frames[at:end]``. None: it is unusual or invalid."""
        if self._misses >= _MOST_MISSES or not self._name:
            return None
        try:
            _, size, tags = _STARTS.unpack_from(frames, at)
            start = at + COMMAND_AT + size
            magic, crc, metadata_size = _HEADER.unpack_from(frames, start)
            payload = start + 10 + metadata_size
            if (
                tags - size != _USUAL_SENDS_SHORT_TAGS
                or size > _USUAL_SENDS_SHORT_MAX
                or magic != MAGIC_CRC32C
                or payload > end
                or payload - at > _MOST_BYTES
            ):
                return self._missed()
            data = bytes(frames[at + _FIELDS_AT : payload])
            if not data.startswith(self._producer):
                return None
            pos = first = len(self._producer)
            sequence_id = data[pos]
            pos += 1
            if sequence_id > 0x7F:
                sequence_id, pos = _varint(data, pos, sequence_id)
            sequence = data[first:pos]
            command_end = size - 4
            highest = 0
            while pos < command_end:
                tag, value = data[pos], data[pos + 1]
                pos += 2
                if value > 0x7F:
                    value, pos = _varint(data, pos, value)
                if tag == 0x30:
                    highest = value
                elif tag != 0x18 or value > 0x7FFFFFFF:  # the number of messages: the metadata's is used
                    return self._missed()
            before = self._name + sequence + b"\x18"
            after = command_end + 10
            if pos != command_end or not data.startswith(before, after):
                return self._missed()
            after += len(before)
            time = data[after : after + 6]  # until the year 2109
            if time != self._time:
                time_ms, time_end = _varint(time, 1, time[0])
                if time_end != 6:
                    return self._missed()
                self._time, self._time_ms = time, time_ms
            rest = data[after + 6 :]
            kind = self._kinds.get(rest) or self._kinds.get(_kind_of(rest))
        except (struct.error, IndexError):
            return self._missed()
        if kind is None:
            return self._missed()
        messages, batched, least = kind
        if end - payload < least or crc32c(frames[start + 6 : end]) != crc:
            return self._missed()
        self._misses = 0
        send: UsualSend = _new(UsualSend, (sequence_id, highest, messages, batched, self._time_ms, start, end))
        return send

    def learn(self, send: Send, frame: memoryview, metadata: MessageMetadata) -> None:
        """Remembers ``frame``, which ``read_send`` had to read and which is valid."""
        if self._misses >= _MOST_MISSES or send.payload > _MOST_BYTES:
            return
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        data = bytes(frame[send.metadata : send.payload])
        try:
            if data[0] != 0x0A or data[1] > 0x7F:
                return
            name = data[: data[1] + 2] + b"\x10"
            after = name + varint(metadata.sequence_id) + b"\x18" + varint(metadata.publish_time)
            if not data.startswith(after):
                return
            kind = _kind_of(data[len(after) :])
            rest = read_stored_metadata(kind)
        except (IndexError, ProtocolError):
            return
        if (
            rest.HasField("producer_name")  # the last of several would count
            or rest.HasField("sequence_id")
            or rest.HasField("publish_time")
            or rest.encryption_keys
            or rest.HasField("deliver_at_time")
            or rest.HasField("marker_type")
            or rest.HasField("num_chunks_from_msg")
            or rest.num_messages_in_batch < 1
        ):
            return
        messages = rest.num_messages_in_batch
        self._name = name
        self._kinds[kind] = messages, is_batch(rest), 0 if messages == 1 else messages * SMALLEST_BATCHED

    def _missed(self) -> UsualSend | None:
        self._misses += 1
        return None


def _kind_of(rest: bytes) -> bytes:
    """The fields without the key at the beginning and the highest sequence id at the end. IndexError for fields that end too
    early."""
    if rest and rest[0] == _KEY:
        size, at = rest[1], 2
        if size > 0x7F:
            size, at = _varint(rest, at, size)
        if at + size > len(rest):
            raise IndexError
        rest = rest[at + size :]
    at = rest.rfind(_HIGHEST)
    if at >= 0 and _varint(rest, at + 3, rest[at + 2])[1] == len(rest):
        rest = rest[:at]
    return rest


def _varint(data: bytes, pos: int, value: int) -> tuple[int, int]:
    """A varint whose first byte is ``value``, and the position after it. IndexError if it is too long."""
    if value <= 0x7F:
        return value, pos
    value &= 0x7F
    shift = 7
    while (byte := data[pos]) > 0x7F:
        value |= (byte & 0x7F) << shift
        shift += 7
        pos += 1
        if shift > 56:
            raise IndexError
    return value | byte << shift, pos + 1
