"""What the ways of moving a broker's whole state have in common: owning it, shipping files, and telling how far it is.

The mover becomes the owner of the state first, as a broker does, so no broker serves it meanwhile, and two movers do not meet.
What is moved is what a power cut would have left: all files as they are, and the catalogue. The next start recovers from that,
with the same offsets, groups, transactions, cursors and producers. The source is never changed.

``to_database.py`` and ``to_directory.py`` are the two ways; ``resizing.py`` moves it between nodes. On the main thread of a
command.

Tests: tests/durable/test_migration.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs

from broker.cluster.owner import Callbacks
from broker.config import BrokerConfig
from broker.errors import BrokerError, Fenced
from broker.metadata.postgres_database import PostgresDatabase
from broker.runtime import Runtime
from broker.runtime.disk import Disk
from broker.server.durable import DurableState, open_durable
from broker.server.engine import PostgresEngine, open_postgres
from broker.storage.journal.shipper import Shipper

# Files and bytes that are shipped together, and open at a time.
_FILES_AT_ONCE, _BYTES_AT_ONCE = 200, 32 * 1024 * 1024


class Progress(Protocol):
    """Whom a mover tells how far it is. ``advance`` gets bytes."""

    def begin(self, what: str, total: int) -> None:
        """A part of the work begins, of so many bytes."""

    def advance(self, size: int) -> None: ...


@attrs.define
class Moved:
    """``left``: names in the data directory that are no broker's, and stay behind."""

    partitions: int = 0
    segments: int = 0
    segment_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    left: list[str] = attrs.Factory(list)


class Shipping:
    """Files of a directory that go through the journal, some at a time. ``files`` and ``size``: of those that have gone."""

    def __init__(self, disk: Disk, directory: str, shipper: Shipper) -> None:
        self.files = self.size = 0
        self._disk = disk
        self._directory = directory
        self._shipper = shipper
        self._waiting: list[tuple[str, int]] = []  # with their sizes

    def add(self, path: str) -> int:
        """With the next flush. Returns the file's size. Raises OSError."""
        size = self._disk.file_size(f"{self._directory}/{path}")
        if self._waiting and sum(size for _, size in self._waiting) + size > _BYTES_AT_ONCE:
            self.flush()
        self._waiting.append((path, size))
        if len(self._waiting) >= _FILES_AT_ONCE:
            self.flush()
        return size

    def flush(self) -> None:
        """Raises OSError."""
        waiting, self._waiting = self._waiting, []
        wanted = []
        for path, size in waiting:
            file = self._disk.open(f"{self._directory}/{path}", read_only=True)
            with self._shipper.lock:
                state = self._shipper.table.created(path)
                state.wrote(0, size)
            wanted.append((state, file))
        self._shipper.ship(wanted)
        for _, file in wanted:
            file.close()
        self.files += len(waiting)
        self.size += sum(size for _, size in waiting)


@contextmanager
def owned(config: BrokerConfig, runtime: Runtime) -> Iterator[DurableState]:
    """The state, with its threads. Raises ConfigError if a broker owns it; and BrokerError if a thread has failed."""
    crashes: list[BaseException] = []
    durable = open_durable(attrs.evolve(config, standby=False), runtime, lambda: False, open_postgres)
    assert durable is not None
    try:
        durable.start(Callbacks(on_fenced=lambda reason: crashes.append(Fenced(reason))), crashes.append)
        try:
            yield durable
        except (BrokerError, OSError) as error:
            if crashes:
                raise BrokerError(
                    f"Another broker has taken the state over, or a thread has failed: {crashes[0]}"
                ) from error
            raise
    finally:
        durable.close()
        durable.catalogue.close()


def database_of(durable: DurableState) -> PostgresDatabase:
    assert isinstance(durable.engine, PostgresEngine)
    return durable.engine.database
