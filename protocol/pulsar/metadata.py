"""MessageMetadata, as far as the broker reads it: permits, times, keys; and message ids.

Whatever accepts a message reads its metadata with ``read_metadata``, which is strict: a client that cannot parse a message's
metadata closes its connection, and would do so again and again. Stored metadata has passed that check, and
``read_stored_metadata`` takes half the time. They take as long as protobuf's C library, 1 us and 0.5 us; a scanner in Python
would take longer. Strings may hold any bytes, hence ``as_bytes``.

A message id is a ledger, an entry in it and an index in the entry's batch; two ids stand for the ends of the topic. Pure.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.pulsar.frames import as_bytes, parse, parse_partial
from protocol.pulsar.pulsar_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from protocol.wire import BytesLike

# Pulsar's only bound is that of the whole message. Parsing so much may take 30 ms, during which a Python with a GIL does nothing
# else; a few hundred properties come nowhere near.
MAX_METADATA_SIZE = 1 << 20

# A message in a batch takes at least its metadata's size (4 bytes) and metadata with the payload's size (2 bytes).
SMALLEST_BATCHED = 6

_NO_KEY = b"NONE_KEY"
_INT64_END = 1 << 63


def read_metadata(data: BytesLike) -> MessageMetadata:
    """The metadata of a message to be accepted. Raises ProtocolError, also for more than ``MAX_METADATA_SIZE``."""
    if len(data) > MAX_METADATA_SIZE:
        raise ProtocolError(f"metadata of {len(data)} bytes: at most {MAX_METADATA_SIZE} are allowed")
    return parse(MessageMetadata, data)


def read_stored_metadata(data: BytesLike) -> MessageMetadata:
    """The metadata of an accepted message. Raises ProtocolError for bytes that cannot be metadata."""
    return parse_partial(MessageMetadata, data)


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload is a batch. A batch may have a single message, and the client then expects ids of a batch."""
    return metadata.num_messages_in_batch != 1 or metadata.HasField("num_messages_in_batch")


def check_batch(metadata: MessageMetadata, payload_size: int, max_message_size: int) -> int:
    """The number of messages, at least 1. Raises ProtocolError for more than the payload can hold.

    Each message of an entry takes a log offset, a permit and a bit in the acknowledgement sets, so the number must be true. The
    size before compression counts only up to ``max_message_size``: clients refuse larger messages.
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
    """The number of messages of an entry that ``check_batch`` accepted."""
    return metadata.num_messages_in_batch


def publish_time_ms(metadata: MessageMetadata) -> int:
    """The client's publish time (ms); a value above Kafka's 63 bits becomes the largest of them."""
    time_ms = metadata.publish_time
    return time_ms if time_ms < _INT64_END else _INT64_END - 1


def event_time_ms(metadata: MessageMetadata | SingleMessageMetadata) -> int:
    """The application's event time (ms), 0 if there is none."""
    return min(metadata.event_time, _INT64_END - 1)


def is_encrypted(metadata: MessageMetadata) -> bool:
    return len(metadata.encryption_keys) > 0


def is_chunk(metadata: MessageMetadata) -> bool:
    """Whether the entry is a chunk of a message larger than the broker's limit."""
    return metadata.num_chunks_from_msg > 1


def message_key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    """The application's key of the message, or None."""
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
MINUS_1 = _UINT64 - 1  # on the wire
_LATEST = (1 << 63) - 1


class MessageId(NamedTuple):
    """Ledger and entry are signed, as in Pulsar: -1 means none. ``batch_index`` -1: the whole entry."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    @property
    def is_earliest(self) -> bool:
        """Before all messages. Also the last id of an empty topic, and the id of a duplicate message."""
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
    """The id in ``data``. Any numbers are a valid id."""
    return MessageId(signed(data.ledgerId), signed(data.entryId), data.partition, data.batch_index)


def signed(value: int) -> int:
    """A uint64 as the signed number with the same bits, as in Java."""
    return value - _UINT64 if value >> 63 else value
