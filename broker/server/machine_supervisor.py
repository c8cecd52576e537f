"""`broker serve --nodes N --catalogue postgresql://...`: one of several machines that are one cluster. It runs a process for
each node, which has its node or stands by for it, and hands nodes over to machines that have fewer. It serves no client.

A machine that has at least two nodes more than another one, or is drained, ends one of its processes cleanly; the other machine's
process waits for the lock and has it at once, and the one that is started again here stands by. One node of the cluster moves at
a time, and only while all of them serve. A machine that is lost gives up its nodes with the connections of its processes, which
end with this one.

On the main thread, which waits.

Tests: tests/durable/test_nodes_machines.py.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import attrs

from broker.cluster.nodes import SECRET_BYTES
from broker.cluster.owner import ANSWER_S
from broker.config import BrokerConfig, Listener
from broker.config.listener import ALL_INTERFACES, NODES_LISTENER
from broker.errors import ConfigError, StorageError
from broker.log import EventLimit, get_logger
from broker.metadata.postgres_cluster import SEEN_S, ClusterSession, ClusterView
from broker.metadata.postgres_connection import Address
from broker.runtime import Runtime
from broker.runtime.process import process_name
from broker.runtime.threads import Event
from broker.security.tls_listener import tls_config
from broker.server.engine import Seat
from broker.server.node_processes import PLACE, PORTS, NodeProcesses, place_in, ports_text
from broker.server.seat import SeatMember, first_listener
from broker.server.services import all_listeners
from broker.server.supervisor import check_listeners
from broker.storage import data_directory
from broker.storage.config import StorageConfig
from broker.storage.journal import cache_directory

log = get_logger("cluster")

# The variable of a node's process that has the machine's number and its name.
MACHINE = "BROKER_NODE_MACHINE"
_LOOK_S = 0.1
_BEAT_S = 1.0
# The longest that a node may take to serve elsewhere before another one may move.
_MOVE_S = 30.0
# A machine that has just got a node hands none over: the processes of one that was lost still stand in the queue for a second.
_GOT_S = 2.0


@attrs.define
class _Move:
    """A node on its way to another machine."""

    node: int
    pid: int  # of its process here, which has been told to end
    ends_at: float  # monotonic s
    killed_at: float
    is_over: bool = False


class MachineSupervisor:
    def __init__(self, config: BrokerConfig, runtime: Runtime, count: int, arguments: Sequence[str]) -> None:
        """``arguments``: of ``broker`` for each node. Raises ConfigError."""
        assert config.catalogue is not None
        _check(config)
        self._config = config
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._count = count
        self._address = Address.parse(config.catalogue, config.catalogue_schema)
        self._machine = f"{process_name().rpartition(', ')[0]} {runtime.entropy.uuid().hex[:8]}"
        drawn = base64.urlsafe_b64encode(runtime.entropy.uuid().bytes).decode().rstrip("=")
        self._cluster_id = config.cluster_id or drawn
        self._secret = runtime.entropy.bytes(SECRET_BYTES).hex()
        self._version = version("reactor-broker")
        self._stopping = Event()
        self._number = 0  # of this machine
        self._ports: dict[int, str] = {}
        self.processes = NodeProcesses(runtime.clock, arguments, config.node_id, self._variables)
        self._session: ClusterSession | None = None
        self._move: _Move | None = None
        self._mine: list[int] = []  # the nodes that this machine has had since ``_mine_since``, monotonic s
        self._mine_since = 0.0
        self._versions: set[str] = set()
        self._complaints = EventLimit()

    def request_stop(self) -> None:
        self._stopping.set()

    def run(self, ready: Callable[[Mapping[str, str]], None]) -> None:
        """Until ``request_stop``. ``ready`` is called once, when all nodes of the cluster serve, with the listeners
        (``host:port`` by name) of the first one on this machine, or of the first one at all. Raises ConfigError."""
        config = self._config
        directory = data_directory.take(self._disk, StorageConfig.from_broker(config))
        try:
            self._empty(config.data_dir)
            if not self._prepare():
                return
            log.info("machine_started", machine=self._machine, number=self._number, nodes=self._count)
            try:
                for place in range(self._count):
                    self.processes.start(place)
                self._run(ready)
            finally:
                self._leave()
                self.processes.end(config.shutdown_timeout_ms / 1000)
                self._drop_session()
        finally:
            directory.close()

    def _empty(self, data_dir: str) -> None:
        """The nodes' directories are caches, which the start of a node empties. Raises ConfigError if there is anything else."""
        try:
            cache_directory.empty(self._disk, data_dir)
        except OSError as error:
            raise ConfigError(f"The data directory {data_dir} cannot be used: {error}.") from error

    def _prepare(self) -> bool:
        """Wait for the engine. False: it should stop."""
        while True:
            try:
                self._session = ClusterSession(self._address, ANSWER_S)
                self._session.prepare(self._count, self._cluster_id, self._secret)
                return self._join(self._session)
            except StorageError as error:
                self._drop_session()
                self._complain("waiting_for_engine", error)
            if self._stopping.wait(_BEAT_S):
                return False

    def _join(self, session: ClusterSession) -> bool:
        """Wait until no other machine is there that has this one's address: it was perhaps killed a moment ago. False: it should
        stop. Raises ConfigError if it goes on."""
        address = _address_of(self._config) or self._machine
        deadline = self._clock.monotonic() + 2 * SEEN_S
        while (number := session.join(self._machine, address, self._version, self._config.machine_weight)) is None:
            if self._clock.monotonic() >= deadline:
                raise ConfigError(
                    f"Give each machine an address of its own: another one of the cluster is {address}, for its clients."
                )
            if self._stopping.wait(_BEAT_S):
                return False
        self._number = number
        return True

    def _run(self, ready: Callable[[Mapping[str, str]], None]) -> None:
        told = False
        beat_at = self._clock.monotonic()
        while not self._stopping.wait(_LOOK_S):
            if 2 in self.processes.look():
                if not told:
                    raise ConfigError("A node could not be started: the event before this one says what to change.")
                self._drop_session()  # the number of nodes may be another one: the next session looks
            if self._clock.monotonic() < beat_at:
                continue
            beat_at = self._clock.monotonic() + _BEAT_S
            view = self._beat()
            if view is None:
                continue
            self._note(view)
            if not told and all(seat.serves for seat in view.seats):
                told = True
                ready(self._listeners(view))

    def _beat(self) -> ClusterView | None:
        """None: the engine is away."""
        try:
            if self._session is None:
                self._session = ClusterSession(self._address, ANSWER_S)
                self._session.prepare(self._count, self._cluster_id, self._secret)
                self._move = None
            view = self._session.beat(self._machine, self._version, self._config.machine_weight)
            self._balance(self._session, view)
            return view
        except StorageError as error:
            self._drop_session()
            self._complain("engine_away", error)
            return None

    def _note(self, view: ClusterView) -> None:
        for seat in view.seats:
            if seat.serves and seat.machine == self._machine:  # clients find a node that was started again where it was
                self._ports[seat.node] = ports_text(seat.about)
        others = {each.version for each in view.machines} - {self._version}
        if others != self._versions:
            self._versions = others
            if others:
                log.warning("versions_differ", own=self._version, others=sorted(others))

    def _listeners(self, view: ClusterView) -> dict[str, str]:
        first = min(view.seats, key=lambda seat: (seat.machine != self._machine, seat.node))
        found = first.about["endpoints"].items()
        return {name: f"{host}:{port}" for name, (host, port) in found if name != NODES_LISTENER}

    # -- balance ------------------------------------------------------------------------------------------------------

    def _balance(self, session: ClusterSession, view: ClusterView) -> None:
        if self._move is not None:
            self._go_on(session, view, self._move)
            return
        mine = view.had_by(self._machine)
        now = self._clock.monotonic()
        if mine != self._mine:
            self._mine, self._mine_since = mine, now
        if not view.has_too_many(self._machine) or not all(seat.serves for seat in view.seats):
            return
        node = next((node for node in reversed(mine) if session.somebody_waits_for(node)), None)
        if node is None or now < self._mine_since + _GOT_S or not session.begin_move():
            return
        self._move = _Move(node, self.processes.pid(node), now + _MOVE_S, now + self._config.shutdown_timeout_ms / 1000)
        log.info("node_handed_over", node=self._config.node_id + node, nodes_left=len(mine) - 1)
        self.processes.terminate(node)

    def _go_on(self, session: ClusterSession, view: ClusterView, move: _Move) -> None:
        now = self._clock.monotonic()
        seat = view.seats[move.node]
        is_here = seat.leased and seat.machine == self._machine
        came_back = is_here and self.processes.pid(move.node) != move.pid  # nobody else has taken it
        if now >= move.killed_at and not move.is_over:  # it has not stopped in time
            move.is_over = True
            if is_here and not came_back:
                self.processes.kill(move.node)
        if (seat.serves and seat.machine != self._machine) or came_back or now >= move.ends_at:
            self._move = None
            session.end_move()

    # ------------------------------------------------------------------------------------------------------------------

    def _variables(self, place: int) -> dict[str, str]:
        machine = f"{self._number} {self._machine}"
        return {PLACE: f"{place}/{self._count}", MACHINE: machine, PORTS: self._ports.get(place, "")}

    def _leave(self) -> None:
        try:
            if self._session is not None:
                self._session.leave(self._machine)
        except StorageError as error:  # the others notice in some seconds
            log.warning("machine_not_signed_off", error=str(error))

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _complain(self, event: str, error: StorageError) -> None:
        dropped = self._complaints.take(self._clock.monotonic())
        if dropped is not None:
            log.warning(event, error=str(error), dropped=dropped)


