"""The records inside a batch, read and written; and the control batches that end transactions.

The broker looks inside a batch only for compaction, timestamp look-up and a change of compression. ``batch.py`` has the header.
Records are read in order from one copy of the batch's bytes, and every size and count is checked against those bytes first. Pure.

A marker ends a transaction in a partition. In Kafka's format it is a batch with the control bit and one record, whose key is
(version 0, type: 0 abort, 1 commit) and whose value is (version 0, coordinator epoch). Clients skip the record and learn from its
type how the transaction ended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.kafka.records.batch import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from protocol.kafka.records.compression import compress, decompress
from protocol.wire import BytesLike

Headers = Sequence[tuple[str, bytes | None]]

# 256 MiB of records from one batch. Kafka has no such bound; its largest batch by default, 1 MiB compressed, holds less than
# this even with text that shrinks to a two-hundredth.
MAX_RECORDS_SIZE = 256 << 20

# One byte each for length, attributes, timestamp, offset, key length, value length and number of headers.
SMALLEST_RECORD = 7

# Headers of a record, and of all records of a batch. A header of two bytes costs as much as any other, 0.5-1 us and 100 bytes of
# memory, and 32 MiB of them compress to 30 KB. Kafka has no such bounds; clients write a few headers to a record.
MOST_HEADERS_OF_RECORD = 100_000
MOST_HEADERS = 1_000_000

# The stride, in records, of a skip: the offset of one record in so many is read.
_STRIDE = 256

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF


class Record(NamedTuple):
    """``timestamp`` is in ms; a null key or value is None. Header names are UTF-8, with invalid bytes kept as surrogates."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def records(view: BytesLike, pos: int = 0, *, max_size: int = MAX_RECORDS_SIZE) -> Iterator[Record]:
    """The records of the batch at ``pos``, decompressed to at most ``max_size`` bytes.

    The checksum is not verified (``check_crc`` does that). Raises ProtocolError, at the latest when the iterator reaches
    invalid bytes.
    """
    header = read_header(view, pos)
    return read_records(header, unpack(view, pos, header, max_size=max_size))


def unpack(view: BytesLike, pos: int, header: BatchHeader, *, max_size: int = MAX_RECORDS_SIZE) -> bytes:
    """The bytes of the records of the batch at ``pos``, decompressed to at most ``max_size``.

    Raises ProtocolError, also if the bytes are too few for the number of records in the header.
    """
    body = view[pos + HEADER_SIZE : pos + header.size]
    codec = header.compression
    data = decompress(codec, body, max_size) if codec else bytes(body)
    if header.record_count < 0 or header.record_count * SMALLEST_RECORD > len(data):
        raise ProtocolError(f"a batch of {header.record_count} records in {len(data)} bytes")
    return data


def read_records(header: BatchHeader, data: bytes, first_offset: int = 0) -> Iterator[Record]:
    """The records in ``data``, which ``unpack`` returned, from ``first_offset`` on. Raises ProtocolError when it reaches invalid
    bytes."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    log_append_time = header.max_timestamp if header.is_log_append_time else None
    left, record_end = header.record_count, 0
    headers_left = MOST_HEADERS
    try:
        if first_offset > base_offset:
            skipped, record_end = _skip_records(data, left, first_offset - base_offset)
            left -= skipped
        walked = walk_records(data, left, record_end)
        key: bytes | None
        value: bytes | None
        for timestamp_delta, offset_delta, pos, record_end in walked:
            key, pos = _nullable(data, pos, record_end)
            value, pos = _nullable(data, pos, record_end)
            count, pos = varint(data, pos)
            headers: list[tuple[str, bytes | None]] = []
            if count:
                headers_left = check_headers(count, record_end - pos, headers_left)
                for _ in range(count):
                    name, pos = _nullable(data, pos, record_end)
                    if name is None:
                        raise ProtocolError("a header without a name")
                    header_value, pos = _nullable(data, pos, record_end)
                    headers.append((name.decode("utf-8", "surrogateescape"), header_value))
            if pos != record_end:
                raise ProtocolError("a record that is not as long as it says")
            timestamp = base_timestamp + timestamp_delta if log_append_time is None else log_append_time
            yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    except IndexError:
        raise ProtocolError("a record that ends too early") from None
    if record_end != len(data):
        raise ProtocolError("a batch with more in it than its records")


def check_headers(count: int, size: int, left: int) -> int:
    """How many headers the next records may have, where this record and they may have ``left``. Raises ProtocolError if this
    record's ``count`` headers do not fit ``size`` bytes, or are too many."""
    if count < 0 or count * 2 > size:
        raise ProtocolError(f"{count} headers in {size} bytes")
    if count > MOST_HEADERS_OF_RECORD:
        raise ProtocolError(f"a record of {count} headers, where {MOST_HEADERS_OF_RECORD} are read")
    if count > left:
        raise ProtocolError(f"a batch of more than {MOST_HEADERS} headers")
    return left - count


