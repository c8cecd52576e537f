"""One of several nodes on one machine, as the broker's server sees it: what of the settings is its own, its catalogue, and the
thread that hears what other nodes have changed.

Tests: tests/server/test_member.py, tests/process/test_nodes.py.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs

from broker.addresses import parse_address
from broker.cluster.nodes import Nodes, directory_of, node_of, user_of
from broker.config import BrokerConfig, Listener
from broker.config.listener import NODES_LISTENER
from broker.errors import BrokerError, ConfigError, Fenced, StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.shared_database import SharedCatalogue, SharedDatabase
from broker.metadata.shared_wire import decode, encode
from broker.part import Reloads
from broker.runtime.channel import Channel, ChannelClosed, connect
from broker.runtime.disk import Disk
from broker.runtime.threads import Body, Event, run_aside
from broker.server.node_link import link
from broker.storage.data_directory import CATALOGUE
from broker.storage.log_manager import LogManager

if TYPE_CHECKING:
    from broker.storage.backup.together import Pinning

log = get_logger("cluster")

# So many messages are taken in together.
_TOGETHER_MAX = 1000
# How soon a change is taken in again that could not be.
_AGAIN_S = 1.0


class NodeWatch(Body, Protocol):
    """Hears what other nodes have changed, and makes this node known to them. ``caught_up``: what has changed since this node has
    read the catalogue is in force, so it may serve clients."""

    caught_up: Event


def take_in(table: str, reloads: Reloads) -> bool:
    """Read the table again. False: neither catalogue nor disk may be usable now, so it has to be tried again. What this node
    refuses it would refuse again: the change is not in force here, and others do not wait for that."""
    for reload in reloads.get(table, ()):
        try:
            reload()
        except BrokerError as error:
            log.error("change_not_taken_in", table=table, error=str(error))
            if isinstance(error, StorageError):
                return False
    return True


class Member:
    """``place`` among ``count`` nodes, from 0 on. ``socket``: where the process that has the catalogue listens. ``ports``: those
    that this node had before, by the listener's name."""

    def __init__(self, place: int, count: int, socket: str, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self.place = place
        self.count = count
        self._socket = socket
        self._data_dir = ""
        self._first_id = 0
        self._catalogue: SharedCatalogue | None = None

    def adapt(self, config: BrokerConfig) -> BrokerConfig:
        """The settings of this node: the ports and the number that follow on those of the first one, a directory of its own."""
        self._data_dir, self._first_id = config.data_dir, config.node_id
        return attrs.evolve(
            config,
            node_id=config.node_id + self.place,
            data_dir=directory_of(config.data_dir, self.place),
            data_dir_accept_foreign_files=True,  # it is inside of one that was looked at
            listeners=tuple(map(self._listener, config.listeners)),
            advertised_listeners={name: self._next(text) for name, text in config.advertised_listeners.items()},
        )

    def _listener(self, first: Listener) -> Listener:
        """Of a range of ports, each node takes the first that is free."""
        options = {key: self._next(text) if key == "advertised" else text for key, text in first.options.items()}
        if first.port_max > first.port:
            return attrs.evolve(first, options=options)
        port = first.port + self.place if first.port else self._ports.get(first.name, 0)
        if port > 65535:
            raise ConfigError(f"Choose a lower port for the listener {first}: node {self.place + 1} would have {port}.")
        return attrs.evolve(first, port=port, port_max=port, options=options)

    def _next(self, address: str) -> str:
        """The advertised address of this node, from that of the first one."""
        host, port = parse_address(address, "advertised_listeners")
        return f"[{host}]:{port + self.place}" if ":" in host else f"{host}:{port + self.place}"

    @property
    def listener(self) -> Listener:
        """Where the other nodes ask this one. It is none of the settings, which clients may see."""
        port = self._ports.get(NODES_LISTENER, 0)
        return Listener(NODES_LISTENER, "kafka", "127.0.0.1", port, port, sasl=True)

    def open_catalogue(self) -> Catalogue:
        self._catalogue = SharedCatalogue(f"{self._data_dir}/{CATALOGUE}", self._connect)
        return self._catalogue

    def nodes(self, disk: Disk) -> Nodes:
        assert self._catalogue is not None
        shared = self._catalogue.shared
        secret = shared.secret()
        new_link = partial(link, user_of(self.place), secret)
        return Nodes(
            self.place, self.count, self._first_id, self._data_dir, disk, shared, secret, new_link, pin=self._pin
        )

    def copy_catalogue(self, path: str) -> None:
        """Write what the catalogue has now to this path. Raises StorageError."""
        copying = SharedDatabase(self._connect)
        try:
            copying.copy_to(path)
        finally:
            copying.close()

    def _pin(self, backup_id: str, directory: str) -> "Pinning":
        from broker.storage.backup.together import Pinning

        return Pinning(self._connect(), self.count, backup_id, directory)

    def watch(
        self, logs: LogManager, reloads: Reloads, endpoints: dict[str, tuple[str, int]], rack: str | None
    ) -> NodeWatch:
        """The body of the thread ``node-watch``, which makes this node known to the others."""
        return Watch(self._connect, logs, reloads, endpoints, rack)

    def _connect(self) -> Channel:
        try:
            return connect(self._socket)
        except OSError as error:
            raise StorageError(f"The process that has the catalogue cannot be reached: {error}") from error


class Watch:
    def __init__(
        self,
        connect: Callable[[], Channel],
        logs: LogManager,
        reloads: Reloads,
        endpoints: dict[str, tuple[str, int]],
        rack: str | None,
    ) -> None:
        """``connect``: to the process that has the catalogue."""
        self._reloads = reloads
        assert logs.nodes is not None
        self._connect = connect
        channel = self._channel = connect()
        self._logs = logs
        self._nodes = logs.nodes
        self._stopping = False
        self._version = -1
        self._left: dict[str, None] = {}  # tables that are to be read up to this version
        # What has changed since this node has read the catalogue is in force, and it knows the others: it may serve clients.
        self.caught_up = Event()
        self._has_looked = False
        about = {
            "node_id": self._nodes.node_id,
            "endpoints": {name: list(address) for name, address in endpoints.items()},
            "rack": rack,
        }
        channel.send(encode(["watch", self._nodes.node_id, about, sorted(reloads)]))

    def step(self, timeout: float | None) -> bool:
        again = bool(self._left)
        received = self._receive(timeout if not again else _AGAIN_S if timeout is None else min(_AGAIN_S, timeout))
        if received is None and not again:
            return False
        left = _TOGETHER_MAX
        while received is not None:
            left -= 1
            message = decode(received)
            if message[0] == "nodes":
                first = self._nodes.first_id
                self._nodes.found({int(node) - first: node_of(about) for node, about in message[1].items()})
                self._logs.generation += 1  # answers about the cluster are made anew
            elif message[0] == "changed":
                again, self._version = True, message[1]
                self._left.update(dict.fromkeys(self._reloads if message[2] is None else message[2]))
            elif message[0] == "backup":
                self._take_part(str(message[1]), str(message[2]))
            # What has changed several times meanwhile is read once.
            received = self._receive(0) if left else None
        if again:
            self._left = {table: None for table in self._left if not take_in(table, self._reloads)}
        if again and not self._left:
            try:
                self._channel.send(encode(["applied", self._version]))
            except ChannelClosed as error:
                self._gone(error)
            self._has_looked = True
        if self._has_looked and self._nodes.living:
            self.caught_up.set()
        return True

    def _take_part(self, backup_id: str, directory: str) -> None:
        from broker.storage.backup.together import take_part

        part = partial(take_part, self._connect, self._logs, self._nodes.node_id, backup_id, directory)
        run_aside("backup-part", part)

    def _receive(self, timeout: float | None) -> bytes | None:
        try:
            return self._channel.receive(timeout)
        except ChannelClosed as error:
            self._gone(error)
            return None

    def _gone(self, error: ChannelClosed) -> None:
        if not self._stopping:
            log.error("catalogue_gone", error=str(error))
            raise Fenced("the process that has the catalogue is gone") from error

    def wakeup(self) -> None:
        self._stopping = True
        self._channel.close()