def _check(config: BrokerConfig) -> None:
    """Raises ConfigError for what does not go with several machines."""
    if config.standby:
        raise ConfigError(
            "Leave standby out: with nodes and a catalogue, every machine stands by for what it does not have."
        )
    check_listeners(config)
    if tls_config(config, Listener(NODES_LISTENER, "kafka", "", 0, 0, sasl=True)).ssl_client_auth == "required":
        raise ConfigError(
            f"Leave {NODES_LISTENER}.ssl.client.auth out: a node that asks another shows no certificate. "
            "It logs in with a secret of the cluster."
        )
    for listener in all_listeners(config):
        hidden = listener.host in ("", ALL_INTERFACES, "::") and listener.scheme != "http"
        if hidden and config.advertised_address(listener.name) is None:
            raise ConfigError(
                f"Give the listener {listener.name} the address of this machine, or advertised=host:port: clients have to find "
                "each machine by its own address."
            )


def _address_of(config: BrokerConfig) -> str | None:
    """Where clients reach the first node of this machine. None: the system chooses its port."""
    first = first_listener(config.listeners)
    host, port = config.advertised_address(first.name) or (first.host, first.port)
    return f"{host}:{port}" if port and first.port_max == first.port else None


def seat_of(variables: Mapping[str, str]) -> SeatMember:
    """The node that this process is or stands by for. Raises BrokerError."""
    place, count, ports = place_in(variables, MACHINE)
    number, _, machine = variables[MACHINE].partition(" ")
    return SeatMember(Seat(place, count, machine, int(number)), ports)
