"""``txnindex-checkpoint`` in a partition's directory: how many durable entries each ``.txnindex`` has, and their checksum.

Most segments have no such index, because no ABORT marker is in them, so a missing file says nothing by itself. But if an index is
lost or damaged, the records that it names would be read as committed. So the checkpoint says which entries there must be, and the
start rebuilds from the log an index that does not have them.

Entries beyond these were never synced. A power failure may have kept some of them, torn or with holes of zeros before them, which
read like aborted transactions of producer 0. So the start keeps none of them: the log says what they were (``without_checkpoint``
tells of the case in which it has to be read from its beginning).

The checkpoint may lack a segment, or name one that no longer exists, because compaction and retention change the row of segments
before it is written.
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
    """What the checkpoint says; nothing if it is missing or damaged. Raises OSError."""
    path = f"{directory}/{NAME}"
    try:
        return {int(base): (int(count), int(crc)) for base, count, crc in lines_of(disk, path)}
    except (CorruptCheckpoint, ValueError) as error:
        logger.warning("checkpoint_ignored", path=path, error=str(error))
        return {}


def write(disk: Disk, directory: str, sums: Sums) -> None:
    """Raises OSError."""
    replace_text(disk, f"{directory}/{NAME}", text_of(f"{base} {count} {crc}" for base, (count, crc) in sums.items()))


def counts(segments: Sequence[Segment]) -> dict[Segment, int]:
    """The number of entries that each segment has now, for those that have any."""
    return {segment: len(segment.aborted) for segment in segments if len(segment.aborted)}


def without_checkpoint(segment: Segment, sums: Sums, recovery_point: int) -> bool:
    """Does the file have entries from before the recovery point of which the checkpoint says nothing? Reads them. Raises OSError.

    That is so if the checkpoint is lost or the files are Kafka's. What this broker has added since its first checkpoint is about
    later markers.
    """
    if segment.base_offset in sums or not len(segment.aborted):
        return False
    return any(entry.last_offset < recovery_point for entry in segment.aborted.entries())


def agrees(segment: Segment, sums: Sums) -> bool:
    """Does the file have the entries that the checkpoint names? Reads them. Raises OSError."""
    expected = sums.get(segment.base_offset)
    if expected is None:
        return True
    count, crc = expected
    return segment.aborted.read_checksum(count) == crc
