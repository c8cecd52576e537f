"""The directories of partitions: their names, what is in them, and how they go.

``<topic>-<partition>`` holds a partition's files; ``<topic>-<partition>.<32 hex digits>-delete`` is one that was deleted, under
a name that is out of the way of a new topic of the same name. A name proves nothing: people call directories ``backup-2024``.
What makes a directory a partition's is the files in it, and only those are ever removed: nothing here goes into
subdirectories, follows links, or removes a file that neither this broker nor Kafka makes.
"""

import re
import uuid
from collections.abc import Iterable

import attrs

from broker.errors import StorageError
from broker.log import get_logger
from broker.runtime.disk import Disk
from broker.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, TXN_INDEX_CHECKPOINT, partition_metadata_text
from broker.storage.segments.file_names import CLEANED, DELETED, LOG, SEGMENT_SUFFIXES, SWAP, file_name, offset_of
from broker.storage.topic import LONGEST_NAME, MOST_PARTITIONS

logger = get_logger("storage")

_PARTITION = re.compile(rf"([a-zA-Z0-9._-]{{1,{LONGEST_NAME}}})-([0-9]{{1,10}})")
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
_LONGEST_FILE_NAME = 255  # in most file systems
# What this broker or Kafka makes in a partition's directory: offset and suffix, perhaps on their way in or out, and some others.
_OF_SEGMENTS = "|".join(re.escape(suffix) for suffix in SEGMENT_SUFFIXES)
_STATES = "|".join(re.escape(state) for state in (DELETED, CLEANED, SWAP))
_SMALL_FILES = "|".join(re.escape(name) for name in (PARTITION_METADATA, LEADER_EPOCHS, TXN_INDEX_CHECKPOINT))
_OWN = re.compile(rf"[0-9]{{20}}(?:{_OF_SEGMENTS})(?:{_STATES})?|(?:{_SMALL_FILES})(?:\.tmp)?")
_KEPT = "-kept"


@attrs.frozen
class Contents:
    """What is in a directory: ``own`` are the names of a partition's files, ``foreign`` all others."""

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
    """(topic, partition) of a directory's name; None if it is not that of a partition."""
    found = _PARTITION.fullmatch(name)
    if found is None or _DELETED.fullmatch(name) or int(found[2]) >= MOST_PARTITIONS:
        return None
    if name != directory_name(found[1], int(found[2])):  # t-007
        return None
    return found[1], int(found[2])


def is_deleted(name: str) -> bool:
    return _DELETED.fullmatch(name) is not None


def is_own(name: str) -> bool:
    """Is it the name of a file that this broker, or Kafka, makes in a partition's directory?"""
    return _OWN.fullmatch(name) is not None


def look(disk: Disk, directory: str) -> Contents:
    """Raises OSError."""
    return sort_out(disk.listdir(directory))


def sort_out(names: Iterable[str]) -> Contents:
    """The names in a directory, by whose files they are."""
    everything = frozenset(names)
    own = frozenset(filter(_OWN.fullmatch, everything))
    return Contents(own, everything - own)


def has_records(disk: Disk, directory: str, contents: Contents) -> bool:
    """False for a partition that was never written to. Raises OSError."""
    for name in contents.own:
        offset = offset_of(name, LOG)
        if offset is None:
            continue
        if offset > 0 or disk.file_size(f"{directory}/{name}") > 0:
            return True
    return False


def is_unfinished(disk: Disk, directory: str, contents: Contents) -> bool:
    """Is there just what ``make`` makes, or a part of it? Kafka's partitions have index files too. Raises OSError."""
    new = {PARTITION_METADATA, f"{PARTITION_METADATA}.tmp", file_name(0, LOG)}
    return (
        bool(contents.own)
        and not contents.foreign
        and contents.own <= new
        and not has_records(disk, directory, contents)
    )


def make(disk: Disk, directory: str, topic_id: uuid.UUID, partitions: int) -> None:
    """A new partition's directory, durable in itself; the caller makes its name durable. Raises OSError.

    As few files as can be, because they are what a thousand topics cost: the indexes come with the first entries, the leader
    epochs with the second epoch. The text is not fsynced (that made creating partitions four times as slow): the catalogue has
    it too, and who finds an illegible one knows that it is ours.
    """
    disk.makedirs(directory)
    _write(disk, f"{directory}/{PARTITION_METADATA}", partition_metadata_text(topic_id, partitions))
    disk.open(f"{directory}/{file_name(0, LOG)}", create=True).close()
    disk.sync_dir(directory)


def write_metadata(disk: Disk, directory: str, topic_id: uuid.UUID, partitions: int) -> None:
    """Say to which topic the directory belongs, and how many partitions that has. Raises OSError; the old text is whole then.

    Not fsynced: what a power loss spoils the next start writes again.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    _write(disk, f"{path}.tmp", partition_metadata_text(topic_id, partitions))
    disk.rename(f"{path}.tmp", path)


def make_way(disk: Disk, directory: str) -> None:
    """Remove what an earlier attempt to make this partition has left. Raises StorageError if there is anything else, OSError."""
    if disk.is_link(directory):
        raise StorageError(f"{directory} is there and is a link: move it away")
    if not disk.exists(directory):
        return
    contents = look(disk, directory)
    if not contents.is_empty and not is_unfinished(disk, directory, contents):
        raise StorageError(f"{directory} is there and is not empty: move it away")
    remove(disk, directory)


def rename_deleted(disk: Disk, directory: str, topic: str, partition: int, unique: uuid.UUID) -> str | None:
    """Give the directory of a deleted partition a name that frees its own. Returns its new path, or None where there is no such
    directory, or one that is not a partition's. Raises OSError."""
    if not disk.exists(directory):
        return None
    if not look(disk, directory).is_partition:
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


def keep(disk: Disk, directory: str, unique: uuid.UUID) -> None:
    """Move a directory that is in the way aside, with all that is in it. Raises OSError."""
    path, _, name = directory.rpartition("/")
    suffix = f".{unique.hex}{_KEPT}"
    disk.rename(directory, f"{path}/{name[: _LONGEST_FILE_NAME - len(suffix)]}{suffix}")


def remove(disk: Disk, directory: str) -> bool:
    """Remove a partition's files, and the directory if that is all there was. Raises OSError.

    False where something is left: a link, a directory that is not a partition's, or other files in one that is (which then gets
    a name that says so). ``partition.metadata`` goes last, so that a removal that was interrupted is known for what it is.
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
    """Remove what was put out of the way: a deleted partition's directory, or one file. Raises OSError."""
    if is_deleted(path.rpartition("/")[2]):
        remove(disk, path)
        return
    try:
        disk.remove(path)
    except FileNotFoundError:
        pass
