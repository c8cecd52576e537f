"""Copying a pinned backup to another directory, checking a copy, and restoring a data directory from one.

In the process of a command; the broker takes no part, except that it has pinned the files that `broker backup` copies.

Copying: each file is fsynced before the journal names it, and the manifest comes last. A closed segment that an earlier backup,
or an earlier attempt at this one, already has is not copied again: it gets a second name if both are on one disk.

Restoring: while files are copied into a data directory it has the file ``RESTORING``, with which no broker starts. The backup's
checkpoint files say how far its logs must reach, so the first start notices missing records. Producers that got their ids after
the backup may still run and write to the restored broker. So it skips some ids before it assigns any: of two producers with the
same id, the records of one would be taken for repetitions of the other's and dropped.

Tests: tests/process/test_backup.py.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs

from broker.errors import ConfigError
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime import copying
from broker.runtime.disk import Disk, File
from broker.storage.backup.layout import (
    DATA,
    JOURNAL,
    MANIFEST,
    BadBackup,
    Manifest,
    Plan,
    PlannedFile,
    StoredFile,
    journal_line,
    read_journal,
    read_manifest,
    write_manifest,
)
from broker.storage.data_directory import CATALOGUE, LOCK, RESTORING
from broker.storage.partition_dir import directory_name
from broker.storage.tier.detach import detach

# Called with the number of bytes that were copied or read since the last call. It may raise.
Tick = Callable[[int], None]


@attrs.define
class Copied:
    """The result of ``copy_backup``."""

    files: int = 0
    size: int = 0
    reused: int = 0  # number of files that were not copied
    reused_size: int = 0


def check_target(disk: Disk, target: str) -> None:
    """Raises ConfigError unless the directory is missing, empty, or an unfinished backup. OSError."""
    if not disk.exists(target):
        return
    if not disk.is_dir(target):
        raise ConfigError(f"Choose another target: {target} is not a directory.")
    names = set(disk.listdir(target)) - {"lost+found"}
    if MANIFEST in names:
        raise ConfigError(
            f"Choose another target: {target} is a backup already; --since {target} makes the next one smaller."
        )
    if names and JOURNAL not in names:
        raise ConfigError(f"Choose another target: {target} is not empty (it has {min(names)!r}).")


def copy_backup(
    disk: Disk, plan: Plan, staging: str, target: str, since: str | None = None, tick: Tick = lambda _: None
) -> Copied:
    """Copy the files of the plan from the directory ``staging`` to the absolute path ``target``. ``since``: an earlier backup.
    Raises OSError, BadBackup."""
    copying.make_private_directory(f"{target}/{DATA}")
    unfinished = {file.path: file for file in read_journal(disk, target)}
    earlier = {file.path: file for file in read_manifest(disk, since).files} if since is not None else {}
    copying.append_line(f"{target}/{JOURNAL}", "")
    stored: list[StoredFile] = []
    copied = Copied()
    made: set[str] = set()
    for file in plan.files:
        directory = f"{target}/{DATA}/{file.path}".rpartition("/")[0]
        if directory not in made:
            copying.make_private_directory(directory)
            made.add(directory)
        source = copying.identity(f"{staging}/{file.path}") if file.closed else None
        kept = _kept(disk, file, source, unfinished.get(file.path), target, None)
        kept = kept or _kept(disk, file, source, earlier.get(file.path), target, since)
        if kept is None:
            checksum = copying.copy_file(f"{staging}/{file.path}", f"{target}/{DATA}/{file.path}", file.size, tick)
            kept = StoredFile(file.path, file.size, checksum, source)
        else:
            copied.reused += 1
            copied.reused_size += file.size
            tick(0)
        copying.append_line(f"{target}/{JOURNAL}", journal_line(kept))
        stored.append(kept)
        copied.files += 1
        copied.size += file.size
    _remove_others(disk, f"{target}/{DATA}", {file.path for file in stored})
    for directory in sorted({*made, f"{target}/{DATA}"}):
        disk.sync_dir(directory)
    write_manifest(disk, target, Manifest(plan, tuple(stored)))
    disk.sync_dir(target.rpartition("/")[0] or "/")
    return copied


def _kept(
    disk: Disk,
    file: PlannedFile,
    source: copying.Identity | None,
    known: StoredFile | None,
    target: str,
    since: str | None,
) -> StoredFile | None:
    """The file that already exists in ``target`` or in the backup ``since``; None if it must be copied."""
    if source is None or known is None or known.source != source or known.size != file.size:
        return None
    path = f"{target}/{DATA}/{file.path}"
    if since is not None and not copying.link_or_none(f"{since}/{DATA}/{file.path}", path):
        return None
    try:
        return known if disk.file_size(path) == file.size else None
    except FileNotFoundError:
        return None


def _remove_others(disk: Disk, data: str, wanted: Iterable[str]) -> None:
    """Remove files that an earlier attempt has copied and the broker has deleted since."""
    keep = set(wanted)
    for path in list(copying.files_below(data)):
        if path not in keep:
            disk.remove(f"{data}/{path}")


# More ids than a broker may have assigned since the backup; there are 2**63.
PRODUCER_IDS = 1 << 32
# In a data directory that counts as empty.
_MAY_BE_THERE = {"lost+found", LOCK}


def verify(disk: Disk, backup: str, tick: Tick = lambda _: None) -> tuple[Manifest, list[str]]:
    """The manifest, and the problems of the files. Raises BadBackup if the directory is no backup, OSError."""
    manifest = read_manifest(disk, backup)
    problems = []
    data = f"{backup}/{DATA}"
    for file in manifest.files:
        try:
            found = copying.checksum_of(f"{data}/{file.path}", tick)
        except FileNotFoundError:
            problems.append(f"{file.path} is missing")
            continue
        except OSError as error:
            problems.append(f"{file.path} cannot be read: {error.strerror or error}")
            continue
        if found[0] != file.size:
            problems.append(f"{file.path} has {found[0]} bytes and should have {file.size}")
        elif found[1] != file.checksum:
            problems.append(f"{file.path} is damaged: its checksum differs")
    there = {file.path.rpartition("/")[0] for file in manifest.files}
    for each in manifest.plan.partitions:
        if directory_name(each.topic, each.partition) not in there and not each.offline:
            problems.append(f"{directory_name(each.topic, each.partition)} has no files")
    return manifest, problems


class Source(Protocol):
    """A backup that is restored. ``name``: where it is."""

    name: str

    def manifest(self) -> Manifest:
        """Raises BadBackup, OSError."""

    def copy(self, number: int, file: StoredFile, target: str, tick: Tick) -> int:
        """Make file ``number`` of the manifest the durable content of ``target``. Returns its CRC-32C. Raises OSError."""


class DirectoryBackup:
    """``Source``: a backup in a directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.name = directory
        self._disk = disk

    def manifest(self) -> Manifest:
        return read_manifest(self._disk, self.name)

    def copy(self, number: int, file: StoredFile, target: str, tick: Tick) -> int:
        return copying.copy_file(f"{self.name}/{DATA}/{file.path}", target, file.size, tick)


