"""The records of a batch, looked at where they lie: no object is made of any of them.

For whoever needs to know one thing of all records (are they well formed, do they have keys, which is the first of a time) of a
batch that a stranger wrote: a batch of a few kilobytes can hold a million records. ``records.py`` reads them as values.
``data`` is always what ``records.unpack`` returned, ``header`` the batch's.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader
from protocol.kafka.records.records import varint, varlong
from protocol.wire import BytesLike


def check_records(data: BytesLike, count: int, most_keyless: int = 0, *, dense: bool = True) -> list[int]:
    """Verify that ``data`` is ``count`` well-formed records. Their offsets must be ``dense``, as they come from a producer, or
    at least ascend, as compaction leaves them. Raises ProtocolError.

    Returns the numbers of the records without a key, at most the first ``most_keyless`` of them.
    """
    keyless: list[int] = []
    last = -1
    pos, end = 0, len(data)
    try:
        for index in range(count):
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
            if data[pos] < 0x80:
                pos += 1
            else:
                _, pos = varlong(data, pos)  # timestamp delta
            delta = data[pos]
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
                pos += 1
            else:
                delta, pos = varint(data, pos)
            if delta != index if dense else delta <= last:
                raise ProtocolError(f"record {index} has the offset delta {delta}")
            last = delta
            for field in (0, 1):  # key, value
                size = data[pos]
                if size < 0x80:
                    size = (size >> 1) ^ -(size & 1)
                    pos += 1
                else:
                    size, pos = varint(data, pos)
                if size >= 0:
                    pos += size
                elif not field and len(keyless) < most_keyless:
                    keyless.append(index)
            if pos >= record_end:
                raise ProtocolError("a record with a field that is longer than the record")
            if data[pos]:
                pos = _headers(data, pos, record_end)
            else:
                pos += 1
            if pos != record_end:
                raise ProtocolError("a record that is not as long as it says")
    except IndexError:
        raise ProtocolError("a record that ends too early") from None
    if pos != end:
        raise ProtocolError("a batch with more in it than its records")
    return keyless


def _headers(data: BytesLike, pos: int, end: int) -> int:
    """Where the headers end that begin at ``pos``."""
    count, pos = varint(data, pos)
    if count < 0 or count * 2 > end - pos:
        raise ProtocolError(f"{count} headers in {end - pos} bytes")
    for _ in range(count):
        size, pos = varint(data, pos)
        if size < 0:
            raise ProtocolError("a header without a name")
        size, pos = varint(data, pos + size)
        pos += max(0, size)
        if pos > end:
            raise ProtocolError("a header that is longer than its record")
    return pos


def first_record(
    header: BatchHeader, data: BytesLike, timestamp: int, start: int, most_records: int
) -> tuple[int, int] | None:
    """(offset, timestamp in ms) of the first record from offset ``start`` on that is not older than ``timestamp``; None if there
    is none. Raises ProtocolError, also if the answer is not among the first ``most_records``."""
    for offset, found in _times(header, data, most_records):
        if found >= timestamp and offset >= start:
            return offset, found
    return None


def latest_record(header: BatchHeader, data: BytesLike, start: int, most_records: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record from ``start`` on that has the largest timestamp, as ``first_record``."""
    best: tuple[int, int] | None = None
    for offset, found in _times(header, data, most_records):
        if offset >= start and (best is None or found > best[1]):
            best = offset, found
    return best


def _times(header: BatchHeader, data: BytesLike, most_records: int) -> Iterator[tuple[int, int]]:
    if header.record_count > most_records:
        raise ProtocolError(f"a batch of {header.record_count} records, where {most_records} are looked at")
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    pos, end = 0, len(data)
    try:
        for _ in range(header.record_count):
            size, pos = varint(data, pos)
            record_end = pos + size
            if size < 0 or record_end > end:
                raise ProtocolError(f"a record of {size} bytes where {end - pos} are left")
            delta, pos = varlong(data, pos + 1)
            offset_delta, pos = varint(data, pos)
            yield base_offset + offset_delta, base_timestamp + delta if append_time is None else append_time
            pos = record_end
    except IndexError:
        raise ProtocolError("a record that ends too early") from None
