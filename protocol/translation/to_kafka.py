"""Pulsar's entries as Kafka's record batches: for Kafka's consumers, and for callers that need an entry's messages as records.

The batch has the offsets of the entry: the message with the index i is the record with the offset base + i. A record has the
message's key, its value (null stays null), its properties as headers, in order, and its event time or else its publish time.
Messages that compaction removed from the entry are missing, as in a batch that Kafka compacted.

Some payloads only the application can read. They become *one* record, at the first offset, whose value is the unchanged payload,
with headers that say what is needed to read it:

- ``pulsar.encryption.algorithm``, ``pulsar.encryption.parameter``, and ``pulsar.encryption.key.NAME`` for each encrypted key;
- ``pulsar.chunk.uuid``, ``pulsar.chunk.id``, ``pulsar.chunk.count`` and ``pulsar.chunk.size``: part ``id`` of ``count``, to be
  joined to a message of ``size`` bytes (each part is a record);
- ``pulsar.compression`` and ``pulsar.uncompressed_size`` where the bytes are still compressed;
- ``pulsar.batch``: the number of messages, where the bytes are a batch;
- ``pulsar.unreadable``: why, where they should have been readable.

So an entry never fails to be translated, and no consumer is stuck on it. ``OpenedEntry`` describes an entry in the log, without
decompressing it: its inner size, and whether it may be taken apart.

Pure, without I/O. But ``to_kafka``, and so ``OpenedEntry.records``, may decompress 64 MiB: call them on a thread that may block.

Tests: tests/storage/log/test_inspection_entry_records.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader, read_header, set_log_append_time
from protocol.kafka.records.entry import entry_value
from protocol.kafka.records.records import build_batch, records
from protocol.pulsar.frames import as_bytes
from protocol.pulsar.metadata import (
    event_time_ms,
    is_batch,
    is_chunk,
    is_encrypted,
    message_key,
    publish_time_ms,
    read_stored_metadata,
)
from protocol.pulsar.payload import CODEC_NAMES, MAX_PAYLOAD_SIZE, NONE, decompressed, is_readable, split_batch
from protocol.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from protocol.pulsar.sends import read_stored_part
from protocol.wire import BytesLike

Header = tuple[str, bytes | None]
# Key, value, headers, timestamp in ms.
_Record = tuple[bytes | None, bytes | None, list[Header], int]

# The most messages of a translated entry. Each takes 6 us.
MOST_RECORDS = 200_000


def to_kafka(
    value: BytesLike,
    base_offset: int,
    messages: int,
    *,
    leader_epoch: int = -1,
    compression: int = 0,
    max_size: int = MAX_PAYLOAD_SIZE,
) -> bytearray:
    """The record batch of the entry at ``base_offset`` with ``messages`` messages; ``value`` is its stored part.

    ``compression`` is the codec of the result, one of Kafka's. Raises ProtocolError only if ``value`` is not a stored part.
    """
    part = read_stored_part(value)
    metadata = read_stored_metadata(value[part.metadata : part.payload])
    payload = value[part.payload : part.end]
    offsets: list[int] = []
    build = partial(
        build_batch,
        base_offset=base_offset,
        offsets=offsets,
        last_offset_delta=messages - 1,
        base_timestamp=publish_time_ms(metadata),
        compression=compression,
        partition_leader_epoch=leader_epoch,
    )
    try:
        batch = build(_records(metadata, payload, messages, max_size, base_offset, offsets))
    except ProtocolError as error:
        offsets[:] = [base_offset]
        batch = build([_opaque(metadata, payload, str(error))])
    return batch


def _records(
    metadata: MessageMetadata, payload: BytesLike, messages: int, max_size: int, base_offset: int, offsets: list[int]
) -> Iterator[_Record]:
    """The records, one by one; the offset of each is in ``offsets`` before it is yielded."""
    if metadata.num_messages_in_batch != messages:
        raise ProtocolError(f"{metadata.num_messages_in_batch} messages at {messages} offsets")
    if not is_readable(metadata):
        offsets.append(base_offset)
        yield _opaque(metadata, payload)
        return
    data = decompressed(metadata, payload, max_size)
    publish_time = publish_time_ms(metadata)
    if not is_batch(metadata):
        offsets.append(base_offset)
        yield _record(metadata, data, publish_time)
        return
    if messages > MOST_RECORDS:
        raise ProtocolError(f"a batch of {messages} messages, where {MOST_RECORDS} are read")
    for offset, (single, part) in enumerate(split_batch(data, messages), base_offset):
        if not single.compacted_out:
            offsets.append(offset)
            yield _record(single, part, publish_time)


def _record(metadata: MessageMetadata | SingleMessageMetadata, payload: BytesLike, publish_time: int) -> _Record:
    return (
        message_key(metadata),
        None if metadata.null_value else bytes(payload),
        [(_name(pair.key), as_bytes(pair.value)) for pair in metadata.properties],
        event_time_ms(metadata) or publish_time,
    )


def _opaque(metadata: MessageMetadata, payload: BytesLike, why_unreadable: str = "") -> _Record:
    key, _, headers, timestamp = _record(metadata, b"", publish_time_ms(metadata))
    if is_encrypted(metadata):
        headers.append(("pulsar.encryption.algorithm", as_bytes(metadata.encryption_algo)))
        headers.append(("pulsar.encryption.parameter", metadata.encryption_param))
        for pair in metadata.encryption_keys:
            headers.append((f"pulsar.encryption.key.{_name(pair.key)}", pair.value))
    if is_chunk(metadata):
        headers.append(("pulsar.chunk.uuid", as_bytes(metadata.uuid)))
        headers.append(("pulsar.chunk.id", b"%d" % metadata.chunk_id))
        headers.append(("pulsar.chunk.count", b"%d" % metadata.num_chunks_from_msg))
        headers.append(("pulsar.chunk.size", b"%d" % metadata.total_chunk_msg_size))
    if metadata.compression != NONE:
        codec = CODEC_NAMES.get(metadata.compression, str(metadata.compression))
        headers.append(("pulsar.compression", codec.encode()))
        headers.append(("pulsar.uncompressed_size", b"%d" % metadata.uncompressed_size))
    if is_batch(metadata):
        headers.append(("pulsar.batch", b"%d" % metadata.num_messages_in_batch))
    if why_unreadable:
        headers.append(("pulsar.unreadable", why_unreadable.encode()))
    return key, bytes(payload), headers, timestamp


def _name(text: Any) -> str:
    """A header's name. It is UTF-8 in both protocols; invalid bytes survive as surrogates, as in ``records.Record``."""
    return text if isinstance(text, str) else as_bytes(text).decode("utf-8", "surrogateescape")


