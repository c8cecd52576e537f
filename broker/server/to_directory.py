"""Moves a stopped broker from PostgreSQL and an object store into a data directory of its own, with everything in it local.

The journal is replayed into an empty directory, the segments are fetched from the store, the catalogue is written last. Until
then the directory has the file with which no broker starts, and by which another attempt knows that it may empty it.

On the main thread of a command. Raises ConfigError, StorageError and OSError.

Tests: tests/durable/test_migration.py.
"""

from itertools import groupby

from broker.config import BrokerConfig
from broker.errors import ConfigError
from broker.metadata.catalogue import RemoteFile
from broker.metadata.copying import copy_catalogue, is_empty, refuse_unfinished
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime import Runtime, copying
from broker.runtime.disk import Disk
from broker.server.durable import DurableState
from broker.server.moving import Moved, Progress, database_of, owned
from broker.storage.backup.copying import check_empty, filled
from broker.storage.data_directory import CATALOGUE, LOCK, RESTORING
from broker.storage.journal.restoring import ahead, restore

_PIECE_BYTES = 4 * 1024 * 1024


def into_directory(config: BrokerConfig, data_dir: str, runtime: Runtime, progress: Progress) -> Moved:
    """Move the state of ``catalogue`` and ``objects`` into a new data directory, with everything in it local."""
    disk = runtime.disk
    check_empty(disk, data_dir)
    with owned(config, runtime) as durable:
        refuse_unfinished(durable.catalogue)
        if is_empty(durable.catalogue):
            address = database_of(durable).address
            raise ConfigError(
                f"Name the schema that a broker has used: {address.schema} in {address.place()} is empty."
            )
        with filled(disk, data_dir):
            _remove_earlier(disk, data_dir)
            moved = _fill(disk, data_dir, durable, progress)
            target = SqliteCatalogue(f"{data_dir}/{CATALOGUE}")
            try:
                copy_catalogue(durable.catalogue, target, remote_files=False)
            finally:
                target.close()
            _make_durable(disk, data_dir)
    return moved


def _remove_earlier(disk: Disk, data_dir: str) -> None:
    """What an attempt before has left."""
    for path in list(copying.files_below(data_dir)):
        if path not in (LOCK, RESTORING):
            disk.remove(f"{data_dir}/{path}")


def _fill(disk: Disk, data_dir: str, durable: DurableState, progress: Progress) -> Moved:
    moved = Moved()
    progress.begin("replaying the journal", 0)
    moved.file_bytes = restore(
        disk, data_dir, durable.engine.journal, durable.objects, durable.shipper, ahead(durable.engine.readers)
    )
    progress.advance(moved.file_bytes)
    moved.files = sum(path not in (LOCK, RESTORING) for path in copying.files_below(data_dir))
    remote = sorted(durable.catalogue.load_remote_files(), key=lambda file: (file.object, file.position))
    progress.begin("fetching segments", sum(file.size for file in remote))
    for _, files in groupby(remote, key=lambda file: file.object):
        moved.segments += 1
        for file in files:
            _fetch(disk, data_dir, durable, file, progress)
            moved.segment_bytes += file.size
    moved.partitions = sum(row.partitions for row in durable.catalogue.topics())
    return moved


def _fetch(disk: Disk, data_dir: str, durable: DurableState, file: RemoteFile, progress: Progress) -> None:
    path = f"{data_dir}/{_inner(file.path)}"
    if disk.exists(path):  # in the journal as well: an upload has just ended
        progress.advance(file.size)
        return
    disk.makedirs(path.rpartition("/")[0])
    target = disk.open(path, create=True)
    try:
        for position in range(0, file.size, _PIECE_BYTES):
            size = min(_PIECE_BYTES, file.size - position)
            target.pwrite([durable.objects.get(file.object, file.position + position, size)], position)
            progress.advance(size)
    finally:
        target.close()


def _inner(path: str) -> str:
    """Raises ConfigError for a path that leads out of the data directory: somebody else may write to the catalogue."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ConfigError(f"The catalogue names a file outside of the data directory: {path[:100]!r}.")
    return path


def _make_durable(disk: Disk, data_dir: str) -> None:
    directories = {data_dir}
    for path in copying.files_below(data_dir):
        whole = f"{data_dir}/{path}"
        file = disk.open(whole)
        try:
            file.sync()
        finally:
            file.close()
        copying.give_to_owner_of(data_dir, whole)
        directories.add(whole.rpartition("/")[0])
    for directory in sorted(directories):
        disk.sync_dir(directory)
        copying.give_to_owner_of(data_dir, directory)
