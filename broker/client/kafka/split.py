"""Splits a record batch that its topic refuses, because it is above ``max.message.bytes``, into several smaller ones. Pure.

Java's producer does the same. Records are copied one by one, which costs about 10 us each. A caller that builds batches asks
``Producer.largest`` and builds the next ones smaller, so that only batches that were already on their way are split.
"""

from collections.abc import Iterator

from protocol.kafka.records.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    SEQUENCES,
    TRANSACTIONAL,
    read_header,
    set_producer,
)
from protocol.kafka.records.records import MAX_RECORDS_SIZE, Record, build_batch, records

# The most bytes that a record takes beside key, value and headers: seven fields of up to five bytes, a time of ten.
_RECORD_OVERHEAD = 40


def split(data: bytearray, most: int) -> list[tuple[bytearray, int]]:
    """Batches of about ``most`` bytes, at least two, and the number of records in each. ``data`` must have two records or more.

    Times, headers, codec and producer stay. The sequence numbers continue from batch to batch, so that together the batches
    use the numbers that ``data`` had. Raises ProtocolError if ``data`` cannot be read.
    """
    header = read_header(data)
    assert header.record_count > 1, "one record cannot be split"
    unpacked = list(records(data, max_size=MAX_RECORDS_SIZE))
    total = sum(map(_size, unpacked))
    # `most` counts compressed bytes: scale it to what they hold before compression.
    packed = max(1, header.size - HEADER_SIZE)
    group_bytes = min(max(1, most - HEADER_SIZE) * total // packed, total - 1)
    pieces: list[tuple[bytearray, int]] = []
    before = 0
    for group in _groups(unpacked, group_bytes):
        piece = build_batch(
            ((record.key, record.value, record.headers, record.timestamp) for record in group),
            compression=header.compression,
            attributes=header.attributes & LOG_APPEND_TIME,
        )
        if header.has_producer:
            sequence = (header.base_sequence + before) % SEQUENCES
            transactional = bool(header.attributes & TRANSACTIONAL)
            set_producer(piece, header.producer_id, header.producer_epoch, sequence, transactional)
        pieces.append((piece, len(group)))
        before += len(group)
    return pieces


def _groups(unpacked: list[Record], group_bytes: int) -> Iterator[list[Record]]:
    group: list[Record] = []
    size = 0
    for record in unpacked:
        if group and size + _size(record) > group_bytes:
            yield group
            group, size = [], 0
        group.append(record)
        size += _size(record)
    yield group


def _size(record: Record) -> int:
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(10 + len(name) + len(value or b"") for name, value in record.headers)
