"""Checks a backup against its manifest, and makes a data directory of it. In the process of a command; no broker takes part.

While files are copied into a data directory it has the file ``RESTORING``, with which no broker starts. The checkpoint files that
belong to a backup say how far its logs must reach, so the first start notices what is missing.

Producers that got their ids after the backup may still run and write to the restored broker. So ids are left out before it gives
any: of two producers with one id, the records of one would be taken for repetitions of the other's and dropped.

Tests: tests/storage/backup/test_restoring.py, tests/process/test_backup.py.
"""

from collections.abc import Callable

from broker.errors import ConfigError
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime import copying
from broker.runtime.disk import Disk, File
from broker.storage.backup.manifest import DATA, BadBackup, Manifest, read_manifest
from broker.storage.data_directory import CATALOGUE, LOCK, RESTORING
from broker.storage.partition_dir import directory_name

Tick = Callable[[int], None]
# As many ids as a broker may have given since the backup, and more; there are 2**63.
_PRODUCER_IDS = 1 << 32
# In a data directory that counts as empty.
_MAY_BE_THERE = {"lost+found", LOCK}


def verify(disk: Disk, backup: str, tick: Tick = lambda _: None) -> tuple[Manifest, list[str]]:
    """The manifest, and what is wrong with the files. Raises BadBackup if it is no backup, OSError."""
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


def restore(disk: Disk, backup: str, data_dir: str, tick: Tick = lambda _: None) -> Manifest:
    """Make ``data_dir``, which is missing or empty, a copy of the backup's data. Raises ConfigError, BadBackup, OSError.

    An attempt that has failed leaves ``RESTORING`` there, and another one continues in its place.
    """
    manifest = read_manifest(disk, backup)
    _check_empty(disk, data_dir)
    copying.make_private_directory(data_dir)
    lock = _lock(disk, data_dir)
    try:
        marker = f"{data_dir}/{RESTORING}"
        disk.open(marker, create=True).close()
        disk.sync_dir(data_dir)
        for file in manifest.files:
            target = f"{data_dir}/{file.path}"
            directory = target.rpartition("/")[0]
            if not disk.exists(directory):
                copying.make_private_directory(directory)
                copying.give_to_owner_of(data_dir, directory)
            checksum = copying.copy_file(f"{backup}/{DATA}/{file.path}", target, file.size, tick)
            if checksum != file.checksum:
                raise BadBackup(
                    f"{backup}/{DATA}/{file.path} is damaged: its checksum differs. Restore another backup."
                )
            copying.give_to_owner_of(data_dir, target)
        for directory in sorted({f"{data_dir}/{file.path}".rpartition("/")[0] for file in manifest.files}):
            disk.sync_dir(directory)
        _finish_catalogue(disk, data_dir, manifest)
        copying.give_to_owner_of(data_dir, f"{data_dir}/{LOCK}")
        disk.remove(marker)
        disk.sync_dir(data_dir)
    finally:
        lock.close()
    return manifest


def _check_empty(disk: Disk, data_dir: str) -> None:
    if not disk.exists(data_dir):
        return
    names = set(disk.listdir(data_dir)) - _MAY_BE_THERE
    if names and RESTORING not in names:
        raise ConfigError(
            f"Choose another data directory: {data_dir} is not empty (it has {min(names)!r}). "
            "A backup is restored into a new directory, never over data."
        )


def _lock(disk: Disk, data_dir: str) -> File:
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
        catalogue.allocate_producer_ids(_PRODUCER_IDS)
    finally:
        catalogue.close()
    for suffix in ("", "-wal", "-shm"):
        if disk.exists(path + suffix):
            copying.give_to_owner_of(data_dir, path + suffix)
    lost = {each.topic for each in manifest.plan.partitions} - known
    if lost:
        raise BadBackup(f"The catalogue of the backup lacks the topic {min(lost)!r}.")
