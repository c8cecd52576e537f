"""SENDs of one producer, as most of them are: read by what they have in common with those before.

The metadata of a message is the producer's name, the sequence id and the time, and then fields that are the same in message after
message, but for the key and the highest sequence id of a batch. Protobuf has read those of an earlier message, and this reads
only what differs: 2.4 us for the SEND, its metadata and its checksum, and 2.8 us with a key, where one by one they take 3.9.

What is read here is what ``sends.read_send``, ``metadata.read_metadata`` and ``metadata.check_batch`` would have returned. The
rest is left to them: another producer, other fields, an order of fields that no client uses, a wrong checksum.

One thread at a time.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from protocol.checksum import crc32c
from protocol.errors import ProtocolError
from protocol.pulsar.frames import COMMAND_AT
from protocol.pulsar.metadata import SMALLEST_BATCHED, is_batch, read_stored_metadata
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import MAGIC_CRC32C, Send
from protocol.pulsar.varint import varint

_STARTS = struct.Struct(">III")  # both sizes; the type's tag and value, the tag of the SEND, and its size
_SHORT_TAGS: Final = 0x08063200 - 4
_SHORT_MAX: Final = 131
_HEADER = struct.Struct(">HII")  # magic, CRC, metadata size
_FIELDS_AT: Final = COMMAND_AT + 4
# The longest command and metadata that are read here, of one SEND.
_MOST_BYTES: Final = 512
# Kinds of metadata that are remembered, and how many SENDs in a row may be unusual before this gives up.
_MOST_KINDS: Final = 32
_MOST_MISSES: Final = 64
_KEY: Final = 0x32  # tag of partition_key
_HIGHEST: Final = b"\xc0\x01"  # tag of highest_sequence_id
_new = tuple.__new__


class UsualSend(NamedTuple):
    """``start`` and ``end`` of the stored part are positions in what was given to ``read``. There is no chunk, no time of
    delivery, no encryption and no marker."""

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
        self._time, self._time_ms = b"none", 0  # of the last message; at first what no message has
        # By the bytes that follow the time: messages, whether they are a batch, and the least payload that can hold them.
        self._kinds: dict[bytes, tuple[int, bool, int]] = {}
        self._misses = 0

    def read(self, frames: memoryview, at: int, end: int) -> UsualSend | None:
        """The SEND frame in ``frames[at:end]``. None: it is not usual, or wrong."""
        if self._misses >= _MOST_MISSES or not self._name:
            return None
        try:
            _, size, tags = _STARTS.unpack_from(frames, at)
            start = at + COMMAND_AT + size
            magic, crc, metadata_size = _HEADER.unpack_from(frames, start)
            payload = start + 10 + metadata_size
            if (
                tags - size != _SHORT_TAGS
                or size > _SHORT_MAX
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
                elif tag != 0x18 or value > 0x7FFFFFFF:  # the number of messages: what the metadata says counts
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
        """``frame`` had to be read in the other way, and is right."""
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
            rest.HasField("producer_name")  # the last one would count
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
    """The fields without the key at their beginning and the highest sequence id at their end. IndexError for what ends too
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
    """A varint whose first byte is ``value``, and the position after it. IndexError for one that is too long."""
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
