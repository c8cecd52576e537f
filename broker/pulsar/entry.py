"""An entry: the stored part of a SEND, with a message or a batch of messages, as it goes to consumers.

``Entry`` values are made from SENDs and from the record batches of the log. An entry is made once, when it is appended or read,
is shared by all subscriptions, and never changes. Any thread.

Pure. The data of an entry is a view of the caller's bytes, so the caller's copy is the only copy.

Tests: tests/pulsar/dispatch/test_dispatcher.py,
tests/pulsar/entries/test_entry_factory.py.
"""

from typing import NamedTuple

import attrs

from broker.runtime.disk import Buffer, FileRegion
from broker.runtime.threads import Lock
from broker.storage.log.inspection import SMALL_BYTES
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader
from protocol.kafka.records.entry import entry_value
from protocol.pulsar.frames import as_bytes
from protocol.pulsar.metadata import is_batch, read_stored_metadata, sticky_key
from protocol.pulsar.murmur3 import key_hash
from protocol.pulsar.payload import MAX_PAYLOAD_SIZE
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import read_stored_part
from protocol.translation.to_pulsar import to_pulsar


class Chunk(NamedTuple):
    """The place of an entry in a message that its producer has cut into several chunks."""

    uuid: bytes
    number: int  # from 0
    total: int


@attrs.define(eq=False)  # not frozen: that costs 0.4 us for each message
class Entry:
    """Covers the log's offsets from ``offset`` to ``offset + messages - 1``; ``offset`` is its entry id."""

    offset: int
    messages: int
    size: int  # bytes of ``data``
    data: Buffer | FileRegion  # the part of a MESSAGE after its command: from the magic number 0x0e01 to the payload
    # The ordering key, its hash, or None: then it is read from ``data`` when asked for, because that takes microseconds and only
    # Key_Shared needs it.
    _sticky: bytes | int | None = attrs.field(default=0, alias="sticky_hash")
    deliver_at_ms: int = 0  # 0: at once
    chunk: Chunk | None = None
    marker: bool = False  # of the server, not for consumers
    batched: bool = False  # a batch, perhaps of a single message: the ids of its messages have an index

    @property
    def sticky_hash(self) -> int:
        """Murmur3 of the ordering key, & 0x7fffffff."""
        sticky = self._sticky
        if isinstance(sticky, int):
            return sticky
        if sticky is None:
            assert not isinstance(self.data, FileRegion)
            stored = read_stored_part(self.data)
            sticky = sticky_key(read_stored_metadata(self.data[stored.metadata : stored.payload]))
        self._sticky = hashed = key_hash(sticky)  # another thread would set the same value
        return hashed

    @property
    def last(self) -> int:
        """The last offset."""
        return self.offset + self.messages - 1


# Small batches with at most this many records are translated concurrently: a record takes some 500 bytes meanwhile.
_FEW_RECORDS = 10_000


def from_metadata(offset: int, messages: int, data: Buffer | FileRegion, size: int, metadata: MessageMetadata) -> Entry:
    """The entry at ``offset``. ``data`` is the stored part of the message, ``size`` its bytes."""
    deliver_at_ms = metadata.deliver_at_time
    chunk = None
    if metadata.num_chunks_from_msg > 1:
        chunk = Chunk(as_bytes(metadata.uuid), metadata.chunk_id, metadata.num_chunks_from_msg)
    return Entry(
        offset,
        messages,
        size,
        data,
        sticky_key(metadata) if type(data) is FileRegion else None,
        deliver_at_ms if deliver_at_ms > 0 else 0,
        chunk,
        metadata.HasField("marker_type"),
        is_batch(metadata),
    )


def from_batch(batch: memoryview, header: BatchHeader) -> Entry:
    """The entry in a record batch. Raises ProtocolError if the batch has no entry."""
    position, size = entry_value(batch, 0, header)
    data = batch[position : position + size]
    stored = read_stored_part(data)
    metadata = read_stored_metadata(data[stored.metadata : stored.payload])
    return from_metadata(header.base_offset, header.last_offset_delta + 1, data, size, metadata)


def from_prefix(prefix: memoryview, header: BatchHeader, place: FileRegion) -> Entry:
    """Like ``from_batch``, for a batch that stays in the file; ``prefix``: its first bytes, at least ``prefix_size`` of them."""
    position, size = entry_value(prefix, 0, header)
    stored = read_stored_part(prefix[position:], 0, size)
    metadata = read_stored_metadata(prefix[position + stored.metadata : position + stored.payload])
    region = FileRegion(place.file, place.offset + position, size)
    return from_metadata(header.base_offset, header.last_offset_delta + 1, region, size, metadata)


def from_kafka(batch: memoryview, header: BatchHeader, large: Lock, *, by_key: bool = False) -> list[Entry]:
    """Translate a batch of a Kafka producer to entries. ``large`` is held while a batch with large contents is read. ``by_key``:
    each entry has messages of a single key. Raises ProtocolError if the batch cannot be read or is too large."""
    if len(batch) <= SMALL_BYTES and header.record_count <= _FEW_RECORDS:
        try:
            return _translated(batch, header, by_key, SMALL_BYTES)
        except ProtocolError:
            pass  # its contents may be large; their size is unknown until they are decompressed, so this is tried first
    with large:
        return _translated(batch, header, by_key, MAX_PAYLOAD_SIZE)


def _translated(batch: memoryview, header: BatchHeader, by_key: bool, max_size: int) -> list[Entry]:
    entries = []
    for offset, messages, data in to_pulsar(batch, 0, header, by_key=by_key, max_size=max_size):
        stored = read_stored_part(data)
        metadata = read_stored_metadata(data[stored.metadata : stored.payload])
        entries.append(from_metadata(offset, messages, data, len(data), metadata))
    return entries


def prefix_size(prefix: memoryview, header: BatchHeader) -> int:
    """The number of bytes of the batch that ``from_prefix`` needs. Raises ProtocolError."""
    position, size = entry_value(prefix, 0, header)
    return position + read_stored_part(prefix[position:], 0, size).payload