# The header of a record for an entry that should have been readable but is not.
_UNREADABLE = "pulsar.unreadable"


class Described(NamedTuple):
    producer_name: bytes
    sequence_id: int
    compression: str


class OpenedEntry(NamedTuple):
    """``inner_size``: the claimed size of the decompressed payload, in bytes. ``readable`` is False for an encrypted payload,
    and for a chunk of a larger message."""

    header: BatchHeader
    value: memoryview
    inner_size: int
    readable: bool

    @property
    def messages(self) -> int:
        return self.header.last_offset_delta + 1

    def described(self) -> Described:
        """Identifies the entry for people."""
        metadata = _metadata(self.value)
        codec = CODEC_NAMES.get(metadata.compression, f"codec {metadata.compression}")
        return Described(as_bytes(metadata.producer_name), metadata.sequence_id, codec)

    def records(self) -> memoryview:
        """The batch of records with the entry's offsets, and its time where the broker set that."""
        header = self.header
        batch = to_kafka(self.value, header.base_offset, self.messages, leader_epoch=header.partition_leader_epoch)
        if header.is_log_append_time:
            set_log_append_time(batch, 0, read_header(batch), header.max_timestamp)
        return memoryview(batch)


def open_entry(batch: memoryview, header: BatchHeader) -> OpenedEntry | None:
    """The entry in a whole batch; None if the batch is not an entry, even if it has the mark."""
    try:
        position, size = entry_value(batch, 0, header)
        value = batch[position : position + size]
        metadata = _metadata(value)
    except ProtocolError:
        return None
    return OpenedEntry(header, value, max(size, metadata.uncompressed_size), is_readable(metadata))


def _metadata(value: memoryview) -> MessageMetadata:
    stored = read_stored_part(value)
    return read_stored_metadata(value[stored.metadata : stored.payload])


def stands_for_unreadable(batch: memoryview) -> bool:
    """Whether these records, made of a readable entry, hold its unchanged payload because it could not be read after all."""
    if read_header(batch).record_count != 1:
        return False
    (record,) = records(batch)
    return any(name == _UNREADABLE for name, _ in record.headers)
