"""Frames of Pulsar's protocol, the command at the beginning of each, and protobuf's parser, made as strict as the others here.

A frame is [total size][command size][command], in SEND and MESSAGE followed by metadata and payload (``sends.py``,
``deliveries.py``). Sizes are 32 bits, big-endian; the total counts the bytes after itself. Positions count from the beginning of
the frame. Commands pass through protobuf, except those that are sent for every message (``deliveries.py``, by hand). Pure.

While parsing a hostile command, protobuf may allocate thirty times its size, and take up to 30 ms for the largest command that is
read: so commands have a lower bound than frames.

Protobuf accepts messages without their required fields, which clients do not, and strings that are not UTF-8, which it returns as
``bytes``. Both become ProtocolError here (``parse``). A few messages are encoded by hand because protobuf takes several times as
long; ``varint`` is for these.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, TypeVar

from protocol.errors import ProtocolError
from protocol.frames import split_frames
from protocol.pulsar.pulsar_pb2 import BaseCommand, DecodeError, Message
from protocol.wire import BytesLike

M = TypeVar("M", bound=Message)

_STRING = 9  # FieldDescriptor.TYPE_STRING

# The most strings of a command: many times the properties of any producer or consumer. Checking them takes 10 ms.
MOST_TEXTS = 10_000
# The most parts of a command, enough for 1,300 properties. Walking over so many takes 3 ms; protobuf parses them in 0.2 ms.
MOST_PARTS = 4_000
# Shorter commands are not walked over: protobuf parses them in 2 ms, whatever they hold.
_SHORT = 64 << 10


def check_parts(kind: type[Message], data: BytesLike, most: int = MOST_PARTS) -> None:
    """Raises ProtocolError for a long message with more than ``most`` fields, nested ones included. To be called before protobuf
    parses it, which takes 25 ms for a megabyte of the smallest fields, while no other thread gets the interpreter."""
    if len(data) > _SHORT:
        try:
            _count(kind.DESCRIPTOR, memoryview(data), 0, len(data), most)
        except IndexError:
            raise ProtocolError("a command that ends within a field") from None


def _count(descriptor: Any, data: memoryview, pos: int, end: int, left: int) -> int:
    """The number of fields that may still follow."""
    while pos < end:
        left -= 1
        if left < 0:
            raise ProtocolError("a command with too many parts")
        key, pos = _varint(data, pos)
        kind = key & 7
        if kind == 0:
            _, pos = _varint(data, pos)
        elif kind == 1:
            pos += 8
        elif kind == 5:
            pos += 4
        elif kind == 2:
            size, pos = _varint(data, pos)
            field = descriptor.fields_by_number.get(key >> 3)
            if pos + size > end:
                raise ProtocolError("a command with a field that is longer than the command")
            if field is not None and field.message_type is not None:
                left = _count(field.message_type, data, pos, pos + size, left)
            pos += size
        else:
            raise ProtocolError(f"a command with a field of wire type {kind}")
    return left


def _varint(data: memoryview, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise ProtocolError("a number of more than 64 bits")


def parse(kind: type[M], data: BytesLike) -> M:
    """A message with all required fields. Its text may still be bytes: see ``check_text`` and ``as_bytes``."""
    try:
        message = kind.FromString(data)
    except (DecodeError, ValueError) as error:
        raise _unparsed(kind, error) from None
    if not message.IsInitialized():
        raise ProtocolError(f"a {kind.__name__} without a required field")
    return message


def parse_partial(kind: type[M], data: BytesLike) -> M:
    """Like ``parse``, in half the time, for a caller that checks the required fields itself."""
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError) as error:  # ValueError: protobuf without its C library checks UTF-8 itself
        raise _unparsed(kind, error) from None


def _unparsed(kind: type[Message], error: Exception) -> ProtocolError:
    return ProtocolError(f"bytes that are not a {kind.__name__}: {error}")


def check_text(message: Message, most: int = MOST_TEXTS) -> int:
    """Raises ProtocolError unless every string in the message is text, and for more than ``most`` strings.

    Returns how many more strings would be allowed. Takes 3 us for a usual command, and 1 us for each pair of properties.
    """
    for field, value in message.ListFields():
        if field.message_type is not None:
            if _has_text(field.message_type):
                # Only a repeated field is a sequence.
                for part in (value,) if isinstance(value, Message) else value:
                    most = check_text(part, most)
        elif field.type == _STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                most -= 1
                if not isinstance(text, str):
                    raise ProtocolError(f"{field.full_name} is not UTF-8")
    if most < 0:
        raise ProtocolError("a command with too many properties")
    return most


@cache
def _has_text(descriptor: Any) -> bool:
    """Whether a message of this type can have strings. Commands with a hundred thousand ids cannot."""
    return any(
        field.type == _STRING or (field.message_type not in (None, descriptor) and _has_text(field.message_type))
        for field in descriptor.fields
    )


def as_bytes(text: Any) -> bytes:
    """The bytes of a string field, which may hold any bytes."""
    return text.encode() if isinstance(text, str) else bytes(text)


# The first byte of a varint, by the number's lowest seven bits: where no other byte follows, and where some do. Numbers that
# ascend by small steps mostly share the other bytes, so these are not computed for each number.
LAST = [bytes((value,)) for value in range(0x80)]
MORE = [bytes((value | 0x80,)) for value in range(0x80)]
_three = struct.Struct("3B").pack
_four = struct.Struct("4B").pack
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def varint(value: int) -> bytes:
    """A number of at most 64 bits; negative numbers as protobuf encodes those of its signed types."""
    if 0 <= value < 0x10000000:
        if value < 0x80:
            return LAST[value]
        if value < 0x4000:
            return MORE[value & 0x7F] + LAST[value >> 7]
        if value < 0x200000:
            return _three(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
        return _four(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21)
    value &= _MASK_64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# The largest metadata and payload of a message; CONNECTED tells it to the client.
DEFAULT_MAX_MESSAGE_SIZE = 5 << 20
# What a frame may have in addition.
FRAME_PADDING = 10 << 10
# The largest command: an ACK of 10,000 ids with their index sets, or a schema, needs less than this.
MAX_COMMAND_SIZE = 1 << 20

# The request id of a command that answers no request: -1 as an unsigned number.
UNASKED = 2**64 - 1

COMMAND_AT = 8
_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")
_TYPE_TAG = 0x08
_SMALLEST_FRAME = 6  # the command's size, and a command of only its type

# Type -> name of its field in BaseCommand: the field's number is the type.
FIELDS: dict[int, str] = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.message_type}

# Commands that name thousands of messages or topics.
_MANY_PARTS = frozenset(
    {
        BaseCommand.Type.ACK,
        BaseCommand.Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        BaseCommand.Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        BaseCommand.Type.WATCH_TOPIC_LIST_SUCCESS,
        BaseCommand.Type.WATCH_TOPIC_UPDATE,
    }
)


def frame_size(data: BytesLike, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> int:
    """The size of the frame that begins ``data``, with its first four bytes; 0 while these are incomplete.

    Raises ProtocolError for a size too small for a frame or too large for ``max_message_size``.
    """
    if len(data) < 4:
        return 0
    size: int = _SIZE.unpack_from(data)[0]
    if size < _SMALLEST_FRAME or size > max_message_size + FRAME_PADDING:
        raise ProtocolError(f"a frame of {size} bytes: at most {max_message_size + FRAME_PADDING} are allowed")
    return size + 4


def whole_frames(buffer: BytesLike, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> tuple[list[memoryview], int]:
    """All whole frames in ``buffer``, in order, and the number of bytes that they take. For clients; the reactor has its own."""
    return split_frames(buffer, max_message_size + FRAME_PADDING)


def command_end(frame: BytesLike) -> int:
    """The end of a whole frame's command. Raises ProtocolError for a size that exceeds the frame or the bound."""
    try:
        total, size = _SIZES.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a frame of {len(frame)} bytes") from None
    if total + 4 != len(frame):
        raise ProtocolError(f"a frame of {len(frame)} bytes that claims to be {total + 4}")
    if size > total - 4:
        raise ProtocolError(f"a command of {size} bytes in a frame of {len(frame)}")
    if size > MAX_COMMAND_SIZE:
        raise ProtocolError(f"a command of {size} bytes: at most {MAX_COMMAND_SIZE} are allowed")
    return COMMAND_AT + int(size)


