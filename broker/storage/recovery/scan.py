"""Verifying a segment from a position on: header, order and checksum of every batch, and the bytes after a bad batch.

Used by recovery at the start and by the scrub, on their threads. It reads the log file and changes nothing.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from broker.runtime.disk import PAGE_BYTES, File
from broker.storage.segments.segment import BASE_OFFSET, CRC, EPOCH, LAST_DELTA, LENGTH, MAX_RELATIVE, NEVER, Header
from protocol.frames import crc32c
from protocol.kafka.records.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, SMALLEST_BATCH_LENGTH

CHUNK_BYTES = 1024 * 1024
# Disks write this many bytes as a whole. A page that is being overwritten when the power fails may have old and new sectors.
SECTOR_BYTES = 512
# The length of a batch is not zero, so a header does not begin with this many zeros.
_LENGTH_END = 12

# The cost of examining a batch, in bytes that could be verified in the same time.
BATCH_COST_BYTES = 2048

OnBatch = Callable[[int, Header], None]


class Scanned(NamedTuple):
    """The scan ended at ``position``, where ``offset`` follows; ``bad`` if a bad batch ended it."""

    position: int
    offset: int
    bad: bool


def _nothing(position: int, header: Header) -> None:
    pass


def scan(
    file: File,
    position: int,
    end: int,
    offset: int,
    *,
    base_offset: int,
    dense_from: int = 0,
    newest_epoch: int = 0,
    on_batch: OnBatch = _nothing,
    stop_after: int | None = None,
) -> Scanned:
    """Verify the batches from ``position`` to ``end`` of the file of the segment that begins with ``base_offset``. The first
    batch has ``offset`` or a later offset.

    No gap between offsets reaches beyond ``dense_from``, because compaction has not been there yet. The checksum of a batch does
    not cover its base offset and leader epoch; only such rules protect them. ``on_batch`` is called for every good batch. The
    scan ends at ``end``, at the first bad batch, or after the work of about ``stop_after`` bytes.
    """
    unpack = HEADER.unpack_from
    left = NEVER if stop_after is None else stop_after
    want = 0
    while position < end and left > 0:
        data = memoryview(file.pread(min(want or min(CHUNK_BYTES, max(left, PAGE_BYTES)), end - position), position))
        want = 0
        at = 0
        while len(data) - at >= HEADER_SIZE and left > 0:
            header: Header = unpack(data, at)
            size = header[LENGTH] + LOG_OVERHEAD
            base = header[BASE_OFFSET]
            if (
                header[3] != MAGIC
                or size < SMALLEST_BATCH_LENGTH + LOG_OVERHEAD
                or position + size > end
                or base < offset
                or (base != offset and base > dense_from)
                or base + header[LAST_DELTA] - base_offset > MAX_RELATIVE
                or header[LAST_DELTA] < 0
                or not 0 <= header[EPOCH] <= newest_epoch
            ):
                return Scanned(position, offset, True)
            if at + size > len(data):
                break
            if crc32c(data[at + CRC_START : at + size]) != header[CRC]:
                return Scanned(position, offset, True)
            on_batch(position, header)
            offset = base + header[LAST_DELTA] + 1
            position += size
            at += size
            left -= size + BATCH_COST_BYTES
        if at == 0:
            if len(data) < HEADER_SIZE:
                return Scanned(position, offset, True)
            want = header[LENGTH] + LOG_OVERHEAD  # larger than a chunk: read again, whole
    return Scanned(position, offset, False)


def find_batch(file: File, position: int, end: int, offset: int) -> int | None:
    """The position of the next good batch with ``offset`` or a later offset, at or after ``position``; None if there is none.

    After a bad batch nothing tells where the next batch begins, so every position is tried that looks like a header: the upper
    half of a possible offset, and the format's number in its place.
    """
    # A batch further on has an offset that the bytes in between could have reached.
    upper_halves = {(offset + ahead) >> 32 for ahead in (0, end - position)}
    prefixes = b"|".join(re.escape(half.to_bytes(4, "big")) for half in sorted(upper_halves))
    pattern = re.compile(b"(?=(?:" + prefixes + b").{12}\x02)", re.DOTALL)
    while end - position >= HEADER_SIZE:
        data = file.pread(min(CHUNK_BYTES, end - position), position)
        if len(data) < HEADER_SIZE:
            return None
        for match in pattern.finditer(data, 0, len(data)):
            at = match.start()
            if at + HEADER_SIZE > len(data):
                break  # the next chunk has the whole header
            header: Header = HEADER.unpack_from(data, at)
            size = header[LENGTH] + LOG_OVERHEAD
            if (
                header[BASE_OFFSET] < offset
                or header[LENGTH] < SMALLEST_BATCH_LENGTH
                or position + at + size > end
                or header[LAST_DELTA] < 0
            ):
                continue
            batch = data[at : at + size] if at + size <= len(data) else file.pread(size, position + at)
            if crc32c(memoryview(batch)[CRC_START:]) == header[CRC]:
                return position + at
        position += max(1, len(data) - HEADER_SIZE + 1)
    return None


def never_written(file: File, position: int, end: int, offset: int) -> bool:
    """True if the bytes from ``position``, where a batch should begin with ``offset``, to ``end`` show that a write did not reach
    the disk before a power failure: all of them are zero, or a whole sector, or all from ``position`` to the end of its sector,
    if no such batch begins with so many zeros. Damaged bytes that were written do not look like that."""
    first = min(SECTOR_BYTES - position % SECTOR_BYTES, end - position)
    if (first > _LENGTH_END or any(offset.to_bytes(8)[:first])) and not file.pread(first, position).strip(b"\0"):
        return True
    if end - position <= CHUNK_BYTES and not file.pread(end - position, position).strip(b"\0"):
        return True
    position += first
    empty = bytes(SECTOR_BYTES)
    while position + SECTOR_BYTES <= end:
        data = file.pread(min(CHUNK_BYTES, end - position), position)
        if any(data[at : at + SECTOR_BYTES] == empty for at in range(0, len(data), SECTOR_BYTES)):
            return True
        position += CHUNK_BYTES
    return False
