"""Every metric moves when what it counts happens.

Each has an entry in ``MOVES``: what makes it move. A new metric without one fails the first test.
"""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pulsar
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from broker.client.embedded import Broker
from broker.cluster.nodes import Node
from broker.cluster.owner import Owner
from broker.errors import StorageError
from broker.http.api.cluster import Cluster as ClusterApi
from broker.kafka import metrics as kafka_metrics
from broker.kafka import metrics as share_metrics
from broker.kafka.configs.client_metrics import FACTS
from broker.metrics import HistogramCell, Registry, names
from broker.metrics.metric import Kind, Metric
from broker.network import metrics as network_metrics
from broker.network.quota import ConnectionQuotas
from broker.network.socket_server import Binding, SocketServer
from broker.pulsar import metrics as pulsar_metrics
from broker.runtime import system_runtime
from broker.runtime.clock import SystemClock
from broker.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from broker.security.client_quotas import DEFAULT, Entity
from broker.security.client_quotas import Kind as Quota
from broker.security.principal import Principal
from broker.security.sasl.exchange import LoginCounters, LoginResult
from broker.server.durable import DurableState
from broker.shuffle import metrics as shuffle_metrics
from broker.shuffle.metrics import ShuffleMetrics
from broker.storage import metrics as storage_metrics
from broker.storage.journal.shipper import ShippingLimits
from broker.storage.metrics import StorageMetrics
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import produce
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from protocol.shuffle.writer_frames import PartitionType
from tests.kafka import otlp_writer
from tests.kafka.handlers.share_client import Member
from tests.network.echo import EchoService, frame
from tests.network.harness import Served
from tests.network.harness import settings as reactor_settings
from tests.shuffle.harness import Client as ShuffleClient
from tests.shuffle.harness import new_id
from tests.sim.catalogue import SimCatalogue, Tables
from tests.sim.journal import JournalTable
from tests.storage.helpers import Storage, append, append_many, values
from tests.storage.journal.helpers import FailingObjects
from tests.storage.tier.helpers import TieredStorage
from tests.waiting import wait_for

DEADLINE_S = 30.0
AGAIN_S = 5.0


def total(registry: Registry, metric: Metric) -> float:
    """Of all series; of a histogram, how many values."""
    if metric.kind is Kind.HISTOGRAM:
        return sum(sum(counts) for counts, _ in registry.ranges(metric).values())
    return float(sum(registry.values(metric).values()))


def shape(registry: Registry, metric: Metric) -> dict[tuple[str, ...], float]:
    if metric.kind is Kind.HISTOGRAM:
        return {labels: sum(counts) for labels, (counts, _) in registry.ranges(metric).items()}
    return dict(registry.values(metric))