def command_type(frame: BytesLike) -> int:
    """The type of the frame's command, which may be unknown. Raises ProtocolError if there is none.

    Every client writes the type first, so this reads two bytes. Protobuf, which allows any order, reads all other frames.
    """
    end = command_end(frame)
    if end >= COMMAND_AT + 2 and frame[COMMAND_AT] == _TYPE_TAG and frame[COMMAND_AT + 1] < 0x80:
        return frame[COMMAND_AT + 1]
    return parse(BaseCommand, frame[COMMAND_AT:end]).type


def read_command(frame: BytesLike) -> tuple[int, Any]:
    """The type and the command of a frame without payload: ``(4, CommandSubscribe)``. All its text is ``str``.

    Raises ProtocolError for anything but a whole command of a type in pulsar.proto.
    """
    end = command_end(frame)
    if end != len(frame):
        raise ProtocolError(f"a command with {len(frame) - end} bytes after it")
    if end - COMMAND_AT >= 2 and frame[COMMAND_AT] == _TYPE_TAG and frame[COMMAND_AT + 1] not in _MANY_PARTS:
        check_parts(BaseCommand, frame[COMMAND_AT:end])
    command = parse(BaseCommand, frame[COMMAND_AT:end])
    name = FIELDS.get(command.type)
    if name is None or not command.HasField(name):
        raise ProtocolError(f"a frame of type {command.type} without its command")
    body = getattr(command, name)
    check_text(body)
    return command.type, body


def write_command(command_type: int, command: Message) -> bytes:
    """The frame of a command. ``command`` must be complete."""
    fields: Any = {"type": command_type, FIELDS[command_type]: command}
    data = BaseCommand(**fields).SerializeToString()
    return _SIZES.pack(len(data) + 4, len(data)) + data
