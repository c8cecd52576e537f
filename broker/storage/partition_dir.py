"""The directories of partitions: their names and contents, and how they are made and removed.

``<topic>-<partition>`` holds a partition's files. ``<topic>-<partition>.<32 hex digits>-delete`` is a deleted one, whose new name
does not conflict with a new topic of the same name. A name proves nothing: users have directories like ``backup-2024``. The files
in it make a directory a partition's, and only those are ever removed: nothing here enters subdirectories, follows links, or
removes a file that neither this broker nor Kafka makes.
"""

import re
import uuid
from collections.abc import Iterable

import attrs

from broker.errors import StorageError
from broker.log import get_logger
from broker.runtime.disk import Disk
from broker.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, TXN_INDEX_CHECKPOINT, partition_metadata_text
from broker.storage.config import LONGEST_NAME, MOST_PARTITIONS
from broker.storage.segments.segment import CLEANED, DELETED, LOG, SEGMENT_SUFFIXES, SWAP, file_name, offset_of

logger = get_logger("storage")

_PARTITION = re.compile(rf"([a-zA-Z0-9._-]{{1,{LONGEST_NAME}}})-([0-9]{{1,10}})")
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
_LONGEST_FILE_NAME = 255  # in most file systems
# Files that this broker or Kafka makes in a partition's directory: some are named by offset and suffix, perhaps with the suffix
# of a file that is being made or removed.
_OF_SEGMENTS = "|".join(re.escape(suffix) for suffix in SEGMENT_SUFFIXES)
# An empty file: there may be entries among the batches of this log. A file, and not a row of the catalogue, so that it moves with
# the directory; the listing with which recovery begins shows it.
ENTRIES = "has-entries"
_STATES = "|".join(re.escape(state) for state in (DELETED, CLEANED, SWAP))
_SMALL_FILES = "|".join(re.escape(name) for name in (PARTITION_METADATA, LEADER_EPOCHS, TXN_INDEX_CHECKPOINT, ENTRIES))
_OWN = re.compile(rf"[0-9]{{20}}(?:{_OF_SEGMENTS})(?:{_STATES})?|(?:{_SMALL_FILES})(?:\.tmp)?")
_KEPT = "-kept"


@attrs.frozen
class Contents:
    """The names in a directory: ``own`` are those of a partition's files, ``foreign`` all others."""

    own: frozenset[str]
    foreign: frozenset[str]

    @property
    def is_partition(self) -> bool:
        return PARTITION_METADATA in self.own or any(offset_of(name, LOG) is not None for name in self.own)

    @property
    def is_empty(self) -> bool:
        return not self.own and not self.foreign


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def deleted_name(topic: str, partition: int, unique: uuid.UUID) -> str:
    suffix = f".{unique.hex}-delete"
    return directory_name(topic, partition)[: _LONGEST_FILE_NAME - len(suffix)] + suffix