def _skip_records(data: BytesLike, count: int, first_delta: int) -> tuple[int, int]:
    """The number of records, of ``count``, before the first whose offset delta is at least ``first_delta``, and that record's
    position. Raises ProtocolError, IndexError.

    Offset deltas ascend, so only one in a stride is read. In a batch of a million records this takes a tenth of reading them.
    """
    number = begin = 0
    after, pos = 0, 0
    while after < count and _offset_delta(data, pos) < first_delta:
        number, begin = after, pos
        after = min(count, number + _STRIDE)
        pos = _after_records(data, begin, after - number)
    while number < count and _offset_delta(data, begin) < first_delta:
        number, begin = number + 1, _after_records(data, begin, 1)
    return number, begin


def _after_records(data: BytesLike, pos: int, count: int) -> int:
    for _ in range(count):
        size = data[pos]
        if size < 0x80 and not size & 1:
            pos += 1 + (size >> 1)
        else:
            size, pos = varint(data, pos)
            if size < 0:
                raise ProtocolError(f"a record of {size} bytes")
            pos += size
    if pos > len(data):
        raise ProtocolError(f"a record that is {pos - len(data)} bytes longer than its batch")
    return pos


def _offset_delta(data: BytesLike, pos: int) -> int:
    _, pos = varint(data, pos)  # its size
    _, pos = varlong(data, pos + 1)  # the timestamp delta, after the attributes
    return varint(data, pos)[0]


def walk_records(data: BytesLike, count: int, pos: int = 0) -> Iterator[tuple[int, int, int, int]]:
    """The timestamp delta, offset delta, position of the key, and end of each of ``count`` records, the first at ``pos``.

    The walk goes from record to record by their lengths and leaves the bytes from key to end to the caller. Raises
    ProtocolError when it reaches an invalid length. ``record_scan`` says why its ``check_records`` has its own walk.
    """
    end = len(data)
    try:
        for _ in range(count):
            # One-byte varints, by far the most frequent, are decoded in place: a call takes as long as the rest of the loop.
            size = data[pos]
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
                pos += 1
            else:
                size, pos = varint(data, pos)
            record_end = pos + size
            if size < 0 or record_end > end:
                raise ProtocolError(f"a record of {size} bytes where {end - pos} are left")
            pos += 1  # attributes: none are in use
            timestamp_delta = data[pos]
            if timestamp_delta < 0x80:
                timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
                pos += 1
            else:
                timestamp_delta, pos = varlong(data, pos)
            offset_delta = data[pos]
            if offset_delta < 0x80:
                offset_delta = (offset_delta >> 1) ^ -(offset_delta & 1)
                pos += 1
            else:
                offset_delta, pos = varint(data, pos)
            yield timestamp_delta, offset_delta, pos, record_end
            pos = record_end
    except IndexError:
        raise ProtocolError("a record that ends too early") from None


def varint(data: BytesLike, pos: int) -> tuple[int, int]:
    """The zig-zag varint at ``pos``, and the position after it. Raises ProtocolError, IndexError."""
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ProtocolError("a varint of more than 5 bytes")
    if value > _MASK_32:
        raise ProtocolError("a varint of more than 32 bits")
    return (value >> 1) ^ -(value & 1), pos


