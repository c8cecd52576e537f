"""What keeps the state of a broker whose machine may be lost: a catalogue, a journal and an object store, owned by this broker.

``durable.py`` makes disk and catalogue of the broker from an ``Engine``. The real one is ``PostgresEngine``; the simulator has
another.

On the thread that starts and stops the broker.

Tests: tests/server/test_durable.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs

from broker.cluster.owner import ANSWER_S, LEASE_S, Owner
from broker.config import BrokerConfig
from broker.errors import ConfigError
from broker.metadata.catalogue import Catalogue
from broker.metadata.journal import Journal
from broker.metadata.postgres import PostgresCatalogue
from broker.metadata.postgres_cluster import check_count, holder, left_to_others_s
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_feed import PostgresFeed
from broker.metadata.postgres_journal import PostgresJournal
from broker.metadata.postgres_owner import OwnerSession
from broker.runtime import Runtime
from broker.runtime.objects import ObjectStore
from broker.runtime.open_objects import open_objects, probe
from broker.runtime.process import process_name
from broker.storage.journal.shipper import ShippingLimits


class Engine(Protocol):
    """The state, which this broker owns. When another one has taken over, changes of catalogue and journal raise ``Fenced``."""

    owner: Owner
    catalogue: Catalogue
    journal: Journal
    objects: ObjectStore
    limits: ShippingLimits
    # How many objects of the journal are fetched at a time, each on a thread of its own; 0: one after the other, on none.
    readers: int

    def close(self) -> bool:
        """Give the state up, so that a standby need not wait. When nothing will be written any more; the catalogue can still be
        read. Returns whether all threads have ended."""


OpenEngine = Callable[[BrokerConfig, Runtime, Callable[[], bool]], Engine | None]


@attrs.frozen
class Seat:
    """One of ``count`` nodes that share a catalogue. ``machine``: the one that this process is on, and its number among those
    that there have ever been."""

    place: int
    count: int
    machine: str
    machine_number: int


def open_postgres(
    config: BrokerConfig, runtime: Runtime, stopped: Callable[[], bool], seat: Seat | None = None
) -> "PostgresEngine | None":
    """Become the owner of the state, or of one node's of several. With ``standby``, wait for it until ``stopped``: then None.
    Raises ConfigError."""
    assert config.catalogue is not None
    if config.objects is None:
        raise ConfigError("Set objects, too: with catalogue, the records are in an object store.")
    if config.objects.startswith("memory:"):
        raise ConfigError(
            "Set objects to a store that outlives the broker: with catalogue, acknowledged records are in it."
        )
    objects = open_objects(config.objects)
    probe(objects)
    address = Address.parse(config.catalogue, config.catalogue_schema)
    if seat is not None:
        address = attrs.evolve(address, node=seat.place)
    owner = Owner(
        partial(OwnerSession, address, ANSWER_S),
        runtime.clock,
        runtime.threads,
        holder=process_name() if seat is None else holder(seat.machine),
        address=",".join(str(listener) for listener in config.listeners),
    )
    if seat is not None:
        owner.leaves_s = partial(left_to_others_s, address, seat.count, seat.machine)
    if not owner.acquire(config.standby, stopped):
        return None
    try:
        return PostgresEngine(config, runtime, owner, objects, address, seat)
    except BaseException:
        owner.stop()
        raise


class PostgresEngine:
    """``Engine``: PostgreSQL has the catalogue and the journal."""

    readers = 8  # of 8 MiB each

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        owner: Owner,
        objects: ObjectStore,
        address: Address,
        seat: Seat | None = None,
    ) -> None:
        """Raises ConfigError, StorageError."""
        self.database = database = PostgresDatabase(address, clock=runtime.clock)
        database.epoch, database.on_fenced = owner.epoch, owner.lost
        try:
            check_count(database, 1 if seat is None else seat.count)
        except BaseException:
            database.close()
            raise
        self.feed = None if seat is None else PostgresFeed(database, seat.count, runtime.clock)
        self.owner = owner
        self.objects = objects
        self.limits = ShippingLimits(linger_s=config.ship_linger_ms / 1000)
        journal = PostgresJournal(
            database, lease_s=LEASE_S, on_renewed=owner.renewed, on_fenced=owner.lost, clock=runtime.clock
        )
        self.journal: Journal = journal
        self._close_journal = journal.close
        self.catalogue: Catalogue = PostgresCatalogue(address, database, self.feed)

    def close(self) -> bool:
        self._close_journal()
        return self.owner.stop()