def parse_name(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a directory's name; None if it is no such name."""
    match = _PARTITION.fullmatch(name)
    if match is None or _DELETED.fullmatch(name) or int(match[2]) >= MOST_PARTITIONS:
        return None
    if name != directory_name(match[1], int(match[2])):  # t-007
        return None
    return match[1], int(match[2])


def is_deleted(name: str) -> bool:
    return _DELETED.fullmatch(name) is not None


def is_own(name: str) -> bool:
    """True for the name of a file that this broker, or Kafka, makes in a partition's directory."""
    return _OWN.fullmatch(name) is not None


def read_contents(disk: Disk, directory: str) -> Contents:
    """Raises OSError."""
    return sort_out(disk.listdir(directory))


def sort_out(names: Iterable[str]) -> Contents:
    """The names in a directory, divided into a partition's and others."""
    everything = frozenset(names)
    own = frozenset(filter(_OWN.fullmatch, everything))
    return Contents(own, everything - own)


def has_records(disk: Disk, directory: str, contents: Contents) -> bool:
    """False for a partition to which no record was ever written. Raises OSError."""
    for name in sorted(contents.own, reverse=True):  # a later segment proves it without a look at the disk
        offset = offset_of(name, LOG)
        if offset is None:
            continue
        if offset > 0 or disk.file_size(f"{directory}/{name}") > 0:
            return True
    return False


def is_unfinished(disk: Disk, directory: str, contents: Contents) -> bool:
    """True if the directory has only files that ``make`` makes. Kafka's partitions also have index files. Raises OSError."""
    new = {PARTITION_METADATA, f"{PARTITION_METADATA}.tmp", file_name(0, LOG), ENTRIES}
    return (
        bool(contents.own)
        and not contents.foreign
        and contents.own <= new
        and not has_records(disk, directory, contents)
    )


def make(disk: Disk, directory: str, topic_id: uuid.UUID, partitions: int) -> None:
    """Make a new partition's directory. Its contents are durable; the caller makes its name durable. Raises OSError.

    It has as few files as possible, because the files are the cost of a thousand topics: the indexes are made with their first
    entries, the leader epochs with the second epoch. The text is not fsynced, which made creating partitions four times as slow.
    The catalogue has it as well, and even an illegible file shows that the directory is the broker's.
    """
    disk.makedirs(directory)
    _write(disk, f"{directory}/{PARTITION_METADATA}", partition_metadata_text(topic_id, partitions))
    disk.open(f"{directory}/{file_name(0, LOG)}", create=True).close()
    disk.sync_dir(directory)


def write_metadata(disk: Disk, directory: str, topic_id: uuid.UUID, partitions: int) -> None:
    """Write the directory's topic and the topic's number of partitions. Raises OSError; the old text is then
    whole.

    Not fsynced: the next start writes again what a power loss damages.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    _write(disk, f"{path}.tmp", partition_metadata_text(topic_id, partitions))
    disk.rename(f"{path}.tmp", path)


def mark_entries(disk: Disk, directory: str) -> None:
    """Make it durable that the log in this directory may have entries. Raises OSError."""
    disk.open(f"{directory}/{ENTRIES}", create=True).close()
    disk.sync_dir(directory)


def make_way(disk: Disk, directory: str) -> None:
    """Remove the rest of an earlier attempt to make this partition. Raises StorageError if there is anything else, OSError."""
    if disk.is_link(directory):
        raise StorageError(f"{directory} exists and is a link: move it away")
    if not disk.exists(directory):
        return
    contents = read_contents(disk, directory)
    if not contents.is_empty and not is_unfinished(disk, directory, contents):
        raise StorageError(f"{directory} exists and is not empty: move it away")
    remove(disk, directory)


def rename_deleted(disk: Disk, directory: str, topic: str, partition: int, unique: uuid.UUID) -> str | None:
    """Rename the directory of a deleted partition, so that its name is free. Returns the new path, or None if the directory is
    missing or not a partition's. Raises OSError."""
    if not disk.exists(directory):
        return None
    if not read_contents(disk, directory).is_partition:
        logger.warning(
            "directory_left_alone", path=directory, reason="it is in a partition's place and not a partition's"
        )
        return None
    path = f"{directory.rpartition('/')[0]}/{deleted_name(topic, partition, unique)}"
    disk.rename(directory, path)
    return path


def _write(disk: Disk, path: str, text: str) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.pwrite([text.encode()], 0)
    finally:
        file.close()


def move_aside(disk: Disk, directory: str, unique: uuid.UUID) -> None:
    """Rename a directory with everything in it, so that its name is free. Raises OSError."""
    path, _, name = directory.rpartition("/")
    suffix = f".{unique.hex}{_KEPT}"
    disk.rename(directory, f"{path}/{name[: _LONGEST_FILE_NAME - len(suffix)]}{suffix}")


def remove(disk: Disk, directory: str) -> bool:
    """Remove a partition's files, and the directory if nothing else is in it. Raises OSError.

    False if something is left: a link, a directory that is not a partition's, or foreign files in a partition's directory (whose
    new name then ends in ``-kept``). ``partition.metadata`` is removed last, so that the next start recognises an interrupted
    removal.
    """
    if disk.is_link(directory):
        logger.warning(
            "link_left_alone", path=directory, reason="its target may be needed elsewhere: remove both by hand"
        )
        return False
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:
        return True
    own = [name for name in names if is_own(name)]
    foreign = len(names) - len(own)
    if names and not own:
        logger.warning("directory_left_alone", path=directory, reason="it has no files of a partition")
        return False
    for name in sorted(own, key=lambda name: name == PARTITION_METADATA):
        try:
            disk.remove(f"{directory}/{name}")
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            foreign += 1
    if foreign:
        kept = f"{directory.removesuffix('-delete')}{_KEPT}"
        logger.warning("directory_kept", path=directory, moved_to=kept, reason="it has other files than a partition's")
        if not disk.exists(kept):
            disk.rename(directory, kept)
        return False
    disk.rmdir(directory)
    return True


def dispose(disk: Disk, path: str) -> None:
    """Remove the renamed directory of a deleted partition, or one file. Raises OSError."""
    if is_deleted(path.rpartition("/")[2]):
        remove(disk, path)
        return
    try:
        disk.remove(path)
    except FileNotFoundError:
        pass
