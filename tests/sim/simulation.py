"""One simulation: a broker, its clients and a storm, from one seed.

Two acts. In the first, faults come and go while everybody works. Then faults stop, and everything must complete within a
number of steps: every record that must arrive is acknowledged, every group catches up, every log is read from its start to
its end and agrees with history. Last, everybody leaves, and nothing may be left.
"""

import gc
import traceback
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import attrs

from tests.sim import invariants
from tests.sim.clients.admin import Admin
from tests.sim.clients.client import Client
from tests.sim.clients.greedy import Greedy
from tests.sim.clients.member import Member
from tests.sim.clients.offsets import Keeper
from tests.sim.clients.producer import IdempotentProducer, Producer
from tests.sim.clients.reader import Reader
from tests.sim.clients.stream import StreamClient
from tests.sim.clients.vandal import KafkaVandal
from tests.sim.consumer_scene import ConsumerScene
from tests.sim.disk import DiskFaults
from tests.sim.history import History
from tests.sim.host import Host, Recorder, recording
from tests.sim.network import NetworkFaults
from tests.sim.primitives import installed
from tests.sim.pulsar_scene import PulsarScene
from tests.sim.quota_scene import draw_quotas
from tests.sim.security_scene import TOPIC as GUARDED
from tests.sim.security_scene import SecurityScene
from tests.sim.share_scene import PARTITIONS as SHARED_PARTITIONS
from tests.sim.share_scene import TOPIC as SHARED
from tests.sim.share_scene import ShareScene
from tests.sim.shuffle_scene import ShuffleScene
from tests.sim.storm import Storm, Weather, draw_losses, draw_weather
from tests.sim.txn_scene import PARTITIONS, TOPIC, TxnScene
from tests.sim.vault import VaultFaults, draw_vault_settings
from tests.sim.world import Chaos, Violation, World

# Of the first act.
DEFAULT_STEPS = 1500
# Nobody needs more than this to finish when nothing goes wrong any more.
_QUIET_STEPS = 90_000
# ... and with every scene besides the cast, the processors have so much more to do meanwhile.
_SCENE_STEPS = 20_000
# ... and with a vault there are a dozen threads more, and slow clients take as long as ever.
_VAULT_STEPS = 60_000
_LEAVING_STEPS = 5_000
# The most bytes that a client asks for at once; at least one batch comes in any case.
_FETCH_BYTES = 100_000
# Who takes part: the clients of a topic always, and these.
CASTS = ("groups", "shuffle", "transactions", "all")
_MAIN_TOPIC = "main"
_SIDE_TOPIC = "side"


@attrs.frozen
class Result:
    seed: int
    steps: int
    lives: int
    trace: int
    simulated_s: float
    acknowledged: int
    violation: str | None
    faults: dict[str, int]

    @property
    def hash(self) -> str:
        return f"{self.trace:08x}"


def draw_settings(rng: Any, largest_batch: int) -> dict[str, Any]:
    """Small numbers: bounds are where bugs live."""
    high = rng.choice((1, 2_000, 50_000, 1_000_000))
    segment = largest_batch * rng.choice((1, 1, 3, 10, 1000))
    # With less, parked requests that came in pieces hold all of it, and members of a group keep each other out for ever.
    memory = rng.choice((300_000, 600_000, 4_000_000, 4_000_000))
    return {
        "network_threads": rng.randrange(1, 4),
        "io_threads": rng.randrange(1, 4),
        "queued_max_requests": rng.choice((1, 2, 5, 500)),
        "queued_max_request_bytes": memory,
        "outgoing_high_water_bytes": high,
        "outgoing_low_water_bytes": high // rng.choice((1, 2, 4)),
        "socket_listen_backlog_size": rng.choice((1, 5, 100)),
        # Who waits for request memory counts as idle.
        "connections_max_idle_ms": rng.choice((700 if memory > 1_000_000 else 10_000, 5_000, 600_000)),
        "max_connections": rng.choice((24, 1000)),
        "max_connection_creation_rate": rng.choice((20, 2**31 - 1)),
        "log_segment_bytes": segment,
        "log_index_interval_bytes": rng.choice((0, 200, 4096)),
        "log_retention_ms": -1,
        # Clocks jump here, and a batch keeps the time of its first attempt.
        "log_message_timestamp_after_max_ms": 2**63 - 1,
        "log_segment_delete_delay_ms": rng.choice((0, 1_000, 60_000)),
        "log_retention_check_interval_ms": rng.choice((500, 300_000)),
        "log_flush_offset_checkpoint_interval_ms": rng.choice((300, 3_000, 60_000)),
        "group_min_session_timeout_ms": 100,
        "group_initial_rebalance_delay_ms": rng.choice((0, 100, 1_000)),
        "max_open_files": rng.choice((16, 400)),
        "num_partitions": 2,
        # A thread, which may be frozen for two seconds, is waited for a quarter of the remaining time.
        "shutdown_timeout_ms": 16_000,
    }


