"""Another number of nodes for a catalogue in PostgreSQL: from one broker to several, back, and from one number to another.

Nobody may serve meanwhile: the command owns all nodes, those that there were and those that there will be, as a broker owns one.
It replays their journals into a directory, has ``node_directories.py`` move the partitions from node to node there, as it does on
one machine, and writes a journal for each node, which is not in force yet. One transaction (``postgres_resizing.py``) puts these
into the places of the old ones, with the rows of the files in the object store and the new number. An attempt that ends before
has changed nothing, and the next one begins anew.

Directories of nodes that are no more keep what belongs to no partition, until there are so many nodes again.

On the main thread of a command. Raises ConfigError, StorageError and OSError.

Tests: tests/durable/test_resizing.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import attrs

from broker.cluster.nodes import NODES, ORDERS, SECRET_BYTES, directory_of, owner_of
from broker.cluster.owner import ANSWER_S, LEASE_S, Callbacks, Owner
from broker.config import BrokerConfig
from broker.errors import BrokerError, ConfigError, Fenced
from broker.metadata.copying import refuse_unfinished
from broker.metadata.postgres import PostgresCatalogue
from broker.metadata.postgres_cluster import count_of, read_view
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_journal import PostgresJournal
from broker.metadata.postgres_owner import OwnerSession
from broker.metadata.postgres_resizing import NOBODY, Division, begin_staged, file_keys, staged, switch
from broker.runtime import Runtime, copying
from broker.runtime.objects import ObjectStore
from broker.runtime.open_objects import open_objects, probe
from broker.runtime.process import process_name
from broker.server.durable import check_end, journal_of, owners_prefix
from broker.server.moving import Progress, Shipping
from broker.server.node_directories import COMPACTED, COMPACTED_NAME, SHUFFLE, arrange
from broker.storage import data_directory, partition_dir
from broker.storage.config import StorageConfig
from broker.storage.journal import cache_directory, store_mark
from broker.storage.journal.restoring import ahead, restore
from broker.storage.journal.shipper import Shipper, ShippingLimits

# Below the directory of the command.
_STATE = "state"
_READERS = 8
_SERVICES = (COMPACTED, SHUFFLE)


@attrs.define
class Resized:
    """``was``: the number of nodes before; nothing else is set if it is the new one."""

    was: int
    nodes: int
    partitions: int = 0  # that have moved
    files: int = 0
    file_bytes: int = 0


@attrs.frozen
class _Node:
    """A node that this command owns."""

    place: int
    owner: Owner
    database: PostgresDatabase
    journal: PostgresJournal


def resize(config: BrokerConfig, count: int, runtime: Runtime, progress: Progress) -> Resized:
    """Have the catalogue of the settings be that of ``count`` nodes. ``data_dir`` is a cache, and is emptied."""
    assert config.catalogue is not None
    assert config.objects is not None
    objects = open_objects(config.objects)
    probe(objects)
    address = Address.parse(config.catalogue, config.catalogue_schema)
    directory = data_directory.take(runtime.disk, StorageConfig.from_broker(config))
    crashes: list[BaseException] = []
    try:
        cache_directory.empty(runtime.disk, config.data_dir)
        with ExitStack() as stack:
            first = stack.enter_context(_owned(address, 0, runtime, crashes))
            _refuse_running(address, first.database)
            catalogue = PostgresCatalogue(address, first.database)
            cluster_id = catalogue.meta("cluster_id")
            if cluster_id is None:
                raise ConfigError(
                    f"Name the schema that a broker has used: {address.schema} in {address.place()} is empty."
                )
            resized = Resized(count_of(first.database), count)
            if resized.was == count:
                return resized
            refuse_unfinished(catalogue)
            _refuse_orders(catalogue)
            store_mark.claim(objects, cluster_id, lambda: store_mark.some_object(catalogue, first.journal))
            others = range(1, max(resized.was, count))
            owned = [first, *(stack.enter_context(_owned(address, node, runtime, crashes)) for node in others)]
            topics = {row.topic_id.hex: row.name for row in catalogue.topics()}
            try:
                _Resizing(config, address, owned, objects, runtime, progress, resized).run(topics)
            except (BrokerError, OSError) as error:
                if crashes:
                    raise BrokerError(f"Another broker has taken a node over: {crashes[0]}") from error
                raise
        cache_directory.empty(runtime.disk, config.data_dir)
        return resized
    finally:
        directory.close()


def _refuse_running(address: Address, database: PostgresDatabase) -> None:
    """Raises ConfigError while a machine is there."""
    for machine in read_view(database.read, address, 1).machines:
        raise ConfigError(
            f"Stop `broker serve` on all machines first: {machine.machine} was there within the last seconds."
        )


def _refuse_orders(catalogue: PostgresCatalogue) -> None:
    """Raises ConfigError if a node has something to do for partitions that it may have no longer."""
    for _ in catalogue.load_documents(ORDERS):
        raise ConfigError(
            "Start all nodes once more before you change their number: offsets of a share group were changed that a node has not "
            "heard of yet."
        )


@contextmanager
def _owned(address: Address, place: int, runtime: Runtime, crashes: list[BaseException]) -> Iterator[_Node]:
    one = attrs.evolve(address, node=place)
    _refuse_owned(one)
    owner = Owner(
        partial(OwnerSession, one, ANSWER_S),
        runtime.clock,
        runtime.threads,
        holder=process_name(),
        address="broker cluster resize",
    )
    owner.acquire(wait=False)
    try:
        owner.callbacks = Callbacks(on_fenced=lambda reason: crashes.append(Fenced(reason)))
        owner.start(crashes.append)
        database = PostgresDatabase(one, sessions=1, clock=runtime.clock)
        try:
            database.epoch = owner.epoch
            journal = PostgresJournal(database, lease_s=LEASE_S, clock=runtime.clock)
            yield _Node(place, owner, database, journal)
            journal.close()
        finally:
            database.close()
    finally:
        owner.stop()


def _refuse_owned(address: Address) -> None:
    """Raises ConfigError if a broker runs that has the node."""
    session = OwnerSession(address, ANSWER_S)
    try:
        if session.lock_holders():
            raise ConfigError(
                f"Stop all brokers of this catalogue first: {session.look().holder} has node {address.node + 1}."
            )
    finally:
        session.close()


class _Resizing:
    """``owned``: all nodes that there were, or will be, by their places."""

    def __init__(
        self,
        config: BrokerConfig,
        address: Address,
        owned: Sequence[_Node],
        objects: ObjectStore,
        runtime: Runtime,
        progress: Progress,
        resized: Resized,
    ) -> None:
        self._root = f"{config.data_dir}/{_STATE}"
        self._address = address
        self._owned = owned
        self._objects = objects
        self._runtime = runtime
        self._disk = runtime.disk
        self._progress = progress
        self._resized = resized
        self._limits = ShippingLimits(linger_s=0)

    def run(self, topics: dict[str, str]) -> None:
        """``topics``: the name of each by its id in hexadecimal digits."""
        resized = self._resized
        self._progress.begin("replaying the journals", 0)
        for node in self._owned:
            self._progress.advance(self._restore(node))
        resized.partitions = arrange(self._disk, self._root, resized.nodes)
        places = {
            (node.place, key): _place_of(key, resized.nodes, node.place, topics)
            for node in self._owned
            for key in file_keys(node.database, _SERVICES)
        }
        self._progress.begin("writing the journals", 0)
        for node in self._owned:
            self._ship(node)
        epochs = [node.owner.epoch for node in self._owned]
        secret = self._runtime.entropy.bytes(SECRET_BYTES).hex()
        division = Division(resized.nodes, _SERVICES, places, secret)
        switch(self._address, epochs, division, self._runtime.clock.time_ms())

    def _directory(self, place: int, count: int) -> str:
        return self._root if count == 1 and place == 0 else directory_of(self._root, place)

    def _restore(self, node: _Node) -> int:
        """What a start of the node begins with. Returns the number of bytes."""
        directory = self._directory(node.place, self._resized.was)
        self._disk.makedirs(directory)
        shipper = self._shipper(node, node.journal, node.owner.number)
        size = restore(self._disk, directory, node.journal, self._objects, shipper, ahead(_READERS))
        check_end(shipper, node.owner.number)
        shipper.sweep(journal_of(node.place))
        for (path,) in node.database.read(f"SELECT path FROM {node.database.address.own_schema}.remote_files"):
            if self._disk.exists(f"{directory}/{path}"):  # in the journal as well: an upload has just ended
                self._disk.remove(f"{directory}/{path}")
        return size

    def _shipper(self, node: _Node, journal: PostgresJournal, last: int) -> Shipper:
        prefix = owners_prefix(journal_of(node.place), node.owner.epoch, self._runtime.entropy)
        return Shipper(journal, self._objects, self._runtime.clock, prefix=prefix, last=last, limits=self._limits)

    def _ship(self, node: _Node) -> None:
        begin_staged(self._address, node.place, node.owner.number)
        directory = self._directory(node.place, self._resized.nodes)
        database = PostgresDatabase(staged(self._address, node.place), sessions=1, clock=self._runtime.clock)
        try:
            database.epoch = 1
            journal = PostgresJournal(database, lease_s=LEASE_S, clock=self._runtime.clock)
            try:
                shipping = Shipping(self._disk, directory, self._shipper(node, journal, node.owner.number))
                for path in copying.files_below(directory):
                    first = path.partition("/")[0]
                    if not partition_dir.is_deleted(first) and (first != NODES or directory != self._root):
                        self._progress.advance(shipping.add(path))
                shipping.flush()
            finally:
                journal.close()
        finally:
            database.close()
        self._resized.files += shipping.files
        self._resized.file_bytes += shipping.size


def _place_of(key: str, count: int, place: int, topics: dict[str, str]) -> int:
    """Which of ``count`` nodes gets the files in the object store with this key, which the node at ``place`` has."""
    parsed = partition_dir.parse_name(key)
    if parsed is not None:
        return owner_of(*parsed, count)
    if partition_dir.is_deleted(key):
        return NOBODY
    first, _, name = key.partition("/")
    match = COMPACTED_NAME.fullmatch(name) if first == COMPACTED else None
    if match is not None:
        return owner_of(topics[match[1]], int(match[2]), count) if match[1] in topics else NOBODY
    return place
