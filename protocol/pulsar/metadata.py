"""MessageMetadata: what the broker asks of it, from permits to the key that orders.

Whoever accepts a message reads its metadata with ``read_metadata``, which is strict: a client that cannot parse the metadata of a
message closes its connection, and would do so again and again. Metadata that is stored already was read so before, and
``read_stored_metadata`` takes half the time. Both take what protobuf's C library takes, 1 us and 0.5 us; a scanner in Python
would take longer than that. Strings may hold anything, hence ``as_bytes``.

Ids of messages: a ledger, an entry in it and a place in the entry's batch, with the two that mean the ends of the topic.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.pulsar.parsing import as_bytes, parse, parse_partial
from protocol.pulsar.pulsar_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from protocol.wire import BytesLike

# Pulsar has no bound but that of the whole message. So much may take 30 ms, during which a Python with a GIL does nothing else;
# a few hundred properties come nowhere near.
MAX_METADATA_SIZE = 1 << 20

# A message in a batch takes at least its size (4 bytes) and metadata that says how long it is (2).
SMALLEST_BATCHED = 6

_NO_KEY = b"NONE_KEY"
_INT64_END = 1 << 63


def read_metadata(data: BytesLike) -> MessageMetadata:
    """The metadata of a message that is to be accepted. Raises ProtocolError, also for more than ``MAX_METADATA_SIZE``."""
    if len(data) > MAX_METADATA_SIZE:
        raise ProtocolError(f"metadata of {len(data)} bytes: at most {MAX_METADATA_SIZE} are allowed")
    return parse(MessageMetadata, data)


def read_stored_metadata(data: BytesLike) -> MessageMetadata:
    """The metadata of a message that was accepted. Raises ProtocolError for bytes that cannot be it."""
    return parse_partial(MessageMetadata, data)


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload is a batch: one of a single message is one, too, and the client then expects ids of a batch."""
    return metadata.num_messages_in_batch != 1 or metadata.HasField("num_messages_in_batch")


def check_batch(metadata: MessageMetadata, payload_size: int, max_message_size: int) -> int:
    """The number of messages, at least 1. Raises ProtocolError for more than the payload can hold.

    Each message of an entry takes an offset of the log, a permit and a bit in the sets of the acknowledged ones, so the number
    must not be a lie. The size before compression is one only up to ``max_message_size``: clients refuse larger ones.
    """
    messages = metadata.num_messages_in_batch
    if messages == 1:
        return 1
    size = payload_size
    if metadata.compression or metadata.encryption_keys:
        size = max(size, min(metadata.uncompressed_size, max_message_size))
    if messages < 1 or messages * SMALLEST_BATCHED > size:
        raise ProtocolError(f"a batch of {messages} messages in {size} bytes")
    return messages


def messages_in(metadata: MessageMetadata) -> int:
    """The number of messages of an entry that ``check_batch`` let through."""
    return metadata.num_messages_in_batch


def publish_time_ms(metadata: MessageMetadata) -> int:
    """When the client says that it sent the message; what exceeds Kafka's 63 bits becomes their end."""
    time_ms = metadata.publish_time
    return time_ms if time_ms < _INT64_END else _INT64_END - 1


def event_time_ms(metadata: MessageMetadata | SingleMessageMetadata) -> int:
    """The application's own time, 0 if there is none."""
    return min(metadata.event_time, _INT64_END - 1)


def is_encrypted(metadata: MessageMetadata) -> bool:
    return len(metadata.encryption_keys) > 0


def is_chunk(metadata: MessageMetadata) -> bool:
    """Whether the entry is one of the parts of a message that was larger than the broker takes."""
    return metadata.num_chunks_from_msg > 1


def message_key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    """The key of the message as the application gave it, or None."""
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return None
    key = as_bytes(metadata.partition_key)
    if metadata.partition_key_b64_encoded:
        try:
            # Java's decoder needs no padding.
            return base64.b64decode(key + b"=" * (-len(key) % 4), validate=True)
        except binascii.Error:
            return key
    return key


def sticky_key(metadata: MessageMetadata) -> bytes:
    """The key that decides which consumer of a Key_Shared subscription gets the entry, as Pulsar resolves it."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    key = message_key(metadata)
    if key is not None:
        return key
    if not metadata.HasField("producer_name"):
        return _NO_KEY
    sequence_id = metadata.sequence_id
    if sequence_id >= _INT64_END:  # Java prints an unsigned number as a signed one
        sequence_id -= 2 * _INT64_END
    return b"%b-%d" % (as_bytes(metadata.producer_name), sequence_id)


_UINT64 = 1 << 64
MINUS_1 = _UINT64 - 1  # as it is on the wire
_LATEST = (1 << 63) - 1


class MessageId(NamedTuple):
    """Ledger and entry are signed, as in Pulsar: -1 stands for "none". ``batch_index`` -1: the whole entry."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    @property
    def is_earliest(self) -> bool:
        """Before all messages. Also the last id of an empty topic, and the id of a message that was there already."""
        return self.ledger_id == -1 and self.entry_id == -1

    @property
    def is_latest(self) -> bool:
        """After all messages."""
        return self.ledger_id == _LATEST and self.entry_id == _LATEST

    def encode(self) -> MessageIdData:
        return MessageIdData(
            ledgerId=self.ledger_id % _UINT64,
            entryId=self.entry_id % _UINT64,
            partition=self.partition,
            batch_index=self.batch_index,
        )


EARLIEST = MessageId(-1, -1)
LATEST = MessageId(_LATEST, _LATEST)


def read_message_id(data: MessageIdData) -> MessageId:
    """Any numbers are a message id, so this refuses nothing."""
    return MessageId(signed(data.ledgerId), signed(data.entryId), data.partition, data.batch_index)


def signed(value: int) -> int:
    """A uint64 as the signed number that it stands for, as in Java."""
    return value - _UINT64 if value >> 63 else value