class Performance:
    """Plays once, in its world, and says what has come of it."""

    world: World
    history: History
    recorder: Recorder
    storm: Storm

    def run(self) -> Result:
        violation: str | None = None
        collecting = gc.isenabled()
        gc.disable()  # finalizers run when the last reference goes, not when the collector feels like it
        try:
            with installed(self.world), recording(self.recorder), self._surroundings():
                try:
                    self._play()
                except Violation as error:
                    violation = str(error)
                except AssertionError as error:
                    violation = "".join(traceback.format_exception(error))
        finally:
            if collecting:
                gc.enable()
        return Result(
            seed=self.world.seed,
            steps=self.world.steps,
            lives=self.world.lives,
            trace=self.world.trace,
            simulated_s=self.world.now - 1_000.0,
            acknowledged=self._acknowledged(),
            violation=violation,
            faults=self.storm.done,
        )

    def _play(self) -> None:
        raise NotImplementedError

    def _surroundings(self) -> AbstractContextManager[None]:
        """What else is there besides the world."""
        return nullcontext()

    def _acknowledged(self) -> int:
        return sum(len(partition.acked) for partition in self.history.partitions.values())


class Simulation(Performance):
    def __init__(
        self,
        seed: int,
        steps: int = DEFAULT_STEPS,
        *,
        verbose: bool = False,
        weather: Weather | None = None,
        vault: bool | None = None,
    ) -> None:
        """``vault``: whether machines may be lost; None: the seed says so."""
        self.world = World(seed, verbose)
        self.steps = steps
        rng = self.world.rng("scenario")
        self.admin_configs = {"compression.type": "gzip"} if rng.random() < 0.1 else {}
        self._size_most = 30_000 if rng.random() < 0.25 else 300  # bytes of a record
        self.settings = draw_settings(rng, largest_batch=4 * (self._size_most + 50) + 100)
        self._largest_response = _FETCH_BYTES + 4 * (self._size_most + 50) + 5_000
        self.weather = weather or draw_weather(rng)
        self.world.chaos = self.weather.chaos
        self.world.on_idle = self._idle
        self.history = History(self.world)
        if self.world.rng("visible").random() < 0.25:
            self.settings["log_visible"] = "durable"
            self.history.shows_durable = True
        self.history.hurried = not self.scarce_memory
        drawn = self.world.rng("with vault").random() < 0.125
        self._with_vault = drawn if vault is None else vault
        if self._with_vault:
            self.settings |= draw_vault_settings(self.world.rng("vault settings"))
            self.weather.weights.update(draw_losses(self.world.rng("losses")))
            self.history.shows_durable = self.history.is_shipped = True
        self.host = Host(self.world, self.settings, with_vault=self._with_vault, record_most=self._size_most)
        self.host.fabric.faults = self.weather.network
        if rng.random() < 0.5:
            self.host.fabric.capacity_least, self.host.fabric.capacity_most = 16 * 1024, 256 * 1024
        if not self.admin_configs:  # else batches are not kept as they came
            self.history.would_survive = lambda topic, partition, data: self.host.would_survive(
                f"/data/{topic}-{partition}", data
            )
        self.recorder = Recorder(self.world, self._excused)
        self.restart_wanted = False
        self.resize_wanted = 0
        self.zombie_wanted: tuple[float, float, float] | None = None  # pause, cut off, end
        self._machine_failed = False  # in this life of the broker
        self.cast = rng.choice(CASTS)
        self._secured = self.world.rng("security").random() < 0.4  # besides the cast
        self._with_pulsar = self.world.rng("pulsar").random() < 0.4  # so, too
        self._with_share = self.world.rng("share").random() < 0.25  # so, too
        self._with_consumers = self.world.rng("consumers").random() < 0.25  # so, too
        self._populate(rng)
        self.throttled = draw_quotas(
            self.world.rng("quotas"),
            self.host.tables,
            [producer.name for producer in self.producers],
            [reader.name for reader in self.readers],
            largest_batch=4 * (self._size_most + 50) + 100,
        )
        self.shuffle: ShuffleScene | None = None
        if self.has("shuffle"):
            self._populate_shuffle(rng)
        self.transactions: TxnScene | None = None
        if self.has("transactions"):
            self._populate_transactions(rng)
        self.pulsar: PulsarScene | None = None
        if self.has("pulsar"):
            self._populate_pulsar(self.world.rng("pulsar"))
        self.share: ShareScene | None = None
        if self.has("share"):
            self._populate_share()
        self.consumers: ConsumerScene | None = None
        if self.has("consumers"):
            self._populate_consumers()
        self.security: SecurityScene | None = None
        if self.has("security"):
            self._populate_security()
        for name, group in self.history.groups.items():
            group.stored = partial(self._stored_offset, name)
        self.storm = Storm(self, self.weather)
        self.world.actors.append(self.storm)

    # -- who is there -------------------------------------------------------------------------------------------------------

    def _populate(self, rng: Any) -> None:
        common = (self.world, self.host.fabric, self.history)
        grouped = self.has("groups")
        self.perishable = (_SIDE_TOPIC, 1)  # its files may rot
        main = [(_MAIN_TOPIC, number) for number in range(2)]
        side = [(_SIDE_TOPIC, number) for number in range(2)]
        # Deleting records loses the source of idempotent producers' states, as in Kafka: side topic only.
        deletes = (_SIDE_TOPIC, 0) if rng.random() < 0.5 else None
        self.admin = Admin(
            "admin",
            *common,
            topics={_MAIN_TOPIC: 2, _SIDE_TOPIC: 2}
            | ({TOPIC: PARTITIONS} if self.has("transactions") else {})
            | ({GUARDED: 1} if self.has("security") else {})
            | ({SHARED: SHARED_PARTITIONS} if self.has("share") else {}),
            churns=rng.choice((0, 2)),
            deletes_records=deletes,
            configs=self.admin_configs,
        )
        large = self._size_most
        self.producers: list[Producer] = [
            IdempotentProducer(
                f"idempotent-{n}",
                *common,
                partitions=main,
                batches=rng.randrange(5, 30),
                acks=-1,
                in_flight=rng.randrange(1, 6),
                size_most=large,
                pace_s=rng.choice((0.02, 0.2, 0.8)),
            )
            for n in range(2 if grouped else 1)
        ]
        self.producers.append(
            Producer(
                "plain",
                *common,
                partitions=side,
                batches=rng.randrange(4, 16),
                acks=rng.choice((0, 1, 1, -1)),
                in_flight=rng.randrange(1, 4),
                size_most=large,
            )
        )
        self.careful = Producer(
            "careful",
            *common,
            partitions=side[:1],
            batches=9,
            acks=rng.choice((1, -1)),
            in_flight=1,
            held_back=3,
        )
        self.producers.append(self.careful)
        if deletes is not None:
            for producer in self.producers:
                producer.trimmed = _SIDE_TOPIC
        self.readers = [Reader(f"reader-{n}", *common, partitions=[*main, *side]) for n in range(2 if grouped else 1)]
        self.members = [
            Member(f"member-{n}", *common, group="group", topic=_MAIN_TOPIC, partitions=2)
            for n in range(rng.randrange(1, 4) if grouped else 0)
        ]
        self.keepers = [Keeper("keeper", *common, group="kept", topic=_MAIN_TOPIC, commits=20)] if grouped else []
        self.clients: list[Client | StreamClient] = [
            self.admin,
            *self.producers,
            *self.readers,
            *self.members,
            *self.keepers,
        ]
        self.vandals: list[Any] = (
            [KafkaVandal("vandal", self.world, self.host.fabric, [_MAIN_TOPIC, _SIDE_TOPIC])]
            if rng.random() < 0.4
            else []
        )
        if self.world.rng("greedy").random() < 0.25:
            self.vandals.append(Greedy("greedy", *common, [*main, *side]))
        self.world.actors.extend([*self.clients, *self.vandals])

    def _populate_shuffle(self, rng: Any) -> None:
        scene = self.shuffle = ShuffleScene(self.world, self.host, rng)
        scene.work.machine_failed = lambda: self.host.faulty or self._machine_failed
        scene.work.hurried = self.history.hurried
        scene.work.on_promise = self.history.promised
        self.clients += scene.clients
        self.vandals += scene.vandals
        self.world.actors.extend([*scene.clients, *scene.vandals])

    def _populate_transactions(self, rng: Any) -> None:
        clock_jumps = "clock" in self.weather.weights
        scene = self.transactions = TxnScene(self.world, self.host, self.history, rng, clock_jumps)
        scene.ledger.machine_failed = lambda: self.host.faulty or self._machine_failed
        self.clients += scene.clients
        self.world.actors.extend(scene.clients)

    def _populate_pulsar(self, rng: Any) -> None:
        scene = self.pulsar = PulsarScene(
            self.world,
            self.host,
            self.history,
            rng,
            size_most=self._size_most // 2,  # a batch has metadata, too
            clock_jumps="clock" in self.weather.weights,
        )
        self.clients += scene.clients
        self.world.actors.extend(scene.clients)

    def _populate_share(self) -> None:
        scene = self.share = ShareScene(self.world, self.host, self.history, self.world.rng("share"))
        self.host.settings["max_connections"] += len(scene.clients)
        self.clients += scene.clients
        self.world.actors.extend(scene.clients)

    def _populate_consumers(self) -> None:
        partitions = [(topic, number) for topic in (_MAIN_TOPIC, _SIDE_TOPIC) for number in range(2)]
        scene = self.consumers = ConsumerScene(
            self.world, self.host, self.history, self.world.rng("consumers"), partitions
        )
        self.host.settings["max_connections"] += len(scene.members)
        self.clients += scene.members
        self.world.actors.extend(scene.members)

    def _populate_security(self) -> None:
        common = (self.world, self.host, self.history)
        batch_most = 4 * (self._size_most + 50) + 100
        scene = self.security = SecurityScene(*common, self.world.rng("security"), batch_most)
        for client in self.clients:
            if isinstance(client, Client):
                scene.employ(client)
        self.clients += scene.clients
        self.world.actors.extend(scene.clients)

    def has(self, scene: str) -> bool:
        if scene == "security":
            return self._secured
        if scene == "aborts":
            return self.transactions is not None and self.transactions.aborts
        if scene == "visible":
            return self.history.shows_durable
        if scene == "quotas":
            return self.throttled
        if scene == "pulsar":
            return self._with_pulsar
        if scene == "share":
            return self._with_share
        if scene == "vault":
            return self._with_vault
        if scene == "consumers":
            return self._with_consumers
        return self.cast in (scene, "all")

    def _stored_offset(self, group: str, topic: str, partition: int) -> int:
        row = self.host.tables.offsets.get((group, topic, partition))
        return -1 if row is None else row.offset

    # -- the storm's requests ---------------------------------------------------------------------------------------------

    def crash_soon(self, *, power: bool, within: int, lost: bool = False) -> None:
        """Somewhere in the next ``within`` places where a thread can be interrupted."""
        process = self.world.process
        if process is None or process.countdown >= 0:
            return
        process.on_countdown = lambda: self._crash(power, lost)
        process.countdown = self.world.rng("storm").randrange(within)

    def crash_after_promise(self, *, power: bool, lost: bool = False) -> None:
        """The moment somebody has been promised something; the power, when there is something to lose."""
        lives = self.world.lives

        def crash() -> None:
            if power and not self.host.medium.unsynced((".log", ".data", ".index")):
                return  # the next promise, then
            self.history.on_promise = lambda: None
            if self.host.state == "up" and self.world.lives == lives:
                self._crash(power, lost)

        self.history.on_promise = crash

    def crash_in_decision(self, *, power: bool, within: int, lost: bool = False) -> None:
        """Somewhere between the end of a transaction being asked for and its being carried out."""
        assert self.transactions is not None
        ledger = self.transactions.ledger

        def crash() -> None:
            ledger.on_decision = lambda: None
            self.crash_soon(power=power, within=within, lost=lost)

        ledger.on_decision = crash

    def _crash(self, power: bool, lost: bool = False) -> None:
        power = power or self.host.sync_failed  # see _stopped
        self.host.die(power=power, lost=lost)
        self._after_crash(power)

    def _after_crash(self, power: bool) -> None:
        self.history.crashed(power=power or self._with_vault)  # the disk is a cache
        self._machine_failed = False
        self.host.sync_failed = False
        self.host.start_at = self.world.now + self.world.rng("storm").random()

    def set_catalogue_error(self, probability: float) -> None:
        self.host.set_catalogue_error(probability)

    def _excused(self, event: str, error: BaseException | None) -> bool:
        """Is this the machine's fault?"""
        from broker.errors import StorageError

        if self.host.faulty or self._machine_failed:
            return isinstance(error, (StorageError, OSError)) or error is None
        return False

    # -- the play -------------------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        while self.world.steps < self.steps:
            self._turn()
        self._calm_down()
        limit = self.world.steps + self._quiet_steps
        self._until(lambda: all(actor.done for actor in self._workers), limit)
        self._watch(limit)
        for reader in self._all_readers:
            reader.finish()
        self._until(lambda: all(reader.done for reader in self._all_readers), limit)
        self._leave()

    def _watch(self, limit: int) -> None:
        """Readers wait for records in long polls, and get them when they come."""
        if self.scarce_memory:
            return  # parked requests may keep the producer from being heard
        for reader in self.readers:
            reader.watching = True
        while self.careful.holds_back:
            self._until(lambda: all(reader.parked for reader in self.readers), limit)
            self.careful.release()
            self._until(lambda: self.careful.done, limit)

    @property
    def _quiet_steps(self) -> int:
        scenes = self.has("share") + self.has("consumers")
        return _QUIET_STEPS + _SCENE_STEPS * scenes + _VAULT_STEPS * self.has("vault")

    @property
    def _workers(self) -> list[Client | StreamClient]:
        readers = self._all_readers
        return [client for client in self.clients if client not in readers]

    @property
    def _all_readers(self) -> list[Any]:
        return [*self.readers, *(self.transactions.readers if self.transactions is not None else ())]

    def _until(self, condition: Any, limit: int) -> None:
        while not condition():
            if self.world.steps > limit:
                waiting = [client.name for client in self.clients if not client.done]
                raise Violation(f"not finished {self._quiet_steps} steps after the last fault: {waiting}")
            self._turn()

    def _turn(self) -> None:
        """One step of something, and a look at everything."""
        world, host = self.world, self.host
        if host.state == "down" and host.start_at is not None and world.now >= host.start_at:
            host.start()
        elif host.busy:
            pass
        elif host.state == "up" and self.restart_wanted:
            self.restart_wanted = False
            host.stop()
        elif host.state == "up" and self.zombie_wanted is not None:
            host.take_for_lost(*self.zombie_wanted)
            self.zombie_wanted = None
            self._after_crash(True)
        elif host.state == "up" and self.resize_wanted:
            host.resize(self.resize_wanted)
            self.resize_wanted = 0
        if not world.step_once() and not world.sleep_until_something(host.start_at):
            if host.state != "down":
                raise Violation("nothing will ever happen again")
            world.now = max(world.now, host.start_at or world.now)
        host.look_after_zombies()
        if host.faulty:
            self._machine_failed = host.failed_lately = True
            if host.medium.faults.sync_error:
                host.sync_failed = True
        if host.look():
            self._stopped()
        self._check()

    def _stopped(self) -> None:
        """The broker has stopped in order."""
        if not self._machine_failed:
            self.history.synced()
        # After a failed fsync the page cache takes unwritten pages for clean; only a reboot shows the disk's real content.
        power = self.host.sync_failed
        if power:
            self.host.lose_power()
        self._after_crash(power)

    def _check(self) -> None:
        if self.recorder.failures:
            raise Violation(self.recorder.failures[0])
        server = self.host.server
        if server is not None:
            if server.crash is not None:
                # A cache that cannot be read: the process ends, so that another one may lead.
                if not (self._with_vault and self._machine_failed and isinstance(server.crash, OSError)):
                    raise Violation(f"a thread crashed: {server.crash!r}")
                self._crash(power=False)
                return
            invariants.check(server, self._largest_response)
            if self.shuffle is not None:
                self.shuffle.check(server)

    def _idle(self) -> None:
        if self.host.server is not None and self.world.process is not None:
            invariants.check_wakeups(self.world.process, self.host.server)
            if self.shuffle is not None:
                self.shuffle.check_idle(self.host.server)
            if self.share is not None:
                self.share.check_idle(self.host.server)

    @property
    def scarce_memory(self) -> bool:
        """Parked requests may hold all of it, and the others then wait as long as these do."""
        return int(self.settings["queued_max_request_bytes"]) < 1_000_000

    def _calm_down(self) -> None:
        """Faults stop."""
        self.world.note("calm")
        self.storm.end()
        self.history.on_promise = lambda: None
        if self.transactions is not None:
            self.transactions.ledger.on_decision = lambda: None
        self.host.medium.faults = DiskFaults()
        if self.host.vault is not None:
            self.host.vault.faults = VaultFaults()
        self.zombie_wanted = None
        self.set_catalogue_error(0.0)
        self.world.chaos = Chaos(preempt=self.weather.chaos.preempt, tick_most_s=0.0005)
        self.host.fabric.faults = NetworkFaults(short=self.weather.network.short)
        self.resize_wanted = 0
        for vandal in self.vandals:
            vandal.close()
        process = self.world.process
        if process is not None:
            process.countdown = -1
            process.thaw()
        if self._machine_failed:  # partitions may be offline until the operator restarts the broker
            if self.host.sync_failed and process is not None:
                self._crash(power=True)
            else:
                self.restart_wanted = True
        if self.host.state == "down":
            self.host.start_at = self.world.now
        limit = self.world.steps + _QUIET_STEPS
        while self.restart_wanted or self.host.state != "up" or self.host.busy:
            if self.world.steps > limit:
                raise Violation("the broker does not come back")
            self._turn()
        for client in self.clients:
            client.be_quiet()

    def _leave(self) -> None:
        """Everybody goes; nothing is left."""
        if self.shuffle is not None:
            self.shuffle.steward.clean_up()
            self._until(lambda: self.shuffle.steward.done, self.world.steps + _LEAVING_STEPS)  # type: ignore[union-attr]
        for client in self.clients:
            client.close()
        self.host.look_after_zombies(end=True)
        server = self.host.server
        assert server is not None
        limit = self.world.steps + _LEAVING_STEPS
        while any(self._leftovers(server).values()):
            if self.world.steps > limit:
                raise Violation(f"clients are gone, and this is not: {self._leftovers(server)}")
            self._turn()
        del server
        self.host.stop()
        self.host.start_at = None
        stops = self.host.stops
        while self.host.stops == stops:
            if self.world.steps > limit:
                raise Violation("the broker does not stop")
            self._turn()
        cycles = self.world.lock_cycles()
        if cycles:
            raise Violation(f"locks in both orders: {cycles}")
        invariants.check_aborted(self.host.medium)
        self._check()

    def _leftovers(self, server: Any) -> dict[str, Any]:
        leftovers = invariants.leftovers(server)
        for scene in (self.shuffle, self.pulsar, self.share):
            if scene is not None:
                leftovers |= scene.leftovers(server)
        return leftovers


def simulate(seed: int, steps: int = DEFAULT_STEPS, *, verbose: bool = False) -> Result:
    return Simulation(seed, steps, verbose=verbose).run()
