"""One of several nodes that share a catalogue in PostgreSQL, as the broker's server sees it, and the thread that hears what
other nodes have changed.

A node is a whole durable broker: it has an owner's row, a lease, a journal and files of its own. This process stands by for
one, and has it from when the lease is its.

Tests: tests/durable/test_nodes_machines.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import attrs

from broker.cluster.nodes import ORDERS, MachineNodes, Nodes, moved_id, node_of, user_of
from broker.cluster.owner import Callbacks, Owner
from broker.config import BrokerConfig, Listener
from broker.config.listener import NODES_LISTENER
from broker.errors import BrokerError, StorageError
from broker.log import EventLimit, get_logger
from broker.metadata.postgres_cluster import drain, read_view
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_feed import FeedListener, PostgresFeed
from broker.part import Reloads
from broker.runtime import Runtime
from broker.runtime.client_tls import TlsSettings
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.threads import Event
from broker.server import engine
from broker.server.engine import PostgresEngine, Seat
from broker.server.member import Member, NodeWatch
from broker.server.node_link import client_tls, link
from broker.storage.log_manager import LogManager

log = get_logger("cluster")

# What coordinators of share groups want done at this node (``kafka/share/other_nodes.py``).
_ORDERS = f"documents/{ORDERS}"

# How often a node looks that nobody wakes.
_LOOK_S = 1.0
# How soon it notices that it should stop.
_STOP_S = 0.25


class SeatMember(Member):
    """A ``Member`` whose catalogue is in PostgreSQL. ``ports``: those that this node had on this machine before."""

    def __init__(self, seat: Seat, ports: Mapping[str, int]) -> None:
        super().__init__(seat.place, seat.count, "", ports)
        self._seat = seat
        self._clock: Clock | None = None
        self._feed: PostgresFeed | None = None
        self._owner: Owner | None = None
        self._database: PostgresDatabase | None = None
        self._known: dict[str, int] = {}
        self._tls_config: BrokerConfig | None = None  # if nodes speak TLS with each other
        self._tls: Callable[[], TlsSettings] | None = None
        self._reached: tuple[str, str] = ("", "")  # the host to bind for other nodes, and the one that they are told

    def adapt(self, config: BrokerConfig) -> BrokerConfig:
        seat = self._seat
        node_id = moved_id(config.node_id, seat.machine_number, seat.place, seat.count)
        adapted = attrs.evolve(super().adapt(config), standby=True, node_id=node_id)
        first = first_listener(adapted.listeners)
        advertised = adapted.advertised_address(first.name)
        self._reached = first.host, first.host if advertised is None else advertised[0]
        if first.ssl:
            adapted = attrs.evolve(adapted, listener_settings=_with_tls(adapted.listener_settings, first.name))
            self._tls_config = adapted
        return adapted

    @property
    def reached_by_nodes(self) -> str:
        """The name or address by which other nodes find this one."""
        return self._reached[1]

    @property
    def listener(self) -> Listener:
        """At the address of the first listener for Kafka's clients, as other machines have to reach it, and with TLS if that has
        it."""
        return attrs.evolve(super().listener, host=self._reached[0], ssl=self._tls_config is not None)

    def open_engine(self, config: BrokerConfig, runtime: Runtime, stopped: Callable[[], bool]) -> PostgresEngine | None:
        """``OpenEngine``."""
        opened = engine.open_postgres(config, runtime, stopped, self._seat)
        if opened is not None:
            assert opened.feed is not None
            self._feed, self._clock, self._database = opened.feed, runtime.clock, opened.database
            self._owner = opened.owner
            if self._tls_config is not None:
                self._tls = partial(client_tls, self._tls_config, runtime.disk)
                self._tls()  # what is wrong is said now
            self._feed.end_earlier()
            self._known = opened.feed.versions()  # before anything is read
            self._known.pop(_ORDERS, None)  # those that came while this node was away wait for it
        return opened

    def nodes(self, disk: Disk) -> Nodes:
        assert self._feed is not None
        secret = self._feed.secret()
        return Nodes(
            self.place,
            self.count,
            self._first_id,
            self._data_dir,
            disk,
            self,
            secret,
            partial(link, user_of(self.place), secret, tls=self._tls),
            self._feed.lock_topics,
            self._feed.epoch,
            moved_id(self._first_id, self._seat.machine_number, self.place, self.count),
            machines=self,
        )

    def machines(self) -> list[MachineNodes]:
        """``Machines``."""
        assert self._database is not None
        view = read_view(self._database.read, self._database.address, self.count)
        serving = {seat.node for seat in view.seats if seat.serves}
        return [
            MachineNodes(
                row.machine, row.version, row.weight, row.drained, nodes, [*filter(serving.__contains__, nodes)]
            )
            for row in view.machines
            for nodes in [view.had_by(row.machine)]
        ]

    def drain(self, machine: str, *, drained: bool) -> bool:
        """``Machines``."""
        assert self._database is not None
        return drain(self._database, machine, drained=drained)

    def settle(self, timeout_s: float, node: int) -> bool:
        """``Settling``."""
        assert self._feed is not None
        return self._feed.settle(timeout_s, self.place)

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        """``Settling``."""
        assert self._feed is not None
        return self._feed.changed_topics(since)

    def watch(
        self, logs: LogManager, reloads: Reloads, endpoints: dict[str, tuple[str, int]], rack: str | None
    ) -> NodeWatch:
        """The body of the thread ``node-watch``. When this returns the others know this node. Raises StorageError."""
        assert self._feed is not None
        assert self._clock is not None
        _, port = endpoints[NODES_LISTENER]
        reached = {**endpoints, NODES_LISTENER: (self.reached_by_nodes, port)}
        assert self._owner is not None
        assert logs.nodes is not None
        about = {
            "node_id": logs.nodes.node_id,
            "endpoints": {name: list(address) for name, address in reached.items()},
            "rack": rack,
            "epoch": self._feed.epoch,
            "machine": self._seat.machine,
        }
        return FeedWatch(self._feed, logs, reloads, about, self._known, self._clock, self._owner.callbacks)


def _with_tls(settings: Mapping[str, str], name: str) -> dict[str, str]:
    """``listener_settings`` in which the listener for nodes has the certificates of the listener ``name``, unless it has its own.
    Who connects there is known by its login, so no certificate is asked for."""
    prefix = f"{name}.ssl".lower()
    copied = {
        f"{NODES_LISTENER}.{key[len(name) + 1 :]}": text
        for key, text in settings.items()
        if key.lower().startswith(prefix) and "client" not in key.lower()[len(name) :]
    }
    own = any(key.lower().startswith(f"{NODES_LISTENER}.") for key in settings)
    return dict(settings) if own else {**settings, **copied}


def first_listener(listeners: Sequence[Listener]) -> Listener:
    """The one at whose address nodes reach each other."""
    return min(listeners, key=lambda listener: listener.scheme != "kafka")


class FeedWatch:
    """Reads again what others have changed, says so, and knows who is there."""

    def __init__(
        self,
        feed: PostgresFeed,
        logs: LogManager,
        reloads: Reloads,
        about: Mapping[str, Any],
        known: dict[str, int],
        clock: Clock,
        callbacks: Callbacks,
    ) -> None:
        """``known``: the tables' numbers from before they were read. ``callbacks``: of this node's owner. Looks for the first
        time. Raises StorageError."""
        assert logs.nodes is not None
        self._feed = feed
        self._logs = logs
        self._nodes = logs.nodes
        self._reloads = reloads
        self._about = about
        self._known = known
        self._applied = -1
        self._clock = clock
        self._complaints = EventLimit()
        self._stopping = Event()
        self._listener: FeedListener | None = None
        # What has changed since this node has read the catalogue is in force: it may serve clients.
        self.caught_up = Event()
        self._known_at = -inf  # when the look began after which all that had changed was in force
        self._wanted_at = -inf  # a look is wanted that begins later
        self._looked = clock.monotonic()
        callbacks.known_at = self.known_at
        self._look()
        self.caught_up.set()

    def known_at(self, returned_at: float) -> float:
        """``Callbacks``. On the thread ``lease-watch``."""
        self._wanted_at = returned_at
        return self._known_at

    def step(self, timeout: float | None) -> bool:
        try:
            return self._step(_STOP_S if timeout is None else min(_STOP_S, timeout))
        finally:
            if self._stopping.is_set():
                self._drop_listener()

    def _step(self, wait_s: float) -> bool:
        try:
            if self._listener is None:
                self._listener = FeedListener(self._feed)
                self._looked -= _LOOK_S  # nobody was heard meanwhile
            woken = self._listener.wait(wait_s)
            now = self._clock.monotonic()
            if not woken and now < self._looked + _LOOK_S and self._looked > self._wanted_at:
                return False
            self._looked = now
            self._look()
        except StorageError as error:  # the engine is away, or another broker has this node now
            self._drop_listener()
            dropped = self._complaints.take(self._clock.monotonic())
            if dropped is not None:
                log.warning("changes_not_heard", error=str(error), dropped=dropped)
            self._stopping.wait(wait_s)
        return True

    def _look(self) -> None:
        """Twice if the others did not know that this node is there: they have not waited for it after their latest changes."""
        if not self._look_once():
            self._look_once()

    def _look_once(self) -> bool:
        """Whether the others knew that this node is there."""
        began = self._clock.monotonic()
        versions = self._feed.versions()
        taken_in = [
            self._take_in(table, version)
            for table, version in sorted(versions.items())
            if table and self._known.get(table, 0) < version
        ]
        before = self._applied
        if all(taken_in):
            self._applied, self._known_at = versions.get("", 0), began
        living = self._feed.living()
        own = next((each for each in living if each.node == self._nodes.place), None)
        if before != self._applied or own is None or own.applied != self._applied:
            self._feed.register(self._about, max(0, self._applied))
            if own is None:
                self._feed.notify()
                living = self._feed.living()
        found = {each.node: node_of(each.about) for each in living}
        if found != self._nodes.living:
            self._nodes.found(found)
            self._logs.generation += 1  # answers about the cluster are made anew
        return own is not None

    def _take_in(self, table: str, version: int) -> bool:
        for reload in self._reloads.get(table, ()):
            try:
                reload()
            except BrokerError as error:  # the next look tries again
                log.error("change_not_taken_in", table=table, error=str(error))
                return False
        self._known[table] = version
        return True

    def _drop_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def wakeup(self) -> None:
        self._stopping.set()
