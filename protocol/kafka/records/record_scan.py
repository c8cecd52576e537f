"""Checks and look-ups over all records of a batch, in place, without an object for each record.

They serve callers that need one fact about every record (is it well formed, does it have a key, what is its time) of a batch from
an untrusted client, where a few kilobytes can hold a million records. ``records.py`` reads records as values. ``data`` is always
the result of ``records.unpack``, ``header`` the batch's. Pure.

There are two walks over the records of a batch. ``records.walk_records`` serves the readers of values and of times.
``check_records`` has a loop of its own, because it runs for every batch that a producer sends to a compacted topic, and for all
that is compacted, and would take longer over the shared walk. tests/protocol/kafka/records/test_record_scan.py checks that both
give the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader
from protocol.kafka.records.compression import begins_as
from protocol.kafka.records.records import (
    MOST_HEADERS,
    SMALLEST_RECORD,
    append_varint,
    check_headers,
    varint,
    varlong,
    walk_records,
)
from protocol.wire import BytesLike

# After so many records of the same size, a run of them is looked for.
_RUN = 4


def check_shape(data: BytesLike, codec: int, count: int) -> None:
    """Verify cheaply the records of a batch as it was sent: without a codec, that the lengths of ``count`` records lead exactly
    to its end; with a codec, that it begins as that codec's data does. Raises ProtocolError.

    Following the lengths takes 0.15 us a record. Producers often send records of the same size, so a run of equal lengths is
    followed in strides, which takes 0.02 us a record.
    """
    if codec:
        if not begins_as(codec, data, count * SMALLEST_RECORD):
            raise ProtocolError(f"records that are not compressed with the codec {codec}")
        return
    pos, end, left = 0, len(data), count
    before, equal = -1, 0  # the size of the previous record, and how many of that size came
    try:
        while left:
            first = data[pos]
            second = 0
            if first < 0x80:
                size = 1 + (first >> 1)
            elif data[pos + 1] < 0x80:
                second = data[pos + 1]
                size = 2 + ((first & 0x7F | second << 7) >> 1)
            else:
                body, at = varint(data, pos)
                size = at - pos + body
            if first & 1 or size > end - pos:
                raise ProtocolError(f"a record of {size} bytes where {end - pos} are left")
            pos += size
            left -= 1
            if size != before:
                before, equal = size, 0
                continue
            equal += 1
            if equal == _RUN and (first < 0x80 or second):
                equal = -_RUN  # in case the run ends here
                run = _equal(data[pos : pos + left * size : size], first)
                if second:
                    run = min(run, _equal(data[pos + 1 : pos + run * size : size], second))
                run = min(run, (end - pos) // size)
                pos += run * size
                left -= run
    except IndexError:
        raise ProtocolError("a record that ends too early") from None
    if pos != end:
        raise ProtocolError("a batch with more in it than its records")


def _equal(data: BytesLike, value: int) -> int:
    """How many of the first bytes are ``value``."""
    whole = bytes(data)
    return len(whole) - len(whole.lstrip(bytes((value,))))


@attrs.define(eq=False)
class Columns:
    """The keys of a batch's records, None for a null one; their offset deltas, which ascend; and the deltas of the records
    whose value is null."""

    keys: list[bytes | None] = attrs.Factory(list)
    deltas: list[int] = attrs.Factory(list)
    without_value: list[int] = attrs.Factory(list)


def check_records(
    data: bytes, count: int, most_keyless: int = 0, *, dense: bool = True, columns: Columns | None = None
) -> list[int]:
    """Verify that ``data`` is ``count`` well-formed records. Raises ProtocolError.

    Their offsets must be ``dense``, as a producer sends them, or else ascend, as after compaction. Returns the indexes of the
    first records without a key, at most ``most_keyless`` of them. ``columns`` gets what is in the records; in case of an error,
    it is of no use.
    """
    keyless: list[int] = []
    keys = None if columns is None else columns.keys
    deltas = [] if columns is None else columns.deltas
    last = -2  # as deltas and sizes are here: in zig-zag, where odd numbers are negative
    headers_left = MOST_HEADERS
    pos, end = 0, len(data)
    try:
        for index in range(count):
            # Varints of one byte, and of two where they are frequent, are decoded in place: a call takes as long as a field.
            size = data[pos]
            if size < 0x80:
                pos += 1
            elif (high := data[pos + 1]) < 0x80:
                size += (high << 7) - 0x80
                pos += 2
            else:
                size, pos = _zigzag(data, pos)
            record_end = pos + (size >> 1)
            if size & 1 or record_end > end:
                raise ProtocolError(f"a record of {(size >> 1) ^ -(size & 1)} bytes where {end - pos} are left")
            pos += 1  # attributes: none are in use
            if data[pos] < 0x80:
                pos += 1
            elif data[pos + 1] < 0x80:
                pos += 2
            else:
                _, pos = varlong(data, pos)  # timestamp delta
            delta = data[pos]
            if delta < 0x80:
                pos += 1
            else:
                delta, pos = _zigzag(data, pos)
            if delta != last + 2 and (dense or delta <= last or delta & 1):
                raise ProtocolError(f"record {index} has the offset delta {(delta >> 1) ^ -(delta & 1)}")
            last = delta
            key_size = data[pos]
            if key_size < 0x80:
                pos += 1
            else:
                key_size, pos = _zigzag(data, pos)
            key = pos
            if not key_size & 1:
                pos += key_size >> 1
            elif len(keyless) < most_keyless:
                keyless.append(index)
            if keys is not None:
                keys.append(None if key_size & 1 else data[key:pos])
                deltas.append(delta >> 1)
            size = data[pos]
            if size < 0x80:
                pos += 1
            elif (high := data[pos + 1]) < 0x80:
                size += (high << 7) - 0x80
                pos += 2
            else:
                size, pos = _zigzag(data, pos)
            if not size & 1:
                pos += size >> 1
            elif columns is not None:
                columns.without_value.append(delta >> 1)
            if pos >= record_end:
                raise ProtocolError("a record with a field that is longer than the record")
            if data[pos]:
                pos, headers_left = _headers(data, pos, record_end, headers_left)
            else:
                pos += 1
            if pos != record_end:
                raise ProtocolError("a record that is not as long as it says")
    except IndexError:
        raise ProtocolError("a record that ends too early") from None
    if pos != end:
        raise ProtocolError("a batch with more in it than its records")
    return keyless


def _zigzag(data: BytesLike, pos: int) -> tuple[int, int]:
    """The varint at ``pos`` as it is written, in zig-zag, and the position after it. Raises ProtocolError, IndexError."""
    value, pos = varint(data, pos)
    return (value << 1) ^ (value >> 31), pos


def picked(data: bytes, count: int, deltas: Sequence[int], later_ms: int = 0) -> tuple[bytearray, int]:
    """Those of ``count`` well-formed records that have these offset deltas, which ascend and are not empty, and their largest
    timestamp delta as it was. ``later_ms`` is added to their timestamp deltas, for a batch with another base timestamp."""
    out = bytearray()
    left = iter(deltas)
    wanted, latest, begin = next(left), -(1 << 63), 0
    for timestamp_delta, offset_delta, _, record_end in walk_records(data, count):
        if offset_delta == wanted:
            if later_ms:
                _, after_size = varint(data, begin)
                _, after_time = varlong(data, after_size + 1)
                record = bytearray(data[after_size : after_size + 1])
                append_varint(record, as_int64(timestamp_delta + later_ms))
                record += data[after_time:record_end]
                append_varint(out, len(record))
                out += record
            else:
                out += data[begin:record_end]
            latest = max(latest, timestamp_delta)
            wanted = next(left, -1)
            if wanted < 0:
                return out, latest
        begin = record_end
    raise AssertionError(f"no record has the offset delta {wanted}")


def as_int64(value: int) -> int:
    """As Java computes with timestamps: beyond its ends, the range of 64 bits begins again."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _headers(data: BytesLike, pos: int, end: int, left: int) -> tuple[int, int]:
    """The position after the headers at ``pos``, and how many headers the next records may have."""
    count, pos = varint(data, pos)
    left = check_headers(count, end - pos, left)
    for _ in range(count):
        size, pos = varint(data, pos)
        if size < 0:
            raise ProtocolError("a header without a name")
        size, pos = varint(data, pos + size)
        pos += max(0, size)
        if pos > end:
            raise ProtocolError("a header that is longer than its record")
    return pos, left


