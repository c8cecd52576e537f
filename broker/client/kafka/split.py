"""A record batch that a topic does not take, because it is above ``max.message.bytes``, as several smaller ones. Pure.

Java's producer does the same. Records are copied one by one, which costs some 10 us each: who makes batches asks
``Producer.largest`` and makes the next ones smaller, so that only what was on its way already comes here.
"""

from collections.abc import Iterator

from protocol.kafka.records.batch import HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL, read_header, set_producer
from protocol.kafka.records.records import MAX_RECORDS_SIZE, Record, build_batch, records

_SEQUENCES = 2**31  # sequence numbers go on with 0 after 2^31 - 1
# A record's own bytes beside key, value and headers, at most: seven fields of up to five bytes, a time of ten.
_RECORD_OVERHEAD = 40


def split(data: bytearray, most: int) -> list[tuple[bytearray, int]]:
    """Batches of about ``most`` bytes, two at least, and how many records each has. ``data`` must have two records or more.

    Times, headers, codec and producer stay; the sequence numbers go on from batch to batch, so that together they take those
    that ``data`` had. Raises ProtocolError if it cannot be read.
    """
    header = read_header(data)
    assert header.record_count > 1, "one record cannot be split"
    found = list(records(data, max_size=MAX_RECORDS_SIZE))
    total = sum(map(_size, found))
    # `most` is of what is sent, so it holds that much more before it is compressed.
    packed = max(1, header.size - HEADER_SIZE)
    room = min(max(1, most - HEADER_SIZE) * total // packed, total - 1)
    pieces: list[tuple[bytearray, int]] = []
    before = 0
    for group in _groups(found, room):
        piece = build_batch(
            ((one.key, one.value, one.headers, one.timestamp) for one in group),
            compression=header.compression,
            attributes=header.attributes & LOG_APPEND_TIME,
        )
        if header.has_producer:
            sequence = (header.base_sequence + before) % _SEQUENCES
            transactional = bool(header.attributes & TRANSACTIONAL)
            set_producer(piece, header.producer_id, header.producer_epoch, sequence, transactional)
        pieces.append((piece, len(group)))
        before += len(group)
    return pieces


def _groups(found: list[Record], room: int) -> Iterator[list[Record]]:
    group: list[Record] = []
    size = 0
    for one in found:
        if group and size + _size(one) > room:
            yield group
            group, size = [], 0
        group.append(one)
        size += _size(one)
    yield group


def _size(record: Record) -> int:
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(10 + len(name) + len(value or b"") for name, value in record.headers)