def varlong(data: BytesLike, pos: int) -> tuple[int, int]:
    """As ``varint``, with 64 bits."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ProtocolError("a varint of more than 10 bytes")
    if value > _MASK_64:
        raise ProtocolError("a varint of more than 64 bits")
    return (value >> 1) ^ -(value & 1), pos


def _nullable(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size, pos = varint(data, pos)
    if size < 0:
        return None, pos
    after = pos + size
    if after > end:
        raise ProtocolError(f"a field of {size} bytes where its record has {end - pos} left")
    return data[pos:after], after


def build_batch(
    records: Iterable[tuple[bytes | None, bytes | None, Headers, int]],
    *,
    base_offset: int = 0,
    compression: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    offsets: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    partition_leader_epoch: int = -1,
    level: int | None = None,
) -> bytearray:
    """A whole batch of (key, value, headers, timestamp in ms) records, checksum included.

    ``attributes`` are the bits other than the codec's. ``offsets`` gives each record's offset, ascending from ``base_offset`` on;
    without it the offsets are dense. ``last_offset_delta``, ``base_timestamp`` and ``max_timestamp`` follow from the records; a
    cleaner that removes records passes the batch's previous values.
    """
    body = bytearray()
    latest = NO_TIMESTAMP
    count = delta = 0
    for count, (key, value, headers, timestamp) in enumerate(records, 1):
        if base_timestamp is None:
            base_timestamp = timestamp
        latest = max(latest, timestamp)
        delta = count - 1 if offsets is None else offsets[count - 1] - base_offset
        record = bytearray(1)  # attributes
        append_varint(record, timestamp - base_timestamp)
        append_varint(record, delta)
        _append_nullable(record, key)
        _append_nullable(record, value)
        append_varint(record, len(headers))
        for name, header_value in headers:
            _append_nullable(record, name.encode("utf-8", "surrogateescape"))
            _append_nullable(record, header_value)
        append_varint(body, len(record))
        body += record
    packed: bytes | bytearray = body
    if compression:
        packed = compress(compression, body, level)
    header = HEADER.pack(
        base_offset, HEADER_SIZE - LOG_OVERHEAD + len(packed), partition_leader_epoch, MAGIC, 0, attributes | compression,
        delta if last_offset_delta is None else last_offset_delta,
        NO_TIMESTAMP if base_timestamp is None else base_timestamp, latest if max_timestamp is None else max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    return with_checksum(header, packed)


def enclose(body: BytesLike, count: int, base_timestamp: int, max_timestamp: int, codec: int) -> bytearray:
    """A whole batch, checksum included, around the encoded ``body`` of ``count`` records, with base offset 0 and without a
    producer. A body that the codec would enlarge stays uncompressed."""
    used = codec
    if codec:
        packed = compress(codec, body)
        if len(packed) < len(body):
            body = packed
        else:
            used = 0
    header = HEADER.pack(
        0, HEADER_SIZE - LOG_OVERHEAD + len(body), -1, MAGIC, 0, used,
        count - 1, base_timestamp, max_timestamp, NO_PRODUCER_ID, -1, -1, count,
    )  # fmt: skip
    return with_checksum(header, body)


def with_checksum(header: bytes, body: BytesLike) -> bytearray:
    """The batch of this header, in which the checksum is not set yet, and these records as they are stored."""
    batch = bytearray().join((header, body))
    batch[17:21] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return batch


def append_varint(out: bytearray, value: int) -> None:
    """In zig-zag, of any width."""
    value = value << 1 if value >= 0 else ~(value << 1)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _append_nullable(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1 in zig-zag
    else:
        append_varint(out, len(value))
        out += value


ABORT, COMMIT = 0, 1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    commit: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """A whole control batch. The log assigns its offset."""
    key = _KEY.pack(0, COMMIT if commit else ABORT)
    return build_batch(
        [(key, _VALUE.pack(0, coordinator_epoch), [], timestamp_ms)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def parse_marker(key: bytes | None, value: bytes | None) -> Marker | None:
    """The marker in a control record, or None for another kind of control record, which does not concern transactions.

    Raises ProtocolError for a record that Kafka would not write.
    """
    if key is None or len(key) < _KEY.size:
        raise ProtocolError("a control record without a type")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise ProtocolError(f"a control record of version {version}")
    if kind not in (ABORT, COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise ProtocolError("the end of a transaction without the coordinator's epoch")
    return Marker(kind == COMMIT, _VALUE.unpack_from(value)[1])


def read_marker(batch: BytesLike) -> Marker | None:
    """The marker in a control batch. Raises ProtocolError."""
    for record in records(batch):
        return parse_marker(record.key, record.value)
    return None