def first_record(
    header: BatchHeader, data: BytesLike, timestamp: int, start: int, most_records: int
) -> tuple[int, int] | None:
    """(offset, timestamp in ms) of the first record from offset ``start`` on that is not older than ``timestamp``, or None.

    Raises ProtocolError, also for a batch of more than ``most_records``.
    """
    for offset, record_timestamp in _times(header, data, most_records):
        if record_timestamp >= timestamp and offset >= start:
            return offset, record_timestamp
    return None


def latest_record(header: BatchHeader, data: BytesLike, start: int, most_records: int) -> tuple[int, int] | None:
    """(offset, timestamp in ms) of the first record from ``start`` on with the largest timestamp; otherwise like
    ``first_record``."""
    best: tuple[int, int] | None = None
    for offset, timestamp in _times(header, data, most_records):
        if offset >= start and (best is None or timestamp > best[1]):
            best = offset, timestamp
    return best


def _times(header: BatchHeader, data: BytesLike, most_records: int) -> Iterator[tuple[int, int]]:
    if header.record_count > most_records:
        raise ProtocolError(f"a batch of {header.record_count} records, where {most_records} are looked at")
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    for timestamp_delta, offset_delta, _, _ in walk_records(data, header.record_count):
        yield base_offset + offset_delta, base_timestamp + timestamp_delta if append_time is None else append_time
