"""The subjects of the contract suites: each seam's real implementation and the simulator's, by name.

A disk's factory gets an empty directory of the real file system and returns a disk and the path of an empty directory on it. A
catalogue's gets the same and returns a function that opens the catalogue; called again, after ``close``, it opens it again. A
journal's yields the journals of owners that take over from each other, and cleans up afterwards. An
object store's gets the directory, and the request of the test, for what is started once for many tests; the store is empty.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from broker.metadata.catalogue import Catalogue, RemoteFile
from broker.metadata.database_server import DatabaseServer
from broker.metadata.journal import Journal
from broker.metadata.shared_database import SharedCatalogue
from broker.metadata.sqlite import SqliteCatalogue
from broker.metadata.sqlite_database import SqliteDatabase
from broker.runtime.channel import connect
from broker.runtime.clock import SystemClock
from broker.runtime.directory_objects import DirectoryObjects
from broker.runtime.disk import Disk, SystemDisk
from broker.runtime.objects import MemoryObjects, ObjectStore
from broker.storage.tier.cache import ChunkCache
from broker.storage.tier.tiered_disk import TieredDisk
from tests.durable.s3_server import S3Server, fresh_prefix, shared_moto, shared_seaweed
from tests.sim.catalogue import SimCatalogue, Tables
from tests.sim.disk import Medium, SimDisk
from tests.sim.journal import JournalTable
from tests.sim.world import World
from tests.storage.journal.helpers import Machines


def _system_disk(directory: Path) -> tuple[Disk, str]:
    return SystemDisk(), str(directory)


def _shipped_disk(directory: Path) -> tuple[Disk, str]:
    machine = Machines(directory).next()
    return machine.disk, machine.directory


def _simulated_disk(directory: Path) -> tuple[Disk, str]:
    world = World(seed=1)
    disk = SimDisk(world.boot(), Medium(world))
    disk.makedirs("/data")
    return disk, "/data"


def _sqlite(directory: Path) -> Callable[[], Catalogue]:
    return lambda: SqliteCatalogue(f"{directory}/catalogue.sqlite")


def _shared(directory: Path) -> Callable[[], Catalogue]:
    """With the process that has the file in this one."""

    def open_it() -> Catalogue:
        database = SqliteDatabase(f"{directory}/catalogue.sqlite")
        server = DatabaseServer(database, f"{directory}/socket", SystemClock())
        server.start()
        return _SharedAlone(f"{directory}/catalogue.sqlite", server, database)

    return open_it


class _SharedAlone(SharedCatalogue):
    def __init__(self, path: str, server: DatabaseServer, database: SqliteDatabase) -> None:
        super().__init__(path, partial(connect, f"{path.rpartition('/')[0]}/socket"))
        self._server, self._database_file = server, database

    def close(self) -> None:
        super().close()
        self._server.close()
        self._database_file.close()


def _postgres(directory: Path) -> Callable[[], Catalogue]:
    """In a schema of its own. Skips the test if the machine has no PostgreSQL."""
    pytest.importorskip("psycopg")
    from broker.metadata.postgres import PostgresCatalogue
    from broker.metadata.postgres_connection import Address
    from tests.durable.postgres import fresh_schema, shared_server

    address = Address.parse(shared_server().url, fresh_schema())
    return lambda: PostgresCatalogue(address)


def _simulated_catalogue(directory: Path) -> Callable[[], Catalogue]:
    tables = Tables()
    return lambda: SimCatalogue(None, tables)


class Journals(Protocol):
    def take_over(self) -> Journal:
        """The next owner's journal, over the same rows."""


def _memory_journals() -> Iterator[Journals]:
    yield JournalTable()


def _s3(shared: Callable[[], S3Server]) -> Callable[[pytest.FixtureRequest, Path], ObjectStore]:
    return lambda request, directory: shared().open(fresh_prefix(), request.getfixturevalue("monkeypatch"))


def _postgres_journals() -> Iterator[Journals]:
    from tests.durable.journals import PostgresJournals
    from tests.durable.postgres import fresh_schema, shared_server

    journals = PostgresJournals(shared_server().url, fresh_schema())
    try:
        yield journals
    finally:
        journals.close()


def _tiered(directory: Path) -> tuple[Disk, str]:
    """The machine's, with a file in the object store in another directory."""
    local, store = SystemDisk(), MemoryObjects()
    catalogue = SqliteCatalogue(f"{directory}/catalogue.sqlite")
    store.put("segments/a", [b"content"], 7)
    catalogue.alter_remote_files([RemoteFile("t-0/a", "segments/a", 0, 7)], (), 0)
    cache = ChunkCache(local, f"{directory}/cache", store, 1 << 20)
    cache.start()
    data = f"{directory}/data"
    disk = TieredDisk(local, data, catalogue, cache, SystemClock())
    disk.makedirs(f"{data}/t-1")
    return disk, f"{data}/t-1"


DISKS: dict[str, Callable[[Path], tuple[Disk, str]]] = {
    "system": _system_disk,
    "shipped": _shipped_disk,
    "simulated": _simulated_disk,
    "tiered": _tiered,
}
CATALOGUES: dict[str, Callable[[Path], Callable[[], Catalogue]]] = {
    "sqlite": _sqlite,
    "shared": _shared,
    "postgres": _postgres,
    "simulated": _simulated_catalogue,
}
OBJECT_STORES: dict[str, Callable[[pytest.FixtureRequest, Path], ObjectStore]] = {
    "memory": lambda request, directory: MemoryObjects(),
    "directory": lambda request, directory: DirectoryObjects(f"{directory}/objects"),
    "seaweedfs": _s3(shared_seaweed),
    "moto": _s3(shared_moto),
}
JOURNALS: dict[str, Callable[[], Iterator[Journals]]] = {
    "simulated": _memory_journals,
    "postgres": _postgres_journals,
}
