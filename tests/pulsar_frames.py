"""Pulsar's frames as a client sees them, written apart from the broker's own codec: for raw clients in tests and benchmarks.

connect()                                          a CONNECT
command("FLOW", consumer_id=1, messagePermits=10)  any command by its name
send(1, 0, b"value", partition_key="k")            a SEND with metadata and checksum
for frame in Incoming().feed(data): ...            what the broker has sent
"""

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import crc32c

from protocol.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata

# Of the commands whose field is not called as their type, in small letters.
_FIELDS = {
    "PARTITIONED_METADATA": "partitionMetadata",
    "PARTITIONED_METADATA_RESPONSE": "partitionMetadataResponse",
    "LOOKUP": "lookupTopic",
    "LOOKUP_RESPONSE": "lookupTopicResponse",
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": "redeliverUnacknowledgedMessages",
    "TC_CLIENT_CONNECT_REQUEST": "tcClientConnectRequest",
}
_UNDERSCORED = ("SEND_RECEIPT SEND_ERROR CLOSE_PRODUCER CLOSE_CONSUMER PRODUCER_SUCCESS ACTIVE_CONSUMER_CHANGE").split()
_MAGIC, _ENTRY_METADATA = 0x0E01, 0x0E02
_INT = struct.Struct(">I")


def field_of(kind: str) -> str:
    """The field of BaseCommand that a command of this type fills."""
    if kind in _FIELDS:
        return _FIELDS[kind]
    if "_" not in kind or kind in _UNDERSCORED:
        return kind.lower()
    first, *rest = kind.lower().split("_")
    return first + "".join(part.capitalize() for part in rest)


def command(kind: str, **fields: Any) -> bytes:
    """A whole frame. Fields that are messages are given as dicts, repeated ones as lists."""
    return simple(base_command(kind, **fields))


def base_command(kind: str, **fields: Any) -> BaseCommand:
    base = BaseCommand(type=BaseCommand.Type.Value(kind))
    body = getattr(base, field_of(kind))
    body.SetInParent()
    if fields:
        body.MergeFrom(type(body)(**fields))
    return base


def simple(base: BaseCommand) -> bytes:
    data = base.SerializePartialToString()
    return _INT.pack(4 + len(data)) + _INT.pack(len(data)) + data


def connect(**fields: Any) -> bytes:
    return command("CONNECT", **{"client_version": "raw", "protocol_version": 20, "auth_method_name": "none"} | fields)


def metadata(sequence_id: int, **fields: Any) -> bytes:
    fields.setdefault("producer_name", "raw")
    fields.setdefault("publish_time", time.time_ns() // 1_000_000)
    return MessageMetadata(sequence_id=sequence_id, **fields).SerializePartialToString()


def entry(meta: bytes, payload: bytes) -> bytes:
    """What follows the command of a SEND: magic number, checksum, metadata, payload."""
    body = _INT.pack(len(meta)) + meta + payload
    return struct.pack(">HI", _MAGIC, crc32c.crc32c(body)) + body


def send(producer_id: int, sequence_id: int, payload: bytes, **fields: Any) -> bytes:
    """A SEND of one message. ``fields``: of its metadata."""
    return send_entry(producer_id, sequence_id, entry(metadata(sequence_id, **fields), payload))


def send_batch(producer_id: int, sequence_id: int, payloads: Sequence[bytes], **fields: Any) -> bytes:
    """A SEND of a batch, uncompressed. ``keys=[...]``: of its messages."""
    keys: Iterable[str | None] = fields.pop("keys", None) or [None] * len(payloads)
    parts = []
    for payload, key in zip(payloads, keys, strict=True):
        single = SingleMessageMetadata(payload_size=len(payload), **({} if key is None else {"partition_key": key}))
        data = single.SerializePartialToString()
        parts.append(_INT.pack(len(data)) + data + payload)
    last = sequence_id + len(payloads) - 1
    meta = metadata(sequence_id, num_messages_in_batch=len(payloads), highest_sequence_id=last, **fields)
    return send_entry(
        producer_id, sequence_id, entry(meta, b"".join(parts)), num_messages=len(payloads), highest_sequence_id=last
    )


def send_entry(producer_id: int, sequence_id: int, data: bytes, **fields: Any) -> bytes:
    base = base_command("SEND", producer_id=producer_id, sequence_id=sequence_id, **fields).SerializePartialToString()
    return _INT.pack(4 + len(base) + len(data)) + _INT.pack(len(base)) + base + data


@attrs.frozen
class Frame:
    kind: str  # "MESSAGE"
    body: Any  # the command's own message
    metadata: Any = None  # MessageMetadata, with a MESSAGE
    payload: bytes = b""

    @property
    def values(self) -> list[bytes]:
        """The messages of a batch that is not compressed, or the only one."""
        if not self.metadata.HasField("num_messages_in_batch"):
            return [self.payload]
        found, at = [], 0
        for _ in range(self.metadata.num_messages_in_batch):
            (size,) = _INT.unpack_from(self.payload, at)
            single = SingleMessageMetadata.FromString(self.payload[at + 4 : at + 4 + size])
            at += 4 + size
            found.append(self.payload[at : at + single.payload_size])
            at += single.payload_size
        assert at == len(self.payload)
        return found


class Incoming:
    """Cuts a stream into frames. AssertionError for one that a client could not read."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        while len(self._data) >= 4:
            (size,) = _INT.unpack_from(self._data)
            assert size <= 64 << 20, f"a frame of {size} bytes"
            if len(self._data) < 4 + size:
                return
            whole = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            yield parse(whole)


def parse(whole: bytes) -> Frame:
    """A frame without its size."""
    (size,) = _INT.unpack_from(whole)
    base = BaseCommand.FromString(whole[4 : 4 + size])
    kind = BaseCommand.Type.Name(base.type)
    field = field_of(kind)
    assert base.HasField(field), f"{kind} without {field}"  # type: ignore[arg-type]
    body = getattr(base, field)
    rest = memoryview(whole)[4 + size :]
    if kind != "MESSAGE":
        assert not rest, f"{len(rest)} bytes follow {kind}"
        return Frame(kind, body)
    at = 0
    if struct.unpack_from(">H", rest)[0] == _ENTRY_METADATA:
        at = 6 + struct.unpack_from(">I", rest, 2)[0]
    if struct.unpack_from(">H", rest, at)[0] == _MAGIC:
        (checksum,) = _INT.unpack_from(rest, at + 2)
        at += 6
        assert crc32c.crc32c(bytes(rest[at:])) == checksum, "a checksum that does not fit"
    (length,) = _INT.unpack_from(rest, at)
    meta = MessageMetadata.FromString(bytes(rest[at + 4 : at + 4 + length]))
    return Frame(kind, body, meta, bytes(rest[at + 4 + length :]))
