"""The entry: a message of another protocol, or a batch of them, as a record batch (format v2) with one record.

The record's value is the producer's bytes, unchanged, so that they can be sent straight from the file. The batch differs from
others in two ways. Bit 0x80 of its attributes, which Kafka leaves unused, marks it. And its last offset delta is the number of
messages minus one: the entry takes an offset for each message, and the record has the first of them.

Retention, recovery, indexes and look-ups by time need only the header and treat an entry like any other batch. Kafka's
DumpLogSegments prints ``count: 1``, the offsets from ``baseOffset`` to ``lastOffset``, no producer, no codec and
``isvalid: true``, and for the record its key, the size of its value and ``offset: baseOffset``. It prints the same for a batch
from which compaction has removed all records but the first.

This broker refuses the bit from Kafka's producers. Kafka ignores it, so a log that another broker wrote may have it in any batch:
a reader of entries must treat a batch that ``entry_value`` refuses as an ordinary batch. Pure.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.kafka.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    ENTRY,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
)
from protocol.kafka.records.records import varint
from protocol.wire import BytesLike

_NEVER = COMPRESSION_MASK | CONTROL | TRANSACTIONAL  # attributes that no entry has
# The header up to its checksum, and the rest, which the checksum covers.
_BEFORE_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_NO_DELTAS = b"\x00\x00\x00"  # the record's attributes, its timestamp and its offset
_NULL = 1  # the length -1, in zig-zag
ENTRY_END = b"\x00"  # follows the value: the record has no headers


def build_entry(value: BytesLike, messages: int, timestamp: int, key: bytes | None = None) -> bytearray:
    """The batch with its checksum; ``batch.stamp`` writes its base offset. ``value`` is copied once."""
    return bytearray().join((entry_head(value, messages, timestamp, key), value, ENTRY_END))


def entry_head(value: BytesLike, messages: int, timestamp: int, key: bytes | None = None) -> bytes:
    """The batch up to ``value``, with the checksum of the whole, so that a writer of many entries copies each value once.
    ``ENTRY_END`` follows the value.

    ``timestamp`` (ms) is the publish time, by which the log expires and is searched.
    """
    batch_length, covered, crc = _covered(len(value), messages, timestamp, key)
    crc = crc32c(ENTRY_END, crc32c(value, crc))
    return _BEFORE_CRC.pack(0, batch_length, -1, MAGIC, crc) + covered  # -1: the leader epoch


@lru_cache(64)  # many messages of the same millisecond have the same size
def _covered(value_size: int, messages: int, timestamp: int, key: bytes | None) -> tuple[int, bytes, int]:
    """Kafka's length of the batch, the bytes before the value that its checksum covers, and their checksum."""
    batch_length, record = _record_start(value_size, key)
    after = _AFTER_CRC.pack(
        ENTRY,
        messages - 1,
        timestamp,
        timestamp,
        NO_PRODUCER_ID,
        -1,  # producer epoch
        -1,  # first sequence
        1,  # records
    )
    covered = after + record
    return batch_length, covered, crc32c(covered)


@lru_cache(256)  # many messages of a producer have the same size
def _record_start(value_size: int, key: bytes | None) -> tuple[int, bytes]:
    """Kafka's length of the batch, and the record up to its value."""
    length = _length(value_size)
    if key is None:
        before = b"\x00\x00\x00\x01" + length
    else:
        before = b"".join((_NO_DELTAS, _length(len(key)), key, length))
    record_size = len(before) + value_size + len(ENTRY_END)
    record = _length(record_size) + before
    return HEADER_SIZE - LOG_OVERHEAD + len(record) + value_size + len(ENTRY_END), record


def entry_value(view: BytesLike, pos: int, header: BatchHeader) -> tuple[int, int]:
    """Position and size of the value of the entry at ``pos``. It has ``header.last_offset_delta + 1`` messages.

    ``view`` needs only the beginning of the batch, up to the value; ``header`` is from ``read_header``. Raises
    ProtocolError if the batch is not an entry, even if it has the mark.
    """
    attributes = header.attributes
    if not attributes & ENTRY or attributes & _NEVER or header.record_count != 1 or header.last_offset_delta < 0:
        raise ProtocolError("a record batch that is not an entry")
    end = pos + LOG_OVERHEAD + header.batch_length
    at = pos + HEADER_SIZE
    try:
        # Most records have no key, and a length of two or three bytes.
        while view[at] > 0x7F:
            at += 1
        at += 1
        if view[at : at + 3] != _NO_DELTAS:
            raise ProtocolError("an entry whose record is not its first offset")
        at += 3
        if view[at] == _NULL:
            at += 1
        else:
            size, at = varint(view, at)
            if size < 0:
                raise ProtocolError(f"an entry with a key of {size} bytes")
            at += size
        size, at = varint(view, at)
    except IndexError:
        raise ProtocolError("an entry that ends before its value") from None
    # The number of headers, 0, follows the value.
    if size < 0 or at + size + 1 != end:
        raise ProtocolError(f"an entry with a value of {size} bytes where {end - at - 1} are left")
    return at, size


def _length(size: int) -> bytes:
    """A length in a record: a zig-zag varint."""
    size <<= 1
    if size < 0x80:
        return bytes((size,))
    if size < 0x4000:
        return bytes((size & 0x7F | 0x80, size >> 7))
    if size < 0x200000:
        return bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
    if size < 0x10000000:
        return bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21))
    return bytes(
        (size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21 & 0x7F | 0x80, size >> 28)
    )
