"""The directories of partitions: their names, what is in a new one, and how they go.

``<topic>-<partition>`` holds a partition's files; ``<topic>-<partition>.<32 hex digits>-delete`` is one that was deleted, under
a name that is out of the way of a new topic of the same name.
"""

import re
import uuid

from broker.runtime.disk import Disk
from broker.storage.checkpoints import PARTITION_METADATA, partition_metadata_text
from broker.storage.files import LOG, file_name, offset_of

_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]{1,10})")
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
_LONGEST_NAME = 255  # of a file, in most file systems


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def deleted_name(topic: str, partition: int, unique: uuid.UUID) -> str:
    suffix = f".{unique.hex}-delete"
    return directory_name(topic, partition)[: _LONGEST_NAME - len(suffix)] + suffix


def parse_name(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a directory's name; None if it is not that of a partition."""
    found = _PARTITION.fullmatch(name)
    if found is None or _DELETED.fullmatch(name):
        return None
    return found[1], int(found[2])


def is_deleted(name: str) -> bool:
    return _DELETED.fullmatch(name) is not None


def make(disk: Disk, directory: str, topic_id: uuid.UUID) -> None:
    """A new partition's directory, durable in itself; the caller makes its name durable. Raises OSError.

    As few files as can be, because they are what a thousand topics cost: the indexes come with the first entries, the leader
    epochs with the second epoch. The text is not fsynced: the catalogue has it too.
    """
    disk.makedirs(directory)
    _write(disk, f"{directory}/{PARTITION_METADATA}", partition_metadata_text(topic_id))
    disk.open(f"{directory}/{file_name(0, LOG)}", create=True).close()
    disk.sync_dir(directory)


def _write(disk: Disk, path: str, text: str) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.pwrite([text.encode()], 0)
    finally:
        file.close()


def write_metadata(disk: Disk, directory: str, topic_id: uuid.UUID) -> None:
    _write(disk, f"{directory}/{PARTITION_METADATA}", partition_metadata_text(topic_id))


def has_records(disk: Disk, directory: str) -> bool:
    """False for one that was made and never written to."""
    for name in disk.listdir(directory):
        offset = offset_of(name, LOG)
        if offset is None:
            continue
        file = disk.open(f"{directory}/{name}", read_only=True)
        try:
            if offset > 0 or file.size() > 0:
                return True
        finally:
            file.close()
    return False


def remove_tree(disk: Disk, path: str) -> None:
    """A file, or a directory and the files in it; what is not there is fine. Raises OSError."""
    try:
        if disk.is_dir(path):
            for name in disk.listdir(path):
                remove_tree(disk, f"{path}/{name}")
            disk.rmdir(path)
        else:
            disk.remove(path)
    except FileNotFoundError:
        pass
