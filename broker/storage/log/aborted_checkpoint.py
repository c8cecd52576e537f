"""``txnindex-checkpoint`` in a partition's directory: how many durable entries each ``.txnindex`` has, and their checksum.

Most segments end no transaction by an ABORT and have no such index, so one that is missing says nothing by itself; and without
it, or with one that is damaged, the records that it names would be read as committed. So the checkpoint says what must be there.
At the start what is not is made again from the log. If the checkpoint itself is missing (no transaction was aborted yet, or the
files are Kafka's), the indexes are taken as they are.

A segment that the checkpoint does not name, or that it names and that is gone, is none of its business: compaction and retention
change the row of segments first.
"""

from collections.abc import Sequence

from broker.log import get_logger
from broker.runtime.disk import Disk
from broker.storage.checkpoints import TXN_INDEX_CHECKPOINT, CorruptCheckpoint, lines_of, replace_text, text_of
from broker.storage.segments.segment import Segment

logger = get_logger("storage")

NAME = TXN_INDEX_CHECKPOINT

# Base offset of the segment -> number of entries, CRC-32C of them.
Sums = dict[int, tuple[int, int]]


def read(disk: Disk, directory: str) -> Sums:
    path = f"{directory}/{NAME}"
    try:
        return {int(base): (int(count), int(crc)) for base, count, crc in lines_of(disk, path)}
    except (CorruptCheckpoint, ValueError) as error:
        logger.warning("checkpoint ignored", path=path, error=str(error))
        return {}


def write(disk: Disk, directory: str, sums: Sums) -> None:
    """Raises OSError."""
    replace_text(disk, f"{directory}/{NAME}", text_of(f"{base} {count} {crc}" for base, (count, crc) in sums.items()))


def counts(segments: Sequence[Segment]) -> dict[Segment, int]:
    """How many entries there are now."""
    return {segment: len(segment.aborted) for segment in segments if len(segment.aborted)}


def agrees(segment: Segment, sums: Sums) -> bool:
    """Are the entries there, and as they were? Reads them from the file. Raises OSError."""
    said = sums.get(segment.base_offset)
    if said is None:
        return True
    count, crc = said
    return segment.aborted.read_checksum(count) == crc
