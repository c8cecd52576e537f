"""Small files that say how far something is: replaced as a whole, so a crash leaves the old one or the new one.

Kafka's files and formats: ``recovery-point-offset-checkpoint`` (what is before it was fsynced and need not be scanned),
``log-start-offset-checkpoint``, ``cleaner-offset-checkpoint`` (first offset that was not compacted) in the data directory,
``leader-epoch-checkpoint`` and ``partition.metadata`` in each partition's; there is one of ours beside them
(``aborted_checkpoint.py``). They are files and not rows of the catalogue so that a data directory, or one partition of it, stays
one that Kafka can open and that can be moved without the catalogue; and because they are one write for all partitions a minute,
whatever their number.

A checkpoint that is lost or damaged costs time, never records: everything is scanned, or deleted records come back.
"""

import base64
import binascii
import errno
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.runtime.disk import Disk, File

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
TXN_INDEX_CHECKPOINT = "txnindex-checkpoint"  # its content: log/aborted_checkpoint.py

_VERSION = 0
_LARGEST_FILE = 64 * 1024 * 1024
_PAGE_BYTES = 4096
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

Offsets = dict[tuple[str, int], int]


class CorruptCheckpoint(Exception):
    """A checkpoint file that cannot be read."""


def read_text(disk: Disk, path: str) -> str | None:
    """A small text file; None if it is not there. Raises CorruptCheckpoint if it is not text."""
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


def replace_text(disk: Disk, path: str, text: str) -> None:
    """Make ``text`` the durable content of the file at ``path``. Raises OSError; the file is then as it was."""
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwrite([text.encode()], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.rpartition("/")[0] or ".")


def lines_of(disk: Disk, path: str) -> list[list[str]]:
    """The fields of each line of a file of the form: version, number of lines, lines."""
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
    """(topic, partition) -> offset; empty if the file is not there. Raises CorruptCheckpoint."""
    offsets: Offsets = {}
    for fields in lines_of(disk, path):
        try:
            topic, partition, offset = fields
            offsets[topic, int(partition)] = int(offset)
        except ValueError as error:
            raise CorruptCheckpoint(f"{path} has the line {' '.join(fields)!r}") from error
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Durably. Raises OSError; the file is then as it was.

    Retention makes room on a full disk, and must first say here where the logs begin. So where there is no room for a new file,
    the text goes over the old one. That is only done within a page, which a power loss leaves whole in one state or the other.
    """
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    text = text_of(lines)
    try:
        replace_text(disk, path, text)
    except OSError as error:
        if error.errno not in _NO_ROOM or not _overwrite(disk, path, text.encode()):
            raise


def _overwrite(disk: Disk, path: str, text: bytes) -> bool:
    """False if the file is not there or too large. Raises OSError; the file is then as it was."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return False
    try:
        before = file.pread(_PAGE_BYTES + 1, 0)
        if max(len(before), len(text)) > _PAGE_BYTES:
            return False
        try:
            _write_over(file, text)
        except OSError:
            _write_over(file, before)
            raise
    finally:
        file.close()
    return True


def _write_over(file: File, text: bytes) -> None:
    file.pwrite([text], 0)
    file.truncate(len(text))
    file.sync()


def text_of(lines: Iterable[str]) -> str:
    """What ``lines_of`` reads."""
    listed = list(lines)
    return "\n".join([str(_VERSION), str(len(listed)), *listed, ""])


def read_leader_epochs(disk: Disk, directory: str) -> list[tuple[int, int]]:
    """(epoch, start offset) of each leader epoch. Raises CorruptCheckpoint."""
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        return [(int(epoch), int(start)) for epoch, start in lines_of(disk, path)]
    except ValueError as error:
        raise CorruptCheckpoint(f"{path} has a line that is not an epoch and an offset") from error


def leader_epochs_text(epochs: Iterable[tuple[int, int]]) -> str:
    return text_of(f"{epoch} {start}" for epoch, start in epochs)


class PartitionMetadata(NamedTuple):
    """What a partition's directory says of its topic; None where it does not say (Kafka does not count), or not legibly."""

    topic_id: uuid.UUID | None
    partitions: int | None


_NOTHING = PartitionMetadata(None, None)


def partition_metadata_text(topic_id: uuid.UUID, partitions: int) -> str:
    """Kafka's two lines and one of ours: Kafka's reader (PartitionMetadataReadBuffer) looks at the first two only."""
    # Kafka writes topic ids as URL-safe base64 without padding.
    encoded = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: 0\ntopic_id: {encoded}\npartitions: {partitions}\n"


def says(disk: Disk, directory: str, topic_id: uuid.UUID, partitions: int) -> bool:
    """Is ``partition.metadata`` just what would be written? Quicker than to read what it says. Raises OSError."""
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
        # A number without the end of its line may be half a number.
        elif (
            name == "partitions" and line.endswith("\n") and (digits := value.strip()).isdecimal() and digits.isascii()
        ):
            partitions = int(digits)
    return PartitionMetadata(topic_id, partitions)
