"""The batches of a region of a segment, one after another, with as many of their bytes as the caller needs.

Threads that may block: the file is read a chunk at a time, and the batches of a chunk share its bytes. Checksums are left to the
caller.
"""

from collections.abc import Callable, Iterator

from broker.runtime.disk import FileRegion
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import HEADER, HEADER_SIZE, MAGIC, SMALLEST_BATCH_LENGTH, BatchHeader


def walk(
    region: FileRegion, chunk_bytes: int, needed: Callable[[BatchHeader], int]
) -> Iterator[tuple[BatchHeader, int, memoryview]]:
    """Header, position in the file, and bytes of each batch from its beginning: all of them, or at least ``needed(header)``.

    Raises ProtocolError for bytes that are no batch, or one that does not end in the region or the file; OSError.
    """
    file, position, end = region.file, region.offset, region.offset + region.size
    want = chunk_bytes
    while position < end:
        want = min(want, end - position)
        data = memoryview(file.pread(want, position))
        short, want = len(data) < want, chunk_bytes
        at = 0
        while len(data) - at >= HEADER_SIZE:
            header = BatchHeader._make(HEADER.unpack_from(data, at))
            size = header.size
            if header.magic != MAGIC or header.batch_length < SMALLEST_BATCH_LENGTH or position + size > end:
                raise ProtocolError(f"no record batch at position {position}")
            found = data[at : at + size]
            if len(found) < size and len(found) < (least := needed(header)):
                if at == 0 and short:
                    raise ProtocolError(f"a record batch at position {position} that does not end")
                want = max(want, least)
                break
            yield header, position, found
            at += size
            position += size
        else:
            if at == 0:
                raise ProtocolError(f"no record batch at position {position}")
