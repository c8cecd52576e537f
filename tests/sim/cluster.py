"""Several whole nodes of one cluster, over the simulated engine: each a process with a lease, a journal and files of its own.

Nodes are killed and started again, stopped and started, replaced while they stand still or cannot reach the engine, and go on
afterwards. What they tell each other, over links and through the catalogue, arrives late or not. The clients are those of other
simulations, each with a connection to each node (``clients/routed.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from broker.cluster.nodes import coordinator_of, owner_of, transaction_key
from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.metadata.postgres_feed import SECRET
from broker.runtime import Runtime
from broker.server import BrokerServer, engine
from broker.server.engine import Seat
from broker.server.seat import SeatMember
from tests.elle import ABORTED, COMMITTED, KAFKA, UNKNOWN, Append, Read, Txn, anomalies
from tests.sim import invariants
from tests.sim.catalogue import Tables
from tests.sim.clients.admin import Admin
from tests.sim.clients.client import Client
from tests.sim.clients.routed import (
    Routed,
    RoutedKeeper,
    RoutedMember,
    RoutedProducer,
    RoutedTxnProducer,
    RoutedTxnReader,
    RoutedZombie,
)
from tests.sim.clients.transformer import Job, Transformer
from tests.sim.engine import EngineGuard, SimEngine, open_engine
from tests.sim.fabric import Fabric
from tests.sim.feed import Feed, NodeCatalogue, SimFeed
from tests.sim.history import History
from tests.sim.host import PORT, Host, Recorder
from tests.sim.ledger import Ledger
from tests.sim.network import NetworkFaults, dialling
from tests.sim.simulation import Performance, draw_settings
from tests.sim.storm import Storm, Weather, draw_weather
from tests.sim.vault import VaultFaults, draw_vault_settings
from tests.sim.world import Chaos, Process, Violation, World

NODES = 3
# Of the first act.
CLUSTER_STEPS = 4000
_MAIN, _TRANSACTIONS = ("main", 4), ("transactions", 6)
_QUIET_STEPS = 120_000
_LEAVING_STEPS = 30_000
# So long after a change, without faults, every node has it. A node looks each second.
_SETTLED_S = 4.0
# Of a cluster, by how often they come, if at all.
FAULTS = {
    "kill": 3.0,
    "loss": 3.0,
    "zombie": 4.0,
    "restart": 1.5,
    "reset": 3.0,
    "cut": 3.0,
    "lag": 4.0,
    "pause": 1.0,
    "database": 2.0,
    "store": 1.0,
    "unheard": 2.0,
}


class NodeHost(Host):
    """Where one node runs. Each machine that takes its place has other ports, so one that was replaced can still be reached."""

    def __init__(self, simulation: "ClusterSimulation", place: int, settings: dict[str, Any]) -> None:
        super().__init__(simulation.world, settings, with_vault=True, fabric=simulation.fabric)
        self.place = place
        self.restart_wanted = False
        self.zombie_wanted: tuple[float, float, float] | None = None
        self.machine = 0
        self._process: Process | None = None
        self._simulation = simulation

    @property
    def process(self) -> Process | None:
        return self._process

    def port(self, machine: int) -> int:
        return PORT + 10 * machine + self.place

    def _boot(self) -> Process:
        self.listeners = [f"kafka://127.0.0.1:{PORT + 10 * self.machine}"]
        self._process = self.world.boot_beside()
        return self._process

    def _serve(self, process: Process, config: BrokerConfig, runtime: Runtime) -> None:
        def serve() -> None:
            seat = Seat(self.place, len(self._simulation.hosts), f"machine-{self.machine}", self.machine)
            member = SeatMember(seat, {})
            self._server = BrokerServer(config, runtime, open_engine=member.open_engine, member=member)
            self._server.start()

        self._server = None
        self._do(process, serve)

    def _gone(self, *, power: bool) -> None:
        process = self._process
        assert process is not None
        super()._gone(power=power)
        self._process = None
        self._simulation.died(self, process)

    def _set_aside(self) -> Process:
        process = self._process
        assert process is not None
        process.replaced = True
        self._process = None
        self._simulation.died(self, process, replaced=True)
        return process

    def _replace_machine(self) -> None:
        super()._replace_machine()
        self.machine += 1

    def would_survive(self, directory: str, data: bytes) -> bool:
        assert self.vault is not None
        return self.vault.would_survive(directory, data)


class NodesRecorder(Recorder):
    def __init__(self, simulation: "ClusterSimulation") -> None:
        super().__init__(simulation.world, simulation.excused)
        self._simulation = simulation

    def warning(self, event: str, **values: Any) -> None:
        self.debug(event, **values)
        if event == "not_settled":
            # The engine went away after a change of topics. Who has made it is answered, and the others hear of it later.
            self._simulation.unsettled_until = self._simulation.world.now + _SETTLED_S


class ClusterStorm(Storm):
    """Each fault is about one node, or about all."""

    def __init__(self, simulation: "ClusterSimulation", weather: Weather) -> None:
        super().__init__(simulation, weather)  # type: ignore[arg-type]
        self._cluster = simulation

    def step(self) -> None:
        self._host = self._cluster.host = self._rng.choice(self._cluster.hosts)
        super().step()

    def _crash(self, *, power: bool, lost: bool = False) -> None:
        host, within = self._cluster.host, self._rng.choice((1, 30, 150))
        if self._rng.random() < 0.5:
            self._cluster.crash_in_decision(host, power=power, within=within, lost=lost)
        else:
            self._cluster.crash_soon(host, power=power, within=within, lost=lost)

    def _cut(self) -> None:
        """Connections between nodes break."""
        fabric = self._cluster.fabric
        for wire in fabric.wires:
            if wire.between_nodes and self._rng.random() < 0.5:
                wire.reset()

    def _database(self) -> None:
        if self._cluster.admin.has_made_all:
            super()._database()

    def _lag(self) -> None:
        """Requests of nodes to each other, or the answers, are late: perhaps so late that nobody waits for them any more."""
        for wire in self._cluster.fabric.wires:
            if wire.between_nodes and self._rng.random() < 0.5:
                pipe = self._rng.choice((wire.up, wire.down))
                pipe.lag_s = self._rng.choice((0.1, 0.5, 2.0, 7.0))
                self._world.note(f"lag of {wire.number}: {pipe.lag_s} s")

    def _unheard(self) -> None:
        feed = self._cluster.feed
        feed.unheard = self._rng.choice((0.3, 1.0))

        def calm() -> None:
            feed.unheard = 0.0

        self._for_a_while(5.0, calm)


def draw_cluster_weather(rng: Any) -> Weather:
    weather = draw_weather(rng)
    kinds = rng.sample(sorted(FAULTS), rng.randrange(0, 5))
    weather.weights = {kind: FAULTS[kind] for kind in kinds}
    weather.gap_s = rng.choice((0.2, 0.5, 1.5))
    weather.chaos.freeze_most_s = min(weather.chaos.freeze_most_s, 0.3)
    return weather


class ClusterSimulation(Performance):
    """As ``Simulation``, of ``nodes`` nodes."""

    def __init__(
        self,
        seed: int,
        steps: int = CLUSTER_STEPS,
        *,
        nodes: int = NODES,
        verbose: bool = False,
        weather: Weather | None = None,
    ) -> None:
        self.world = World(seed, verbose)
        self.steps = steps
        rng = self.world.rng("scenario")
        self.weather = weather or draw_cluster_weather(rng)
        self.world.chaos = self.weather.chaos
        self.fabric = Fabric(self.world)
        self.fabric.faults = self.weather.network
        self.tables = Tables()
        self.tables.meta |= {SECRET: "s" * 43, "nodes": str(nodes), "cluster_id": "simulated-cluster-0001"}
        settings = draw_settings(rng, largest_batch=1500) | draw_vault_settings(rng)
        settings |= {
            "queued_max_request_bytes": 4_000_000,
            "max_connections": 1000,
            "connections_max_idle_ms": rng.choice((5_000, 600_000)),
        }
        settings |= {"max_connection_creation_rate": 2**31 - 1}
        self.hosts: list[NodeHost] = []
        for place in range(nodes):
            self.hosts.append(NodeHost(self, place, settings))
        self.host = self.hosts[0]  # the one that the storm is about
        vaults = [host.vault for host in self.hosts if host.vault is not None]
        self.feed = Feed(self.world, self.tables, vaults)
        self.history = History(self.world)
        self.history.shows_durable = self.history.is_shipped = True
        self.history.would_survive = self._would_survive
        self.recorder = NodesRecorder(self)
        self.unsettled_until = 0.0
        self.ledger = Ledger(self.world)
        self.ledger.offsets_later = True
        self.ledger.stored = self._stored
        self._images_at = inf  # when they are looked at next
        self.clients: list[Client] = []  # with connections of their own
        self.workers: list[Routed] = []
        self._populate(rng)
        for name, group in self.history.groups.items():
            group.stored = lambda topic, partition, name=name: self._stored_at(name, topic, partition)  # type: ignore[misc]
        self.storm = ClusterStorm(self, self.weather)
        self.world.actors.append(self.storm)

    def _populate(self, rng: Any) -> None:
        common = (self.world, self.fabric, self.history)
        main = [(_MAIN[0], number) for number in range(_MAIN[1])]
        partitions = self.transactional = [(_TRANSACTIONS[0], number) for number in range(_TRANSACTIONS[1])]
        self.admin = RoutedAdmin(
            "admin",
            *common,
            topics=dict((_MAIN, _TRANSACTIONS)),
            churns=rng.choice((0, 2)),
            deletes_records=None,
            configs={},
        )
        self.zombie = RoutedZombie("zombie", *common, ledger=self.ledger, partitions=partitions)
        timeout_ms = rng.choice((3_000, 20_000))
        names = [f"transactional-{n}" for n in range(2)] + ["{joint}", "job/one"]
        self.txn_producers = [
            RoutedTxnProducer(
                name,
                *common,
                ledger=self.ledger,
                partitions=partitions,
                identities=rng.choice((1, 3)) if name.startswith("{") else 1,
                version_2=not name.startswith("{") and rng.random() < 0.6,
                transactions=rng.randrange(2, 7),
                timeout_ms=timeout_ms,
                mortality=rng.choice((0.0, 0.01, 0.05)),
                deserts=False,
                commits=rng.choice((0.3, 0.8)),
                on_death=self.zombie.haunt,
            )
            for name in rng.sample(names, rng.randrange(2, 5))
        ]
        self.readers = [
            RoutedTxnReader(
                "txn-reader", *common, ledger=self.ledger, partitions=partitions, patience_s=timeout_ms / 1000 + 30.0
            )
        ]
        self.producers = [
            RoutedProducer(
                f"idempotent-{n}",
                *common,
                partitions=main,
                batches=rng.randrange(3, 10),
                acks=rng.choice((1, -1)),
                in_flight=rng.randrange(1, 5),
                pace_s=rng.choice((0.02, 0.2)),
            )
            for n in range(2)
        ]
        self.members = [
            RoutedMember(f"member-{n}", *common, group="group", topic=_MAIN[0], partitions=_MAIN[1])
            for n in range(rng.randrange(1, 4))
        ]
        # Two of them, so that one sees what the other has committed.
        self.keepers = [
            RoutedKeeper(f"keeper-{n}", *common, group="kept", topic=_MAIN[0], commits=20) for n in range(2)
        ]
        job = Job("transforming", partitions[0], partitions[1:], left=rng.randrange(2, 8))
        version_2 = rng.random() < 0.5
        self.transformers = [
            Transformer(f"transformer-{n}", *common, ledger=self.ledger, job=job, version_2=version_2)
            for n in range(rng.randrange(1, 3))
        ]
        self.workers = [
            self.admin,
            *self.producers,
            *self.members,
            *self.txn_producers,
            *self.transformers,
            self.zombie,
        ]
        self.workers += [*self.keepers, *self.readers]
        for worker in self.workers:
            worker.attach(self)
            self.clients += worker.lines
        self.world.actors.extend([*self.workers, *self.clients])

    def place_of(self, topic: str, partition: int) -> int:
        return owner_of(topic, partition, len(self.hosts))

    def coordinator_of(self, key: str) -> int:
        return coordinator_of(transaction_key(key), len(self.hosts))

    # -- what others ask of it ----------------------------------------------------------------------------------------------

    def port(self, place: int, rng: Any) -> int:
        """Where a client looks for the node: sometimes at the address of a machine that it had before."""
        host = self.hosts[place]
        older = host.machine and rng.random() < 0.1
        return host.port(rng.randrange(host.machine) if older else host.machine)

    def died(self, host: NodeHost, process: Process, *, replaced: bool = False) -> None:
        """The process has ended, or another one takes its place."""
        if not replaced:
            self.feed.gone(process)
        for (topic, partition), history in self.history.partitions.items():
            if self.place_of(topic, partition) == host.place:
                history.power_lost(process.number)
        for name, group in self.history.groups.items():
            if self.coordinator_of(name) == host.place:
                group.crashed(process.number)
        host.start_at = self.world.now + self.world.rng("storm").random()

    def crash_soon(self, host: NodeHost, *, power: bool, within: int, lost: bool = False) -> None:
        process = host.process
        if process is None or process.countdown >= 0:
            return
        process.on_countdown = lambda: host.die(power=power, lost=lost)
        process.countdown = self.world.rng("storm").randrange(within)

    def crash_in_decision(self, host: NodeHost, *, power: bool, within: int, lost: bool = False) -> None:
        def crash() -> None:
            self.ledger.on_decision = lambda: None
            self.crash_soon(host, power=power, within=within, lost=lost)

        self.ledger.on_decision = crash

    def _would_survive(self, topic: str, partition: int, data: bytes) -> bool:
        host = self.hosts[self.place_of(topic, partition)]
        return host.would_survive(f"{topic}-{partition}", data)

    def _stored_at(self, group: str, topic: str, partition: int) -> int:
        row = self.tables.offsets.get((group, topic, partition))
        return -1 if row is None else row.offset

    def _stored(self, group: str) -> int:
        return self._stored_at(group, _TRANSACTIONS[0], 0)

    @property
    def zombie_wanted(self) -> tuple[float, float, float] | None:
        return self.host.zombie_wanted

    @zombie_wanted.setter
    def zombie_wanted(self, wanted: tuple[float, float, float]) -> None:
        self.host.zombie_wanted = wanted

    @property
    def restart_wanted(self) -> bool:
        return self.host.restart_wanted

    @restart_wanted.setter
    def restart_wanted(self, wanted: bool) -> None:
        self.host.restart_wanted = wanted

    def excused(self, event: str, error: BaseException | None) -> bool:
        if any(host.faulty or host.failed_lately for host in self.hosts):
            return isinstance(error, (StorageError, OSError)) or error is None
        return False

    # -- the play -----------------------------------------------------------------------------------------------------------

    def _acknowledged(self) -> int:
        committed = (txn for txns in self.ledger.txns.values() for txn in txns if txn.fate == "committed")
        return super()._acknowledged() + sum(txn.size for txn in committed)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Connections between nodes, and engines in the place of PostgreSQL."""

        def open_sim(config: BrokerConfig, runtime: Runtime, stopped: Any, of: Seat) -> SimEngine | None:
            process, host = self.world.running, self.hosts[of.place]
            assert process is not None
            assert host.vault is not None
            opened = open_engine(host.vault, process, lambda: 0.0, config, runtime, stopped)
            if opened is None:
                return None
            guard = EngineGuard(host.vault, process, opened.owner.epoch, lambda: 0.0)
            opened.feed = SimFeed(self.feed, of.place, process, opened.owner.epoch)
            opened.catalogue = NodeCatalogue(opened.feed, process, guard, host.tables)
            return opened

        right = engine.open_postgres
        engine.open_postgres = open_sim  # type: ignore[assignment]
        try:
            with dialling(self.world, self.fabric):
                yield
        finally:
            engine.open_postgres = right

    def _play(self) -> None:
        while self.world.steps < self.steps:
            self._turn()
        self._calm_down()
        limit = self.world.steps + _QUIET_STEPS
        others = [worker for worker in self.workers if worker not in (*self.readers, *self.transformers)]
        self._until(lambda: all(worker.done for worker in others), limit)
        for transformer in self.transformers:
            transformer.finish()
        self._until(lambda: all(transformer.done for transformer in self.transformers), limit)
        for reader in self.readers:
            reader.finish()
        self._until(lambda: all(reader.done for reader in self.readers), limit)
        self._check_transactions()
        checked_from = self._images_at
        self._until(lambda: self._images_at > checked_from, limit)
        self._images_at = inf
        self._leave()

    def _calm_down(self) -> None:
        self.world.note("calm")
        self.storm.end()
        if "unheard" in self.weather.weights:
            self.feed.unheard = 0.7  # which is no fault: nodes look by themselves
        self.ledger.on_decision = lambda: None
        self.world.chaos = Chaos(preempt=self.weather.chaos.preempt, tick_most_s=0.0005)
        self.fabric.faults = NetworkFaults(short=self.weather.network.short)
        for wire in self.fabric.wires:
            wire.up.lag_s = wire.down.lag_s = 0.0
        for host in self.hosts:
            assert host.vault is not None
            host.vault.faults = VaultFaults()
            host.zombie_wanted = None
            host.restart_wanted = False
            if host.process is not None:
                host.process.countdown = -1
                host.process.thaw()
            if host.state == "down":
                host.start_at = self.world.now
        limit = self.world.steps + _QUIET_STEPS
        while any(host.state != "up" or host.busy for host in self.hosts):
            if self.world.steps > limit:
                raise Violation(f"not all nodes come back: {[host.state for host in self.hosts]}")
            self._turn()
        for host in self.hosts:
            host.failed_lately = False
        for worker in self.workers:
            worker.be_quiet()
        self.admin.churn_more(2)
        self._images_at = self.world.now + _SETTLED_S

    def _until(self, condition: Any, limit: int) -> None:
        while not condition():
            if self.world.steps > limit:
                waiting = [worker.name for worker in self.workers if not worker.done]
                raise Violation(f"not finished {_QUIET_STEPS} steps after the last fault: {waiting}")
            self._turn()

    def _turn(self) -> None:
        world = self.world
        for host in self.hosts:
            if host.state == "down" and host.start_at is not None and world.now >= host.start_at:
                host.start()
            elif host.busy:
                pass
            elif host.state == "up" and host.restart_wanted:
                host.restart_wanted = False
                host.stop()
            elif host.state == "up" and host.zombie_wanted is not None:
                host.take_for_lost(*host.zombie_wanted)
                host.zombie_wanted = None
        starts = [host.start_at for host in self.hosts if host.state == "down" and host.start_at is not None]
        if not world.step_once() and not world.sleep_until_something(min(starts, default=None)):
            if not starts:
                raise Violation("nothing will ever happen again")
            world.now = max(world.now, min(starts))
        for host in self.hosts:
            host.look_after_zombies()
            if host.faulty:
                host.failed_lately = True
            host.look()
        self._check()
        if world.now >= self._images_at:
            self._images_at = world.now + _SETTLED_S
            if world.now > self.feed.changed_at + _SETTLED_S:
                self._check_images()

    def _check(self) -> None:
        if self.recorder.failures:
            raise Violation(self.recorder.failures[0])
        for host in self.hosts:
            server = host.server
            if server is None:
                continue
            if server.crash is not None:
                if not (host.failed_lately and isinstance(server.crash, OSError)):
                    raise Violation(f"a thread of node {host.place} crashed: {server.crash!r}")
                host.die(power=False)
                continue
            if not self.world.steps % 4:
                invariants.check(server, 110_000)

    def _check_images(self) -> None:
        """Each node has in memory what the catalogue has."""
        for host in self.hosts:
            server = host.server
            assert server is not None
            logs = server.kafka.logs
            known = sorted(topic.name for topic in logs.topics())
            if known != sorted(self.tables.topics):
                raise Violation(f"node {host.place} knows {known} of {sorted(self.tables.topics)}")
            assert logs.nodes is not None
            found = {place: next(iter(node.endpoints.values()))[1] for place, node in logs.nodes.living.items()}
            where = {each.place: each.port(each.machine) for each in self.hosts}
            if found != where:
                raise Violation(f"node {host.place} takes the nodes to be at {found}; they are at {where}")

    def _check_transactions(self) -> None:
        """What readers have seen, and transactions that have read before they wrote, contradict no order of the transactions."""
        transactions = []
        for txns in self.ledger.txns.values():
            for txn in txns:
                operations: list[Append | Read] = [Read(key, elements) for key, elements in txn.read.items()]
                if txn.claim is not None:
                    operations += [Read(txn.claim, ()), Append(txn.claim, str(txn))]
                operations += [Append(key, value) for key, values in txn.values.items() for value in values]
                fate = txn.fate if txn.fate in (COMMITTED, ABORTED) else UNKNOWN
                transactions.append(Txn(f"{txn.name}/{txn.number}", fate, operations))
        found = anomalies(transactions, self.readers[0].seen, KAFKA)
        if found:
            raise Violation(f"{found[0].kind}: {found[0].what}, and {len(found) - 1} more")

    def _leave(self) -> None:
        for worker in self.workers:
            worker.close()
        limit = self.world.steps + _LEAVING_STEPS
        for host in self.hosts:
            host.look_after_zombies(end=True)
            host.stop()
            stops = host.stops
            while host.stops == stops:
                if self.world.steps > limit:
                    raise Violation(f"node {host.place} does not stop")
                host.start_at = None
                self._turn()
            host.start_at = None
        cycles = self.world.lock_cycles()
        if cycles:
            raise Violation(f"locks in both orders: {cycles}")
        self._check()


class RoutedAdmin(Routed, Admin):
    def attach(self, simulation: "ClusterSimulation") -> None:
        super().attach(simulation)
        self._simulation = simulation

    @property
    def has_made_all(self) -> bool:
        """The topics of the others are there."""
        return not self._to_make

    @property
    def _doubt(self) -> bool:
        return super()._doubt or self.world.now < self._simulation.unsettled_until

    def churn_more(self, rounds: int) -> None:
        self._churns += rounds
        self._idle_until = 0.0