def restore(disk: Disk, backup: Source, data_dir: str, tick: Tick = lambda _: None) -> Manifest:
    """Make ``data_dir``, which is missing or empty, a copy of the backup's data. Raises ConfigError, BadBackup, OSError.

    An attempt that has failed leaves ``RESTORING`` there, and another attempt continues in its place.
    """
    manifest = backup.manifest()
    check_empty(disk, data_dir)
    with filled(disk, data_dir):
        for number, file in enumerate(manifest.files):
            target = f"{data_dir}/{file.path}"
            directory = target.rpartition("/")[0]
            if not disk.exists(directory):
                copying.make_private_directory(directory)
                copying.give_to_owner_of(data_dir, directory)
            if backup.copy(number, file, target, tick) != file.checksum:
                raise BadBackup(
                    f"{backup.name}/{DATA}/{file.path} is damaged: its checksum differs. Restore another backup."
                )
            copying.give_to_owner_of(data_dir, target)
        for directory in sorted({f"{data_dir}/{file.path}".rpartition("/")[0] for file in manifest.files}):
            disk.sync_dir(directory)
        _finish_catalogue(disk, data_dir, manifest)
    return manifest


@contextmanager
def filled(disk: Disk, data_dir: str) -> Iterator[None]:
    """The directory is made, locked, and has the file ``RESTORING`` until the body has ended without an error. OSError."""
    copying.make_private_directory(data_dir)
    lock = lock_new(disk, data_dir)
    try:
        marker = f"{data_dir}/{RESTORING}"
        disk.open(marker, create=True).close()
        disk.sync_dir(data_dir)
        yield
        copying.give_to_owner_of(data_dir, f"{data_dir}/{LOCK}")
        disk.remove(marker)
        disk.sync_dir(data_dir)
    finally:
        lock.close()


def check_empty(disk: Disk, data_dir: str) -> None:
    """Raises ConfigError unless the directory is missing, empty, or what an unfinished attempt has left. OSError."""
    if not disk.exists(data_dir):
        return
    names = set(disk.listdir(data_dir)) - _MAY_BE_THERE
    if names and RESTORING not in names:
        raise ConfigError(
            f"Choose another data directory: {data_dir} is not empty (it has {min(names)!r}). "
            "What is restored goes into a new directory, never over data."
        )


def lock_new(disk: Disk, data_dir: str) -> File:
    """Raises ConfigError if a broker uses it, OSError."""
    try:
        return disk.lock(f"{data_dir}/{LOCK}")
    except BlockingIOError:
        raise ConfigError(f"Stop the broker that uses {data_dir} first, or choose another data directory.") from None


def _finish_catalogue(disk: Disk, data_dir: str, manifest: Manifest) -> None:
    """Raises BadBackup if the catalogue lacks a topic of the backup, StorageError."""
    path = f"{data_dir}/{CATALOGUE}"
    catalogue = SqliteCatalogue(path)
    try:
        known = {row.name for row in catalogue.topics()}
        catalogue.allocate_producer_ids(PRODUCER_IDS)
        detach(catalogue)
    finally:
        catalogue.close()
    give_catalogue(disk, data_dir)
    lost = {each.topic for each in manifest.plan.partitions} - known
    if lost:
        raise BadBackup(f"The catalogue of the backup lacks the topic {min(lost)!r}.")


def give_catalogue(disk: Disk, data_dir: str) -> None:
    """Hand a catalogue that root has made to the owner of the directory."""
    path = f"{data_dir}/{CATALOGUE}"
    for suffix in ("", "-wal", "-shm"):
        if disk.exists(path + suffix):
            copying.give_to_owner_of(data_dir, path + suffix)
