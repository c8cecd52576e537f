"""The formats of the small files that say how far something has got. They are replaced as a whole, so that a crash leaves the old
or the new content.

Kafka's files and formats: ``recovery-point-offset-checkpoint`` (records before it were fsynced and need no scan),
``log-start-offset-checkpoint`` and ``cleaner-offset-checkpoint`` (the first offset that was not compacted) in the data directory;
``leader-epoch-checkpoint`` and ``partition.metadata`` in the directory of each partition. Kafka does not have
``txnindex-checkpoint`` (``storage/log/state.py``). They are files and not rows of the catalogue for two reasons: Kafka can
open a data directory, or a partition can be moved, without the catalogue; and one write a minute serves all partitions.

A lost or damaged checkpoint costs time, never records: everything is scanned, or deleted records come back.

Pure functions over a ``Disk``; ``upkeep/housekeeper.py`` decides when the files are written.
"""

import base64
import binascii
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.runtime.disk import Disk

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
TXN_INDEX_CHECKPOINT = "txnindex-checkpoint"  # its content: storage/log/state.py

_VERSION = 0
_LARGEST_FILE = 64 * 1024 * 1024
# A replacement that finds the disk full may be this much longer than the file was.
_SPARE_BYTES = 4096

Offsets = dict[tuple[str, int], int]


class CorruptCheckpoint(Exception):
    """A checkpoint file that cannot be read."""


def read_text(disk: Disk, path: str) -> str | None:
    """The text of a small file; None if there is no file. Raises CorruptCheckpoint if it is not text, OSError."""
    try:
        file = disk.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        return file.pread(min(file.size(), _LARGEST_FILE), 0).decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path} is not text") from error
    finally:
        file.close()


def replace_text(disk: Disk, path: str, text: str, *, spare: bool = False) -> None:
    """Make ``text`` the durable content of the file at ``path``. Raises OSError; the file is then as it was.

    ``spare``: keep a file under the temporary name, somewhat larger than this file, so that the next replacement overwrites
    blocks that it has. Retention frees space on a full disk, and before it removes segments it must write the new log starts.
    """
    temporary, data = path + ".tmp", text.encode()
    file = disk.open(temporary, create=True)
    try:
        file.pwrite([data], 0)
        file.truncate(len(data))
        try:
            file.sync()
        except OSError:
            disk.remove(temporary)  # its content on the disk is unknown from now on
            raise
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.rpartition("/")[0] or ".")
    if spare:
        try:
            file = disk.open(temporary, create=True)
        except OSError:
            return  # the next replacement makes it, if there is room
        try:
            file.pwrite([bytes(len(data) + _SPARE_BYTES)], 0)
        except OSError:
            pass  # it has at least some blocks
        finally:
            file.close()


def lines_of(disk: Disk, path: str) -> list[list[str]]:
    """The fields of each line of a file that has a version, the number of lines, and the lines. Raises CorruptCheckpoint,
    OSError."""
    text = read_text(disk, path)
    if text is None:
        return []
    lines = text.splitlines()
    try:
        if int(lines[0]) != _VERSION:
            raise CorruptCheckpoint(f"{path} has version {lines[0]}")
        if int(lines[1]) != len(lines) - 2:
            raise CorruptCheckpoint(f"{path} says {lines[1]} lines and has {len(lines) - 2}")
    except (IndexError, ValueError) as error:
        raise CorruptCheckpoint(f"{path} has no version or number of lines") from error
    return [line.split(" ") for line in lines[2:]]


def read_offsets(disk: Disk, path: str) -> Offsets:
    """(topic, partition) -> offset; empty if there is no file. Raises CorruptCheckpoint, OSError."""
    offsets: Offsets = {}
    for fields in lines_of(disk, path):
        try:
            topic, partition, offset = fields
            offsets[topic, int(partition)] = int(offset)
        except ValueError as error:
            raise CorruptCheckpoint(f"{path} has the line {' '.join(fields)!r}") from error
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[tuple[str, int], int], *, spare: bool = False) -> None:
    """Write durably. ``spare``: see ``replace_text``. Raises OSError; the file is then as it was."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    replace_text(disk, path, text_of(lines), spare=spare)


def text_of(lines: Iterable[str]) -> str:
    """The text that ``lines_of`` reads."""
    listed = list(lines)
    return "\n".join([str(_VERSION), str(len(listed)), *listed, ""])


def read_leader_epochs(disk: Disk, directory: str) -> list[tuple[int, int]]:
    """(epoch, start offset) of each leader epoch. Raises CorruptCheckpoint."""
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        return [(int(epoch), int(start)) for epoch, start in lines_of(disk, path)]
    except ValueError as error:
        raise CorruptCheckpoint(f"{path} has a line that is not an epoch and an offset") from error


class PartitionMetadata(NamedTuple):
    """The topic that a partition's directory names; None for missing (Kafka does not write the number of partitions) or illegible
    fields."""

    topic_id: uuid.UUID | None
    partitions: int | None


_NOTHING = PartitionMetadata(None, None)


def partition_metadata_text(topic_id: uuid.UUID, partitions: int) -> str:
    """Kafka's two lines and the number of partitions: Kafka's reader (PartitionMetadataReadBuffer) reads the first two lines
    only."""
    # Kafka writes topic ids as URL-safe base64 without padding.
    encoded = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: 0\ntopic_id: {encoded}\npartitions: {partitions}\n"


def metadata_matches(disk: Disk, directory: str, topic_id: uuid.UUID, partitions: int) -> bool:
    """True if ``partition.metadata`` is exactly what would be written. Faster than parsing it. Raises OSError."""
    try:
        file = disk.open(f"{directory}/{PARTITION_METADATA}", read_only=True)
    except FileNotFoundError:
        return False
    expected = partition_metadata_text(topic_id, partitions).encode()
    try:
        return file.pread(len(expected) + 1, 0) == expected
    finally:
        file.close()


def read_partition_metadata(disk: Disk, directory: str) -> PartitionMetadata:
    """Raises OSError."""
    try:
        text = read_text(disk, f"{directory}/{PARTITION_METADATA}")
    except CorruptCheckpoint:
        return _NOTHING
    topic_id: uuid.UUID | None = None
    partitions: int | None = None
    for line in (text or "").splitlines(keepends=True):
        name, _, value = line.partition(": ")
        if name == "topic_id":
            try:
                topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(value.strip() + "=="))
            except (ValueError, binascii.Error):
                return _NOTHING
        # A number without the end of its line may be incomplete.
        elif (
            name == "partitions" and line.endswith("\n") and (digits := value.strip()).isdecimal() and digits.isascii()
        ):
            partitions = int(digits)
    return PartitionMetadata(topic_id, partitions)
