"""Frames of Pulsar's protocol, and the command at the beginning of each.

A frame is [total size][command size][command], in SEND and MESSAGE followed by metadata and payload (``sends.py``,
``deliveries.py``). Sizes are 32 bits, big-endian; the total counts the bytes after itself. Positions count from the beginning of
the frame. Commands pass through protobuf, except those that are sent for every message (``deliveries.py``, by hand). Pure.

While parsing a hostile command, protobuf may allocate thirty times its size, and take up to 30 ms for the largest command that is
read: so commands have a lower bound than frames.
"""

from __future__ import annotations

import struct
from typing import Any

from protocol.errors import ProtocolError
from protocol.frames import split_frames
from protocol.pulsar.parsing import check_parts, check_text, parse
from protocol.pulsar.pulsar_pb2 import BaseCommand, Message
from protocol.wire import BytesLike

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
