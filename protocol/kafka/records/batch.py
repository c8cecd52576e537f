"""The 61-byte header of a record batch (format v2), read and patched in place.

A broker needs no more than the header to store and serve batches. It writes offsets and the leader's epoch outside the bytes that
the checksum covers, and never reads the records, which ``records.py`` does. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.wire import BytesLike

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 61

LOG_OVERHEAD = 12  # base offset and batch length, which the batch length excludes
SMALLEST_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD
CRC_START = 21  # the checksum covers everything from the attributes on

MAGIC = 2
COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
# This project's bit: the batch has one record, whose value a Pulsar producer sent (entry.py). Kafka uses no bit from here on.
ENTRY = 0x80

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
SEQUENCES = 2**31  # sequence numbers wrap to 0 after 2^31 - 1

_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_BASE_TIME_AT = 27
_PRODUCER_AT = 43


class UnsupportedMagic(ProtocolError):
    """A message set of format v0 or v1. Clients since Kafka 0.11 write v2."""


class CorruptBatch(ProtocolError):
    """A batch whose bytes do not match its checksum."""


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are undefined."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_entry(self) -> bool:
        return self.attributes & ENTRY != 0

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent producer wrote the batch, so that its sequence numbers are valid."""
        return self.producer_id >= 0


_new = tuple.__new__


def read_header(view: BytesLike, pos: int = 0) -> BatchHeader:
    """The header of the batch at ``pos``, which must lie wholly in ``view``. The checksum is not verified.

    Raises UnsupportedMagic for formats v0 and v1, ProtocolError for other invalid bytes.
    """
    try:
        header: BatchHeader = _new(BatchHeader, HEADER.unpack_from(view, pos))
    except struct.error:
        _refuse_old_magic(view, pos)
        raise ProtocolError(f"{len(view) - pos} bytes are too few for a record batch") from None
    if header[3] != MAGIC:
        _refuse_old_magic(view, pos)
        raise ProtocolError(f"a record batch of format {header[3]}")
    length = header[1]
    if length < SMALLEST_BATCH_LENGTH:
        raise ProtocolError(f"a record batch of {length} bytes")
    if pos + LOG_OVERHEAD + length > len(view):
        raise ProtocolError(f"a record batch of {LOG_OVERHEAD + length} bytes where {len(view) - pos} are left")
    return header


def _refuse_old_magic(view: BytesLike, pos: int) -> None:
    # In v0 and v1, too, the format's number is the 17th byte: after offset, size and CRC.
    if len(view) > pos + 16 and view[pos + 16] in (0, 1):
        raise UnsupportedMagic(f"messages of format v{view[pos + 16]} are not supported, only record batches (v2)")


def check_crc(view: BytesLike, pos: int, header: BatchHeader) -> None:
    """Raises CorruptBatch unless the batch at ``pos`` matches its checksum. ``header`` is from ``read_header``."""
    if crc32c(view[pos + CRC_START : pos + LOG_OVERHEAD + header[1]]) != header[4]:
        raise CorruptBatch("a record batch that does not match its checksum")


def batches(view: BytesLike) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in ``view``, which must end where a batch ends."""
    pos, end = 0, len(view)
    while pos < end:
        header = read_header(view, pos)
        yield pos, header
        pos += LOG_OVERHEAD + header[1]


# The header fields that lead to the next batch. A fetch may hold thousands of small batches.
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_MAGIC_AT, _LAST_OFFSET_DELTA_AT = 16, 23


def whole_batches(records: memoryview) -> tuple[int, int]:
    """The size of the whole batches in ``records``, and the offset after the last of them; -1 if there is none.

    Brokers may truncate the last batch anywhere. Raises ProtocolError for bytes other than a batch of format v2.
    """
    position, size = 0, len(records)
    last = -1
    read = _OFFSET_AND_LENGTH.unpack_from
    while size - position >= HEADER_SIZE:
        _, length = read(records, position)
        if length < SMALLEST_BATCH_LENGTH:
            raise ProtocolError(f"a record batch of {length} bytes")
        if records[position + _MAGIC_AT] != MAGIC:
            raise ProtocolError(f"a record batch of format {records[position + _MAGIC_AT]}, only format 2 is read")
        after = position + LOG_OVERHEAD + length
        if after > size:
            break
        last, position = position, after
    if last < 0:
        return 0, -1
    base_offset, _ = read(records, last)
    (delta,) = _INT32.unpack_from(records, last + _LAST_OFFSET_DELTA_AT)
    if delta < 0 or base_offset < 0:
        raise ProtocolError(f"a record batch from offset {base_offset} that ends {delta} further on")
    return position, base_offset + delta + 1


def stamp(view: memoryview | bytearray, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Writes base offset and leader epoch into the batch at ``pos``. The checksum does not cover these bytes."""
    _INT64.pack_into(view, pos, base_offset)
    _INT32.pack_into(view, pos + 12, leader_epoch)


def set_producer(view: bytearray, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
    """Writes the producer of the batch that fills ``view``, as a client does, and updates the checksum."""
    (attributes,) = _ATTRIBUTES.unpack_from(view, CRC_START)
    attributes = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(view, CRC_START, attributes)
    _PRODUCER.pack_into(view, _PRODUCER_AT, producer_id, epoch, base_sequence)
    _CRC.pack_into(view, 17, crc32c(memoryview(view)[CRC_START:]))


def set_times(view: bytearray, timestamp_ms: int) -> None:
    """Shifts the timestamps of the batch that fills ``view`` so that the newest is ``timestamp_ms``; updates the checksum."""
    (base,), (newest,) = _INT64.unpack_from(view, _BASE_TIME_AT), _INT64.unpack_from(view, _BASE_TIME_AT + 8)
    _INT64.pack_into(view, _BASE_TIME_AT, base + timestamp_ms - newest)
    _INT64.pack_into(view, _BASE_TIME_AT + 8, timestamp_ms)
    _CRC.pack_into(view, 17, crc32c(memoryview(view)[CRC_START:]))


def recoded(view: BytesLike, pos: int, header: BatchHeader, codec: int, records: BytesLike) -> bytearray:
    """A copy of the batch at ``pos`` with ``records`` in place of its records: the same, compressed with ``codec``."""
    batch = bytearray(view[pos : pos + HEADER_SIZE])
    batch[8:12] = (HEADER_SIZE - LOG_OVERHEAD + len(records)).to_bytes(4, "big")
    _ATTRIBUTES.pack_into(batch, CRC_START, header.attributes & ~COMPRESSION_MASK | codec)
    batch += records
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def set_log_append_time(view: memoryview | bytearray, pos: int, header: BatchHeader, timestamp_ms: int) -> None:
    """Makes ``timestamp_ms`` the time of every record of the batch at ``pos``, and updates the checksum."""
    _ATTRIBUTES.pack_into(view, pos + CRC_START, header.attributes | LOG_APPEND_TIME)
    _INT64.pack_into(view, pos + 35, timestamp_ms)
    _CRC.pack_into(view, pos + 17, crc32c(memoryview(view)[pos + CRC_START : pos + LOG_OVERHEAD + header[1]]))
