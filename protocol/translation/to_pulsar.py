"""A Kafka client's record batch as the entries that Pulsar's consumers get in its place.

The message of the record with the offset n has the id (entry e, index n - e), where e is the offset of the entry's first message.
A batch becomes one or several entries. An entry has no gaps, so a batch is cut where compaction removed records: the C++ client
delivers a message marked as compacted out as an empty message, and it acknowledges an entry only after the application has
acknowledged all its messages. A batch is also cut where an entry would have too many messages for a consumer's queue, or be
larger than clients take.

A message has the record's key (as text where it is UTF-8, else in base64 with the flag for that), its value (null stays null) and
its headers as properties, in order, repeated names included. A property is text: ``property_of`` converts other headers. A
batch's publish time is its largest timestamp; an event time is the record's timestamp, unless the broker set it (LogAppendTime)
or it is not positive, which Pulsar cannot express.

The producer's name is ``kafka`` and its sequence id the entry's offset. The caller skips batches of control records. Pure,
without I/O, but it may decompress 64 MiB: call it on a thread that may block.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader
from protocol.kafka.records.records import Record, read_records, unpack
from protocol.pulsar.frames import DEFAULT_MAX_MESSAGE_SIZE
from protocol.pulsar.payload import LZ4, MAX_PAYLOAD_SIZE, ZSTD, build_batch, compress, single_metadata
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import write_stored_part
from protocol.wire import BytesLike

PRODUCER_NAME = "kafka"

# A property begins with this if it stands for a header that is not text, or is text with this beginning.
_DATA = "data:"
_BASE64 = "data:;base64,"
_NULL = "data:null"

# The most messages of an entry: a producer's default for a batch, and for a consumer's queue.
MOST_MESSAGES = 1000
# The most records of a translated batch. Each takes 5 us.
MOST_RECORDS = 200_000

# The most bytes of an entry's metadata without its properties and key; the same for a message of a batch.
_OVERHEAD = 128


class Translated(NamedTuple):
    """An entry: its first offset, the number of its messages, and its stored part."""

    offset: int
    messages: int
    stored: bytes


def to_pulsar(
    view: BytesLike,
    pos: int,
    header: BatchHeader,
    *,
    by_key: bool = False,
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
    max_size: int = MAX_PAYLOAD_SIZE,
) -> list[Translated]:
    """The entries of the batch at ``pos``, in the order of their offsets; none if no records are left.

    ``by_key`` also cuts where the key changes, so that each entry has a single ordering key. Raises ProtocolError for a
    batch that cannot be read or has more than ``max_size`` bytes or ``MOST_RECORDS`` records.
    """
    if header.record_count > MOST_RECORDS:
        raise ProtocolError(f"a batch of {header.record_count} records, where {MOST_RECORDS} are read")
    data = unpack(view, pos, header, max_size=max_size)
    publish_time = max(header.max_timestamp, 0)
    own_times = not header.is_log_append_time
    return [
        _entry(records, publish_time, own_times, max_message_size)
        for records in _runs(_ascending(header, data), by_key, max_message_size)
    ]


def _ascending(header: BatchHeader, data: bytes) -> Iterator[Record]:
    """The records, whose offsets must ascend within the batch: no broker checks that when they are produced."""
    last = header.base_offset - 1
    for record in read_records(header, data):
        if not last < record.offset <= header.last_offset:
            raise ProtocolError(f"the offset {record.offset} after {last}, in a batch up to {header.last_offset}")
        last = record.offset
        yield record


def _runs(records: Iterator[Record], by_key: bool, max_message_size: int) -> Iterator[list[Record]]:
    run: list[Record] = []
    size = _OVERHEAD
    for record in records:
        record_size = _size(record)
        if run and (
            record.offset != run[-1].offset + 1
            or (by_key and record.key != run[-1].key)
            or size + record_size > max_message_size
            or len(run) == MOST_MESSAGES
        ):
            yield run
            run, size = [], _OVERHEAD
        run.append(record)
        size += record_size
    if run:
        yield run


def _size(record: Record) -> int:
    """The size of the record in an entry, or a little more."""
    size = _OVERHEAD + len(record.value or b"") + 2 * len(record.key or b"")
    for name, value in record.headers:
        # Base64 adds a third to each, and both have a size and a tag.
        size += 32 + 2 * (len(name) + len(value or b""))
    return size


def _entry(records: list[Record], publish_time: int, own_times: bool, max_message_size: int) -> Translated:
    first = records[0]
    metadata = MessageMetadata(producer_name=PRODUCER_NAME, sequence_id=first.offset, publish_time=publish_time)
    if len({record.key for record in records}) == 1 and first.key is not None:
        metadata.partition_key, metadata.partition_key_b64_encoded = key_text(first.key)
    if len(records) == 1:
        if own_times and first.timestamp > 0:
            metadata.event_time = first.timestamp
        if first.value is None:
            metadata.null_value = True
        for name, value in first.headers:
            metadata.properties.add(key=text_of(name), value=property_of(value))
        payload: BytesLike = first.value or b""
    else:
        metadata.num_messages_in_batch = len(records)
        payload = build_batch((_single(record, own_times), record.value or b"") for record in records)
    if len(payload) > max_message_size - _OVERHEAD:
        # A single record too large for a message: it cannot be cut, but clients count its compressed size.
        payload = _compressed(metadata, payload, max_message_size)
    return Translated(first.offset, len(records), write_stored_part(metadata.SerializeToString(), payload))


def _single(record: Record, own_times: bool) -> bytes:
    key, key_is_base64 = (None, False) if record.key is None else key_text(record.key)
    return single_metadata(
        len(record.value or b""),
        [(text_of(name), property_of(value)) for name, value in record.headers],
        key,
        key_is_base64,
        record.timestamp if own_times and record.timestamp > 0 else 0,
        record.value is None,
    )


def _compressed(metadata: MessageMetadata, payload: BytesLike, max_message_size: int) -> bytes:
    metadata.uncompressed_size = len(payload)
    for codec in (LZ4, ZSTD):
        smaller = compress(codec, payload)
        metadata.compression = codec
        if len(smaller) <= max_message_size - _OVERHEAD:
            break
    return smaller


def key_text(key: bytes) -> tuple[str, bool]:
    """A key as text, and whether the text is its base64."""
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(key).decode(), True


def property_of(value: bytes | None) -> str:
    """A header's value as a property's value: itself if it is text, else ``data:;base64,...``; null is ``data:null``."""
    if value is None:
        return _NULL
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _DATA
    return _BASE64 + base64.b64encode(value).decode() if text.startswith(_DATA) else text


def header_of(text: str) -> bytes | None:
    """The header's value from which ``property_of`` made ``text``."""
    if text == _NULL:
        return None
    if text.startswith(_BASE64):
        return base64.b64decode(text[len(_BASE64) :])
    return text.encode()


def text_of(name: str) -> str:
    """A header's name as a property's name, by the same rule for names that are not UTF-8."""
    return property_of(name.encode("utf-8", "surrogateescape"))
