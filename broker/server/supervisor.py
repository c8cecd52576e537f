"""`broker serve --nodes N`: has the catalogue and the data directory, and runs a process for each node, which it starts again
when it ends. It serves no client.

On the main thread, which waits; ``metadata/database_server.py`` has threads of its own.

Tests: tests/process/test_nodes.py.
"""

from collections.abc import Callable, Mapping, Sequence

from broker.cluster.nodes import SECRET_BYTES
from broker.config import BrokerConfig
from broker.config.listener import NODES_LISTENER
from broker.errors import ConfigError
from broker.log import get_logger
from broker.metadata.database_server import DatabaseServer
from broker.metadata.sqlite import SqliteCatalogue
from broker.metadata.sqlite_database import SqliteDatabase
from broker.runtime import Runtime
from broker.runtime.threads import Event
from broker.server.node_directories import arrange
from broker.server.node_processes import PLACE, PORTS, NodeProcesses, place_in, ports_text
from broker.server.services import all_listeners
from broker.server.tiering import refuse_without_store
from broker.storage import data_directory
from broker.storage.config import StorageConfig

log = get_logger("cluster")

# The variable of a node that says where the catalogue is.
SOCKET = "BROKER_NODE_SOCKET"
_LOOK_S = 0.05
# What a socket's path may have at most: sockaddr_un has 108 bytes.
_PATH_MAX = 100


class Supervisor:
    def __init__(self, config: BrokerConfig, runtime: Runtime, count: int, arguments: Sequence[str]) -> None:
        """``arguments``: of ``broker`` for each node."""
        self._config = config
        self._runtime = runtime
        self._count = count
        self._stopping = Event()
        self._socket = f"{config.data_dir}/.nodes.socket"
        self.processes = NodeProcesses(runtime.clock, arguments, config.node_id, self._variables)
        self._ports: dict[int, str] = {}  # clients find a node that was started again where it was

    def request_stop(self) -> None:
        self._stopping.set()

    def run(self, ready: Callable[[Mapping[str, str]], None]) -> None:
        """Until ``request_stop``. ``ready`` is called with the first node's listeners (``host:port`` by name) when all nodes are
        there for the first time. Raises ConfigError."""
        config, runtime = self._config, self._runtime
        if len(self._socket.encode()) > _PATH_MAX:
            raise ConfigError(f"Choose a data_dir with a shorter name: {config.data_dir} has no room for a socket's.")
        check_listeners(config)
        directory = data_directory.take(runtime.disk, StorageConfig.from_broker(config))
        try:
            moved = arrange(runtime.disk, config.data_dir, self._count)
            if moved:
                log.info("partitions_moved", partitions=moved, nodes=self._count)
            database = SqliteDatabase(f"{config.data_dir}/{data_directory.CATALOGUE}")
            try:
                if config.objects is None:
                    refuse_without_store(runtime.disk, SqliteCatalogue("", database), config.data_dir, self._count)
                secret = runtime.entropy.bytes(SECRET_BYTES).hex()
                server = DatabaseServer(database, self._socket, runtime.clock, self._kill, secret)
                server.start()
                try:
                    self._run(server, ready)
                finally:
                    self.processes.end(config.shutdown_timeout_ms / 1000)
                    server.close()
            finally:
                database.close()
        finally:
            directory.close()

    def _run(self, server: DatabaseServer, ready: Callable[[Mapping[str, str]], None]) -> None:
        told = False
        self.processes.start(0)
        while not self._stopping.wait(_LOOK_S):
            there = len(server.nodes)
            for node, about in server.nodes.items():
                self._ports[node - self._config.node_id] = ports_text(about)
            if there and self.processes.count < self._count:  # the first one has made the catalogue what it has to be
                for place in range(1, self._count):
                    self.processes.start(place)
            if there == self._count and not told:
                told = True
                endpoints = server.nodes[self._config.node_id]["endpoints"]
                ready({name: f"{host}:{port}" for name, (host, port) in endpoints.items() if name != NODES_LISTENER})
            if 2 in self.processes.look() and not told:
                raise ConfigError("A node could not be started: the event before this one says what to change.")

    def _variables(self, place: int) -> dict[str, str]:
        return {PLACE: f"{place}/{self._count}", SOCKET: self._socket, PORTS: self._ports.get(place, "")}

    def _kill(self, node: int) -> None:
        """A node that stands still is started again: others would wait for it at each change."""
        self.processes.kill(node - self._config.node_id)


def check_listeners(config: BrokerConfig) -> None:
    """Raises ConfigError."""
    if any(listener.name == NODES_LISTENER for listener in all_listeners(config)):
        raise ConfigError(
            f"Give the listener {NODES_LISTENER!r} another name: nodes have one of this name for themselves."
        )


def place_of(variables: Mapping[str, str]) -> tuple[int, int, str, dict[str, int]] | None:
    """What ``Member`` is made from, if this process is a node of several. Raises BrokerError."""
    if PLACE not in variables:
        return None
    place, count, ports = place_in(variables, SOCKET)
    return place, count, variables[SOCKET], ports