class World:
    """A broker with all services, and clients of it. What is closed with the test is put on ``stack``."""

    def __init__(self, broker: Broker, directory: Path, stack: ExitStack, metric: Metric) -> None:
        self.broker, self.directory, self.stack, self.metric = broker, directory, stack, metric
        self.server = broker.server
        self.registry = self.server.metrics
        self.topic = f"topic-{metric.name}"

    # -- moving -------------------------------------------------------------------------------------------------------

    def moves(self, act: Callable[[], Any], registry: Registry | None = None) -> None:
        registry = registry or self.registry
        before, count = shape(registry, self.metric), total(registry, self.metric)
        act()
        if self.metric.kind is not Kind.GAUGE:
            wait_for(lambda: total(registry, self.metric) > count)
            return
        # What an earlier test has left may close at the same time, so that the gauge is where it was: then it happens again.
        moved, again_at = False, time.monotonic() + AGAIN_S
        deadline = time.monotonic() + DEADLINE_S
        while not moved:
            assert time.monotonic() < deadline, "it never came"
            if time.monotonic() > again_at:
                before, again_at = shape(registry, self.metric), again_at + AGAIN_S
                act()
            time.sleep(0.005)
            moved = shape(registry, self.metric) != before

    # -- Kafka --------------------------------------------------------------------------------------------------------

    def create(self, partitions: int = 1) -> str:
        if self.server.kafka.logs.topic(self.topic) is None:
            self.server.kafka.logs.create_topic(self.topic, partitions)
        return self.topic

    def produce(self, **settings: Any) -> None:
        self.create()
        producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap_servers, **settings)
        producer.send(self.topic, b"value").get(DEADLINE_S)
        producer.close()

    def consume(self) -> None:
        consumer = KafkaConsumer(
            self.topic, bootstrap_servers=self.broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        self.stack.callback(consumer.close)
        wait_for(lambda: consumer.poll(100))

    def join(self) -> Any:
        self.create()
        group = f"group-{self.metric.name}"
        consumer = KafkaConsumer(self.topic, bootstrap_servers=self.broker.bootstrap_servers, group_id=group)
        self.stack.callback(consumer.close)
        wait_for(lambda: consumer.poll(500) is not None and consumer.assignment())
        return consumer

    def commit(self, offset: int = 0) -> None:
        self.create()
        consumer = KafkaConsumer(
            bootstrap_servers=self.broker.bootstrap_servers,
            group_id=f"group-{self.metric.name}",
            enable_auto_commit=False,
        )
        self.stack.callback(lambda: consumer.close(autocommit=False))
        partition = TopicPartition(self.topic, 0)
        consumer.assign([partition])
        consumer.commit({partition: OffsetAndMetadata(offset, "", -1)})

    def begin(self) -> None:
        self.create()
        producer = KafkaProducer(
            bootstrap_servers=self.broker.bootstrap_servers, transactional_id=f"id-{self.metric.name}"
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(self.topic, b"value").get(DEADLINE_S)
        self.stack.callback(lambda: (producer.abort_transaction(), producer.close()))

    def fetch_waits(self) -> None:
        self.create()
        consumer = KafkaConsumer(
            self.topic, bootstrap_servers=self.broker.bootstrap_servers, fetch_max_wait_ms=5_000, fetch_min_bytes=10**6
        )
        self.stack.callback(consumer.close)
        wait_for(lambda: consumer.poll(500) is not None and consumer.assignment())
        consumer.poll(100)

    def push_metrics(self) -> None:
        telemetry, facts = self.server.kafka.telemetry, dict.fromkeys(FACTS, "a client's")
        telemetry.configs.alter("all", lambda _own, _in_force: {"metrics": "*"})
        asked = telemetry.ask(None, facts)
        data = otlp_writer.gauges(a__metric=1)
        telemetry.push(asked.instance_id, facts, asked.subscription_id, 0, data, terminating=False)

    # -- sockets ------------------------------------------------------------------------------------------------------

    def dial(self, listener: str = "kafka") -> socket.socket:
        host, port = self.server.listeners[listener].rsplit(":", 1)
        dialled = socket.create_connection((host, int(port)))
        self.stack.callback(dialled.close)
        return dialled

    # -- Pulsar -------------------------------------------------------------------------------------------------------

    @property
    def pulsar_topic(self) -> str:
        return f"persistent://public/default/{self.metric.name}"

    def pulsar(self) -> Any:
        client = pulsar.Client(
            f"pulsar://{self.server.listeners['pulsar']}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self.stack.callback(client.close)
        return client

    def publish(self) -> Any:
        client = self.pulsar()
        client.create_producer(self.pulsar_topic).send(b"value")
        return client

    def subscribe(self, **options: Any) -> Any:
        return self.pulsar().subscribe(self.pulsar_topic, "sub", **options)

    def receive(self, **options: Any) -> None:
        consumer = self.subscribe(**options)
        self.publish()
        consumer.receive(int(DEADLINE_S * 1000))

    # -- shuffle ------------------------------------------------------------------------------------------------------

    def shuffle(self) -> ShuffleClient:
        host, port = self.server.listeners["shuffle"].rsplit(":", 1)
        client = ShuffleClient((host, int(port)))
        self.stack.callback(client.close)
        return client

    def push(self) -> bytes:
        name = new_id()
        client = self.shuffle()
        writer = client.open(name)
        writer.push(b"x" * 1000)
        return name

    def read_without_credit(self) -> None:
        name = self.push()
        self.shuffle().request(name, credit=0)

    def read(self) -> None:
        name = self.push()
        reader = self.shuffle()
        reader.request(name, credit=5)

    def store(self) -> None:
        client = self.shuffle()
        writer = client.open(new_id(), kind=PartitionType.BLOCKING)
        writer.push(b"x" * 1000).end()
        client.finish(writer)


MOVES: dict[Metric, Callable[[World], None]] = {}
Act = Callable[[World], Any]


def by(act: Act, *metrics: Metric, first: Act | None = None) -> None:
    """These move by ``act`` in the broker, after ``first``."""

    def move(world: World) -> None:
        if first is not None:
            first(world)
        world.moves(lambda: act(world))

    for metric in metrics:
        MOVES[metric] = move


def itself(*metrics: Metric) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """The function shows it in its own way."""

    def add(move: Callable[[World], None]) -> Callable[[World], None]:
        for metric in metrics:
            MOVES[metric] = move
        return move

    return add


# -- the reactor ----------------------------------------------------------------------------------------------------------

by(
    World.produce,
    names.REQUESTS,
    names.REQUEST_SECONDS,
    names.NETWORK_REQUESTS,
    names.NETWORK_INLINE_REQUESTS,
    names.NETWORK_RECEIVED_BYTES,
    names.NETWORK_SENT_BYTES,
    names.NETWORK_IDLE_SECONDS,
    names.NETWORK_IDLE_RATIO,
    names.LISTENER_ACCEPTED,
)
by(World.dial, names.NETWORK_CONNECTIONS, names.LISTENER_CONNECTIONS, names.LISTENER_PROCESSOR_CONNECTIONS)
by(lambda world: world.dial().sendall(b"\xff" * 100), names.NETWORK_PROTOCOL_ERRORS)
by(World.fetch_waits, names.MUTED_CONNECTIONS, names.PARKED_FETCH_WATCHES)
by(World.fetch_waits, names.CLIENT_SOFTWARE)
by(World.push_metrics, names.CLIENT_INSTANCES, names.CLIENT_METRICS)
by(World.create, names.PARTITIONS, names.TOPIC_PARTITIONS)


@itself(names.CLUSTER_NODES, names.CLUSTER_SETTLE_SECONDS, names.CATALOGUE_SECONDS)
def _cluster_nodes(world: World) -> None:
    """This broker's as if it were one of two nodes: then the other one comes, and hears of a change."""
    settled, catalogue = (
        HistogramCell(metric.bounds) for metric in (names.CLUSTER_SETTLE_SECONDS, names.CATALOGUE_SECONDS)
    )
    nodes = mock.Mock(node_ids=range(1, 3), living={}, settle_seconds=settled)
    server = world.server
    addresses = {"kafka": ("127.0.0.1", 9092)}
    listeners = [listener for listener in server.config.listeners if listener.name == "kafka"]
    registry = Registry()
    surroundings: Any = SimpleNamespace(
        cluster_id="",
        callers=None,
        config=server.config,
        listeners=listeners,
        addresses=addresses,
        metrics=registry,
        catalogue=SimpleNamespace(seconds=catalogue),
    )
    ClusterApi(surroundings, SimpleNamespace(nodes=nodes))  # type: ignore[arg-type]

    def change() -> None:
        nodes.living.update({2: Node(2, {})})
        settled.observe(0.1)
        catalogue.observe(0.1)

    world.moves(change, registry)


@itself(names.REQUEST_ERRORS)
def _error(world: World) -> None:
    request = control.encode_request(ApiKey.DELETE_TOPICS, 1, 7, "test", {"topic_names": ["none"], "timeout": 1000})
    world.moves(lambda: world.dial().sendall(request))


@contextmanager
def reactor(quotas: ConnectionQuotas | None = None, **changes: Any) -> Iterator[Any]:
    """One of its own, with an echo listener. It does not look for what is left of it: this process has another broker."""
    service, crashes = EchoService(), list[BaseException]()
    limits = quotas or ConnectionQuotas(1 << 30, 1 << 30, {}, 0)
    server = SocketServer(system_runtime(), reactor_settings(**changes), limits, crashes.append)
    server.bind([Binding("echo", "echo", "127.0.0.1", 0, 0, 100 << 20)])
    server.start({"echo": service})  # type: ignore[dict-item]
    served: Any = Served(server, {"echo": service}, crashes)
    served.registry = Registry()
    try:
        with mock.patch.object(network_metrics, "_AGE_S", 0.0):
            server.register_metrics(served.registry)
            yield served
    finally:
        service.gate.set()
        for client in served.clients:
            client.close()
        server.stop_accepting()
        server.stop()
    assert [] == crashes


@itself(
    names.HANDLERS,
    names.HANDLER_REQUESTS,
    names.HANDLER_IDLE_RATIO,
    names.REQUEST_QUEUE_SIZE,
    names.LANE_REQUESTS,
)
def _handlers(world: World) -> None:
    with reactor(io_threads=1) as served:
        clients = [served.connect() for _ in range(4)]

        def keep_busy() -> None:
            clients[0].send(frame(b"p", b"x"))
            served.until(lambda: clients[0].frames)  # while the one handler does not wait for the gate
            for client, command in zip(clients[1:], (b"w", b"w", b"s"), strict=True):
                client.send(frame(command, b"x"))

        world.moves(keep_busy, served.registry)
        served.service.gate.set()
        served.until(lambda: all(client.frames for client in clients))


@itself(names.RESPONSE_QUEUE_SIZE)
def _inbox(world: World) -> None:
    with reactor(network_threads=1) as served:
        client = served.connect()
        served.ask(client, frame(b"e", b"x"))
        gate = threading.Event()
        (connection,) = served.server.processors[0].connections

        def hold_up() -> None:
            for _ in range(3):
                served.server.outbox.call(connection, lambda: gate.wait(DEADLINE_S))

        world.moves(hold_up, served.registry)
        gate.set()


@itself(names.MUTES)
def _mutes(world: World) -> None:
    with reactor(high_water_bytes=1024, low_water_bytes=512) as served:
        client = served.connect(receive_buffer=4096)
        client.reads = False
        world.moves(lambda: client.send(frame(b"z", b"x" * 8)), served.registry)
        client.reads = True
        served.until(lambda: client.frames)


@itself(names.NETWORK_UNSENT_BYTES)
def _unsent(world: World) -> None:
    with reactor() as served:
        client = served.connect(receive_buffer=4096)
        client.reads = False
        world.moves(lambda: client.send(frame(b"z", b"x" * 16)), served.registry)
        client.reads = True
        served.until(lambda: client.frames)


@itself(names.REQUEST_MEMORY_BYTES, names.REQUEST_MEMORY_IDLE_BYTES)
def _memory(world: World) -> None:
    with reactor() as served:
        pool, taken = served.server.memory, []

        def take() -> None:
            taken.append(pool.allocate(100_000, lambda: None))

        def take_and_release() -> None:
            take()
            pool.release(taken.pop())

        world.moves(take if world.metric is names.REQUEST_MEMORY_BYTES else take_and_release, served.registry)
        for buffer in taken:
            pool.release(buffer)


@itself(names.REQUEST_MEMORY_CAPACITY_BYTES)
def _capacity(world: World) -> None:
    with reactor(queued_max_request_bytes=12345678) as served:
        assert {(): 12345678} == served.registry.values(world.metric)


@itself(names.NETWORK_IDLE_CLOSED_CONNECTIONS)
def _idle(world: World) -> None:
    with reactor(idle_max_s=0.2) as served:
        world.moves(served.connect, served.registry)


@itself(names.LISTENER_REFUSED, names.LISTENER_THROTTLED, names.LISTENER_EVICTED)
def _refused(world: World) -> None:
    quotas = ConnectionQuotas(1 << 30, 1, {}, 0)
    with reactor(quotas=quotas) as served:
        if world.metric is names.LISTENER_REFUSED:
            served.connect()
            world.moves(served.connect, served.registry)
        elif world.metric is names.LISTENER_THROTTLED:
            quotas.connection_rate = lambda address: 1.0
            served.connect()
            world.moves(lambda: [served.connect() for _ in range(5)], served.registry)
        else:
            served.connect()
            world.moves(lambda: quotas.evicted.update({"echo": 1}), served.registry)


@itself(names.TLS_HANDSHAKES, names.TLS_FAILED_HANDSHAKES, names.TLS_LATE_HANDSHAKES)
def _handshakes(world: World) -> None:
    with reactor() as served:
        stats = served.server.processors[0].handshakes.stats
        field = {
            names.TLS_HANDSHAKES: "completed",
            names.TLS_FAILED_HANDSHAKES: "failed",
            names.TLS_LATE_HANDSHAKES: "late",
        }[world.metric]
        world.moves(lambda: setattr(stats, field, getattr(stats, field) + 1), served.registry)


# -- security -------------------------------------------------------------------------------------------------------------


@itself(names.TLS_CERTIFICATE_EXPIRY, names.TLS_RELOADS, names.TLS_FAILED_RELOADS)
def _certificates(world: World) -> None:
    from broker.security.tls_listener import register_tls_metrics

    listener = mock.Mock(expires_s=1.0, reloads=0, failed_reloads=0)
    listener.name = "kafka"
    registry = Registry()
    register_tls_metrics(registry, [listener])
    field = {
        names.TLS_CERTIFICATE_EXPIRY: "expires_s",
        names.TLS_RELOADS: "reloads",
        names.TLS_FAILED_RELOADS: "failed_reloads",
    }[world.metric]
    world.moves(lambda: setattr(listener, field, getattr(listener, field) + 1), registry)


@itself(names.SASL_LOGINS)
def _logins(world: World) -> None:
    registry, counters = Registry(), LoginCounters()
    counters.register(registry)
    world.moves(lambda: counters.count("kafka", "PLAIN", LoginResult.FAILED), registry)


@itself(names.ACLS, names.AUTHORIZATIONS_DENIED)
def _acls(world: World) -> None:
    with Broker(listeners=["kafka://127.0.0.1:0"], authorizer_class_name="acl") as broker:
        authorizer = broker.server.security.authorizer
        assert authorizer is not None
        acl = Acl(
            ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:a", "*", Operation.DESCRIBE, Permission.ALLOW
        )
        if world.metric is names.ACLS:
            world.moves(lambda: authorizer.create([acl]), broker.server.metrics)
        else:
            world.moves(
                lambda: authorizer.allows(Principal("User", "b"), "h", Operation.READ, ResourceType.TOPIC, "t"),
                broker.server.metrics,
            )


@itself(
    names.QUOTA_THROTTLES,
    names.QUOTA_THROTTLE_SECONDS,
    names.QUOTA_THROTTLED_CONNECTIONS,
    names.QUOTA_SENSORS,
)
def _quotas(world: World) -> None:
    with Broker(listeners=["kafka://127.0.0.1:0"]) as broker:
        broker.server.kafka.logs.create_topic("orders", 1)
        batch = build_batch([(None, b"x" * 1000, [], 1)])
        request = b"".join(produce.request_parts(7, "c", 9, None, 1, 30_000, [("orders", 0, batch)]))
        host, port = broker.bootstrap_servers.rsplit(":", 1)

        def exceed() -> None:
            broker.server.security.quotas.alter([(Entity(client_id=DEFAULT), Quota.PRODUCE, 1.0)])
            client = socket.create_connection((host, int(port)))
            world.stack.callback(client.close)
            client.sendall(request)

        world.moves(exceed, broker.server.metrics)


# -- logs -----------------------------------------------------------------------------------------------------------------


@itself(names.DATA_FREE_BYTES, names.DATA_TOTAL_BYTES)
def _disk(world: World) -> None:
    """Others write to this file system as well, so what this broker moves cannot be told."""
    (whole,) = world.registry.values(names.DATA_TOTAL_BYTES).values()
    (free,) = world.registry.values(names.DATA_FREE_BYTES).values()
    stat = os.statvfs(world.broker.data_dir)
    assert whole == stat.f_blocks * stat.f_frsize
    assert 0 < free < whole


by(
    World.produce,
    names.MESSAGES_IN,
    names.BYTES_IN,
    names.TOPIC_LOG_BYTES,
    names.LOG_SIZE,
    names.PARTITION_CURRENT_OFFSET,
    names.OPEN_FILES,
)
by(lambda world: world.produce(acks=1), names.UNDURABLE_RECORDS)
by(World.consume, names.BYTES_OUT, first=World.produce)
by(lambda world: world.produce(acks="all"), names.FSYNC_SECONDS)
by(lambda world: world.produce(enable_idempotence=True), names.PRODUCER_IDS)
by(World.begin, names.TRANSACTIONS, names.TRANSACTION_OPEN_SECONDS)
by(World.begin, names.STABLE_OFFSET_HELD_SECONDS, names.UNSTABLE_RECORDS)


def _log(world: World) -> Any:
    log = world.server.kafka.logs.get(world.create(), 0)
    assert log is not None
    return log


by(lambda world: _log(world).trimming.delete_records(1), names.PARTITION_OLDEST_OFFSET, first=World.produce)
by(lambda world: _log(world).rolling.roll(SystemClock.time_ms()), names.LOG_SEGMENTS, first=World.produce)
by(lambda world: _log(world).state.go_offline("a test"), names.OFFLINE_PARTITIONS, first=World.create)


@itself(names.FLUSHER_QUEUE_SIZE)
def _flusher(world: World) -> None:
    storage = Storage(world.directory)
    registry = Registry()
    StorageMetrics(storage.manager, storage.clock).register(registry)
    log = storage.create()
    append(log, b"x")
    world.moves(lambda: storage.manager.flusher.wait_durable(log, 1, lambda error: None), registry)
    storage.stop()


class _Engine:
    """``Engine`` in memory. The owner is not acquired; tests renew its lease."""

    readers = 0
    limits = ShippingLimits()

    def __init__(self) -> None:
        runtime = system_runtime()
        self.owner = Owner(mock.Mock(), runtime.clock, runtime.threads, holder="", address="")
        self.catalogue = SimCatalogue(None, Tables())
        self.journal = JournalTable().take_over()
        self.objects = FailingObjects(0)

    def close(self) -> bool:
        return True


@contextmanager
def _durable(world: World) -> Iterator[tuple[_Engine, Registry, Callable[[int], None]]]:
    """A state beyond this machine, its registry, and what writes and syncs so many bytes."""
    engine, registry = _Engine(), Registry()
    durable = DurableState(str(world.directory), system_runtime(), engine)
    durable.register_metrics(registry)

    def write(size: int) -> None:
        file = durable.disk.open(f"{world.directory}/file", create=True)
        file.pwrite([bytes(size)], 0)
        file.sync()
        file.close()

    yield engine, registry, write


@itself(
    names.JOURNAL_FLUSHES,
    names.JOURNAL_BYTES,
    names.JOURNAL_OBJECTS,
    names.JOURNAL_FLUSH_SECONDS,
    names.JOURNAL_ROWS,
    names.JOURNAL_SIZE,
)
def _flush(world: World) -> None:
    with _durable(world) as (_, registry, write):
        world.moves(lambda: write(100_000), registry)


@itself(names.JOURNAL_FAILURES)
def _failed_flush(world: World) -> None:
    with _durable(world) as (engine, registry, write):
        engine.objects.failures = 1
        world.moves(lambda: write(100_000), registry)


@itself(names.OWNER_LEADING, names.OWNER_LEASE_SECONDS)
def _lease(world: World) -> None:
    with _durable(world) as (engine, registry, _):
        world.moves(lambda: engine.owner.renewed(SystemClock.monotonic(), 0), registry)


@itself(names.OWNER_EPOCH)
def _take_over(world: World) -> None:
    with _durable(world) as (engine, registry, _):
        world.moves(lambda: setattr(engine.owner, "epoch", 2), registry)


@itself(
    names.REMOTE_FETCH_BYTES,
    names.REMOTE_FETCH_REQUESTS,
    names.REMOTE_FETCH_ERRORS,
    names.REMOTE_CACHE_HITS,
    names.REMOTE_CACHE_BYTES,
    names.REMOTE_COPY_BYTES,
    names.REMOTE_COPY_REQUESTS,
    names.REMOTE_COPY_ERRORS,
    names.REMOTE_DELETE_REQUESTS,
    names.REMOTE_DELETE_ERRORS,
    names.REMOTE_COPY_LAG_BYTES,
    names.REMOTE_COPY_LAG_SEGMENTS,
    names.REMOTE_LOG_BYTES,
)
def _tier(world: World) -> None:
    storage = TieredStorage(world.directory)
    registry = Registry()
    storage.tier.register_metrics(registry)
    log = storage.create()
    append_many(log, 60)

    def everything() -> None:
        """What the store fails, and what it does."""
        for down in True, False:
            storage.store.down = down
            storage.upload()
        for down in True, False, False:
            storage.store.down = down
            with suppress(StorageError):
                values(log)
        log.trimming.delete_records(30)
        storage.housekeep()
        storage.go_round()  # the catalogue hears of it
        storage.clock.sleep_ms(60_001)
        for down in True, False:
            storage.store.down = down
            storage.go_round()
        append_many(log, 60)
        storage.go_round()  # without a checkpoint these wait

    world.moves(everything, registry)
    storage.stop()


@itself(names.RECOVERY_SECONDS, names.RECOVERED_LOGS, names.RECOVERY_SCANNED_BYTES, names.RECOVERY_TRUNCATED_BYTES)
def _recovery(world: World) -> None:
    storage = Storage(world.directory)
    append(storage.create(), b"x")
    registry = Registry()
    StorageMetrics(storage.manager, storage.clock).register(registry)
    if world.metric is names.RECOVERY_SECONDS:  # the clock of this storage stands still
        assert {(): 0.0} == registry.values(world.metric)
        world.moves(lambda: setattr(storage.manager.recovery, "seconds", 1.5), registry)
        storage.stop()
        return
    with open(storage.path() / "00000000000000000000.log", "ab") as file:
        file.write(b"torn")
    storage.crash()
    after = Registry()
    StorageMetrics(storage.manager, storage.clock).register(after)
    assert total(registry, world.metric) == 0 < total(after, world.metric)
    storage.stop()


# -- groups ---------------------------------------------------------------------------------------------------------------

by(
    World.join,
    names.GROUPS,
    names.GROUPS_BY_PROTOCOL,
    names.GROUP_MEMBERS,
    names.GROUP_GENERATION,
    names.GROUP_REBALANCES,
    names.COORDINATOR_MEMORY_BYTES,
)
by(
    World.commit,
    names.GROUP_LAG_SUM,
    names.GROUP_LAG,
    names.GROUP_OFFSET,
    names.GROUP_LAG_SECONDS,
    first=World.produce,
)


@itself(
    names.SHARE_ACKNOWLEDGEMENTS,
    names.SHARE_RECORD_ACKNOWLEDGEMENTS,
    names.SHARE_SESSIONS,
    names.SHARE_SESSION_PARTITIONS,
    names.SHARE_PARTITIONS,
    names.SHARE_IN_FLIGHT_RECORDS,
)
def _shared(world: World) -> None:
    kafka = world.server.kafka
    info = kafka.logs.topic(world.create())
    assert info is not None
    host, port = world.broker.bootstrap_servers.rsplit(":", 1)
    members = (
        world.stack.enter_context(Member((host, int(port)), info.topic_id, group=world.topic, member_id=str(number)))
        for number in itertools.count()
    )

    def share() -> None:
        member = next(members)
        member.fetch()
        for _ in range(2):
            log = kafka.logs.get(world.topic, 0)
            assert log is not None
            log.append(memoryview(build_batch([(None, b"value", [], 1_000)] * 3)), now_ms=1_000)
        ((first, *_),) = member.fetch().ranges()
        member.acknowledged({0: [(first, first, [1])]})

    world.moves(share)


@itself(names.CATALOGUE_QUEUE_SIZE)
def _catalogue(world: World) -> None:
    gate, writer = threading.Event(), world.server.kafka.groups.writer

    def hold_up() -> None:
        for _ in range(3):
            writer.call_soon(lambda: gate.wait(DEADLINE_S))

    world.moves(hold_up)
    gate.set()


# -- shuffle --------------------------------------------------------------------------------------------------------------

by(
    World.push,
    names.SHUFFLE_PARTITIONS,
    names.SHUFFLE_BUFFERS,
    names.SHUFFLE_PUSHED_BYTES,
    names.SHUFFLE_MEMORY_BYTES,
    names.SHUFFLE_WRITERS,
    names.SHUFFLE_WRITER_CREDIT,
)
by(World.store, names.SHUFFLE_DISK_BYTES, names.SHUFFLE_SPILLED_BYTES)
by(
    World.read_without_credit,
    names.SHUFFLE_READERS,
    names.SHUFFLE_BACKLOG_BUFFERS,
    names.SHUFFLE_BACK_PRESSURED_READERS,
)
by(World.read, names.SHUFFLE_READER_CREDIT)


@itself(names.SHUFFLE_MEMORY_CAPACITY_BYTES)
def _shuffle_capacity(world: World) -> None:
    assert {(): world.server.config.shuffle_memory_bytes} == world.registry.values(world.metric)


def _shuffle_part(world: World) -> Any:
    return world.server.part("shuffle")


@itself(names.SHUFFLE_SPILLER_BROKEN)
def _spiller(world: World) -> None:
    spiller = mock.Mock(broken=None)
    part, registry = _shuffle_part(world), Registry()
    ShuffleMetrics(part.partitions, part.partitions.budget, spiller, SystemClock()).register(registry)
    world.moves(lambda: setattr(spiller, "broken", OSError()), registry)


@itself(names.SHUFFLE_BLOCKED_WRITERS)
def _blocked(world: World) -> None:
    def push_much() -> None:
        client = world.shuffle()
        writer = client.open(new_id())
        for _ in range(200):  # nobody reads it, so credit ends with shuffle_pipelined_bytes
            if not writer.credit:
                break
            writer.push(b"x" * 30_000)

    world.moves(push_much)


# -- Pulsar ---------------------------------------------------------------------------------------------------------------

by(
    World.publish,
    names.PULSAR_TOPICS,
    names.PULSAR_PRODUCERS,
    names.PULSAR_IN_MESSAGES,
    names.PULSAR_IN_BYTES,
    names.PULSAR_STORAGE_SIZE,
)
by(
    World.subscribe,
    names.PULSAR_CONSUMERS,
    names.PULSAR_SUBSCRIPTIONS,
    names.PULSAR_SUBSCRIPTION_CONSUMERS,
    names.PULSAR_SUBSCRIPTION_PERMITS,
)
by(
    World.receive,
    names.PULSAR_OUT_MESSAGES,
    names.PULSAR_OUT_BYTES,
    names.PULSAR_MSG_BACKLOG,
    names.PULSAR_SUBSCRIPTION_BACK_LOG,
    names.PULSAR_CACHE_BYTES,
)
by(
    lambda world: world.receive(consumer_type=pulsar.ConsumerType.Shared),
    names.PULSAR_SUBSCRIPTION_UNACKED,
)


@itself(
    names.PULSAR_RATE_IN,
    names.PULSAR_THROUGHPUT_IN,
    names.PULSAR_RATE_OUT,
    names.PULSAR_THROUGHPUT_OUT,
    names.PULSAR_SUBSCRIPTION_RATE_OUT,
    names.PULSAR_SUBSCRIPTION_THROUGHPUT_OUT,
)
def _rates(world: World) -> None:
    consumer = world.subscribe()
    assert consumer is not None
    producer = world.pulsar().create_producer(world.pulsar_topic)
    topic = consumer.topic()

    def rate() -> float:
        return sum(rate for labels, rate in world.registry.values(world.metric).items() if topic in labels)

    with mock.patch.object(pulsar_metrics, "_RATE_LEAST_S", 0.001):
        rate()  # from now on it is known
        producer.send(b"value")
        consumer.acknowledge(consumer.receive(int(DEADLINE_S * 1000)))
        assert rate() > 0
        time.sleep(0.01)  # nothing happens
        wait_for(lambda: rate() == 0)


@itself(names.PULSAR_SUBSCRIPTION_BLOCKED)
def _blocked_on_unacked(world: World) -> None:
    consumer = world.subscribe(consumer_type=pulsar.ConsumerType.Shared)
    assert consumer is not None
    producer = world.pulsar().create_producer(world.pulsar_topic, batching_enabled=False)
    # More than pulsar_max_unacked_per_consumer, which is 3 here.
    world.moves(lambda: [producer.send(b"x") for _ in range(10)])


# -- the tests ------------------------------------------------------------------------------------------------------------

_AGED = (network_metrics, storage_metrics, kafka_metrics, share_metrics, shuffle_metrics, pulsar_metrics)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with ExitStack() as stack:
        for module in _AGED:
            stack.enter_context(mock.patch.object(module, "_AGE_S", 0.0))
        yield stack.enter_context(
            Broker(
                str(tmp_path_factory.mktemp("broker")),
                listeners=["kafka://127.0.0.1:0", "shuffle://127.0.0.1:0", "pulsar://127.0.0.1:0"],
                group_initial_rebalance_delay_ms=0,
                shuffle_pipelined_bytes=100_000,
                pulsar_max_unacked_per_consumer=3,
            )
        )


def test_there_is_a_move_for_every_metric() -> None:
    assert [] == [metric.name for metric in names.ALL if metric not in MOVES]


@pytest.mark.parametrize("metric", names.ALL, ids=lambda metric: metric.name)
def test_it_moves(metric: Metric, broker: Broker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        MOVES[metric](World(broker, tmp_path, stack, metric))
