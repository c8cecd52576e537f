"""A broker whose state is in PostgreSQL and an object store, on one machine after the other, with a real client."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.config import BrokerConfig
from broker.errors import BrokerError, ConfigError, Fenced
from broker.metadata.catalogue import RemoteFile
from broker.server.broker_server import BrokerServer, StandbyEnded
from broker.storage.journal.shipped_disk import ShippedDisk
from broker.storage.journal.shipper import ShippingLimits
from tests.durable.postgres import fresh_schema, shared_server
from tests.waiting import DEADLINE_S, wait_for

pytest.importorskip("psycopg")


class Machines:
    """Brokers with the same state; each has a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = {
            "catalogue": shared_server().url,
            "catalogue_schema": fresh_schema(),
            "objects": f"file://{root}/objects",
            "log_segment_bytes": 16 * 1024,
            "log_flush_offset_checkpoint_interval_ms": 50,
            "remote_log_manager_task_interval_ms": 50,
        }
        self.brokers: list[BrokerServer] = []

    def new(self, **settings: Any) -> BrokerServer:
        directory = f"{self.root}/{len(self.brokers)}"
        everything = {"listeners": ("kafka://127.0.0.1:0",), "data_dir": directory} | self.settings | settings
        broker = BrokerServer(BrokerConfig(**everything))
        self.brokers.append(broker)
        return broker

    def start(self, **settings: Any) -> BrokerServer:
        broker = self.new(**settings)
        broker.start()
        return broker

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop(5)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    yield machines
    machines.stop()


def client(broker: BrokerServer, **settings: Any) -> dict[str, Any]:
    return {"bootstrap.servers": broker.listeners["kafka"], "log_level": 0, **settings}


def produce(broker: BrokerServer, values: list[bytes], topic: str = "t", **settings: Any) -> None:
    producer = Producer(client(broker, **{"batch.num.messages": 10, "linger.ms": 1, **settings}))
    errors: list[KafkaError] = []
    for value in values:
        producer.produce(topic, value, partition=0, callback=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(DEADLINE_S) == 0
    assert errors == []


def read(broker: BrokerServer, count: int, group: str = "reader", topic: str = "t") -> list[bytes]:
    consumer = Consumer(client(broker, **{"group.id": group, "auto.offset.reset": "earliest"}))
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count:
        for message in consumer.consume(count, DEADLINE_S):
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


def test_everything_is_there_on_the_next_machine(machines: Machines) -> None:
    first = machines.start()
    values = [b"%d" % number * 300 for number in range(300)]
    new = NewTopic("t", 1, config={"retention.ms": "-1", "cleanup.policy": "compact"})
    admin = AdminClient(client(first))
    admin.create_topics([new])["t"].result(DEADLINE_S)
    produce(first, values, "plain")
    consumer = Consumer(client(first, **{"group.id": "g"}))
    consumer.commit(offsets=[TopicPartition("plain", 0, 7)], asynchronous=False)
    consumer.close()
    assert first.stop()
    shutil.rmtree(first.config.data_dir)

    second = machines.start()
    assert values == read(second, len(values), topic="plain")
    (committed,) = Consumer(client(second, **{"group.id": "g"})).committed([TopicPartition("plain", 0)], DEADLINE_S)
    assert 7 == committed.offset
    info = second.kafka.logs.topic("t")
    assert info is not None
    assert {"retention.ms": "-1", "cleanup.policy": "compact"} == info.configs
    assert first.kafka.logs.data_dir != second.kafka.logs.data_dir


@pytest.mark.parametrize("acks", ["1", "all"])
def test_acknowledged_is_what_the_journal_has(machines: Machines, acks: str) -> None:
    broker = machines.start()
    produce(broker, [b"a"], acks=acks)
    log = broker.kafka.logs.require("t", 0)
    assert (1, 1) == (log.durable_offset, log.high_watermark)
    assert isinstance(broker._taken.durable.disk, ShippedDisk)  # type: ignore[union-attr]  # so durable says: shipped


def test_closed_segments_leave_the_journal(machines: Machines) -> None:
    broker = machines.start()
    durable = broker._taken.durable
    assert durable is not None
    durable.shipper.limits = ShippingLimits(bytes=100_000)
    values = [bytes(1000) + b"%d" % number for number in range(200)]
    produce(broker, values)
    wait_for(lambda: len(broker.kafka.logs.require("t", 0).view.segments) - 1 == _uploaded(broker))
    wait_for(lambda: durable.shipper.row_bytes < 60_000)
    assert broker.stop()
    shutil.rmtree(broker.config.data_dir)
    second = machines.start()
    assert values == read(second, len(values))


def test_large_files_of_services_leave_the_journal(machines: Machines) -> None:
    broker = machines.start()
    broker._taken.durable.shipper.limits = ShippingLimits(bytes=10_000, carry_max=50_000)  # type: ignore[union-attr]
    content = bytes(range(256)) * 1000
    disk, path = broker.kafka.logs.disk, f"{broker.config.data_dir}/shuffle/part-1.data"
    disk.makedirs(f"{broker.config.data_dir}/shuffle")
    file = disk.open(path, create=True)
    file.pwrite([content], 0)
    file.sync()
    file.close()
    wait_for(lambda: any(file.object.startswith("files/") for file in _remote_files(broker)))
    assert broker.stop()
    shutil.rmtree(broker.config.data_dir)

    second = machines.start()
    copy = Path(second.config.data_dir) / "shuffle" / "part-1.data"
    assert content == copy.read_bytes()
    assert second._taken.durable.shipper.table.get("shuffle/part-1.data") is None  # type: ignore[union-attr]
    second.kafka.logs.disk.remove(str(copy))
    second.kafka.logs.disk.sync_dir(str(copy.parent))
    assert [] == _remote_files(second)


def _remote_files(broker: BrokerServer) -> list[RemoteFile]:
    return list(broker._taken.catalogue.load_remote_files())  # type: ignore[union-attr]


def _uploaded(broker: BrokerServer) -> int:
    return sum(file.path.endswith(".log") for file in _remote_files(broker))


def test_a_broker_in_the_way_is_named(machines: Machines) -> None:
    machines.start()
    with pytest.raises(ConfigError, match="start this one with --standby"):
        machines.start()


def test_another_catalogue_with_the_same_objects_is_refused(machines: Machines) -> None:
    """The owner with the higher epoch would delete what the other one's journal has in the store."""
    machines.settings["log_segment_bytes"] = 1024 * 1024
    first = machines.start()
    values = [bytes(100_000)]
    produce(first, values, acks="all")
    assert first.stop()
    with pytest.raises(ConfigError, match="Set objects to a place of its own for this catalogue"):
        machines.start(catalogue_schema=fresh_schema())
    assert values == read(machines.start(), 1)


def test_another_place_for_objects_than_before_is_refused(machines: Machines) -> None:
    machines.settings["log_segment_bytes"] = 1024 * 1024
    first = machines.start()
    produce(first, [bytes(100_000)])
    assert first.stop()
    with pytest.raises(ConfigError, match="the place that this catalogue has used so far"):
        machines.start(objects=f"file://{machines.root}/others")
    assert [bytes(100_000)] == read(machines.start(), 1)


def test_no_two_owners_put_objects_under_the_same_keys(machines: Machines) -> None:
    """A database that was restored, or whose replica took over, gives the same epoch again."""
    machines.settings["log_segment_bytes"] = 1024 * 1024
    first, second = (
        machines.new(),
        machines.new(catalogue_schema=fresh_schema(), objects=f"file://{machines.root}/others"),
    )
    keys = []
    for broker, place in ((first, "objects"), (second, "others")):
        broker.start()
        produce(broker, [bytes(100_000)])
        root = machines.root / place / "journal" / "00000001"
        keys.append({path.name for path in root.iterdir()})
    assert set() == keys[0] & keys[1]


def test_standby_takes_over_when_the_owner_stops(machines: Machines) -> None:
    first = machines.start()
    produce(first, [b"a"])
    standby = machines.new(standby=True)
    started = _aside(standby.start)
    assert not started.wait(0.5)
    assert first.stop()
    assert started.wait(DEADLINE_S)
    assert [b"a"] == read(standby, 1)


def test_standby_can_be_stopped(machines: Machines) -> None:
    machines.start()
    standby = machines.new(standby=True)
    ended: list[BaseException] = []

    def start() -> None:
        try:
            standby.start()
        except StandbyEnded as error:
            ended.append(error)

    started = _aside(start)
    assert not started.wait(0.3)
    standby.request_stop()
    assert started.wait(DEADLINE_S)
    assert 1 == len(ended)
    assert not Path(standby.config.data_dir).exists()


def _aside(work: Any) -> Any:
    from broker.runtime.threads import Event, run_aside

    done = Event()

    def run() -> None:
        work()
        done.set()

    run_aside("starter", run)
    return done


def test_who_was_replaced_ends(machines: Machines) -> None:
    first = machines.start()
    produce(first, [b"a"])
    owner = first._taken.durable.engine.owner  # type: ignore[union-attr]
    session = owner._session
    assert session is not None
    session.close()  # the lock is free
    second = machines.start(standby=True)
    assert first.wait(DEADLINE_S)
    assert isinstance(first.crash, Fenced)
    assert [b"a"] == read(second, 1)


def test_who_is_replaced_while_it_starts_says_so(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not take it for an error of the disk or of its settings."""
    broker = machines.new()
    bind_sockets = broker._bind_sockets

    def replaced(*arguments: Any) -> Any:
        raise_epoch(machines)
        return bind_sockets(*arguments)

    monkeypatch.setattr(broker, "_bind_sockets", replaced)
    with pytest.raises(BrokerError, match="does not own its state any more: Another broker has taken over") as refused:
        broker.start()
    assert not isinstance(refused.value, ConfigError)


def raise_epoch(machines: Machines) -> None:
    with shared_server().connect() as connection:
        schema = machines.settings["catalogue_schema"]
        connection.execute(f"UPDATE {schema}.owner SET epoch = epoch + 1".encode())


def test_who_finds_the_catalogue_fenced_ends(machines: Machines) -> None:
    broker = machines.start()
    raise_epoch(machines)
    with pytest.raises(Fenced):
        broker._taken.catalogue.set_meta("a", "b")  # type: ignore[union-attr]
    assert broker.wait(DEADLINE_S)
    assert isinstance(broker.crash, Fenced)


def test_suspended_broker_has_no_connections(machines: Machines) -> None:
    broker = machines.start()
    host, port = broker.sockets.address("kafka")
    connection = socket.create_connection((host, port), DEADLINE_S)
    broker._suspended()
    assert b"" == connection.recv(1)
    refused = socket.create_connection((host, port), DEADLINE_S)
    assert b"" == refused.recv(1)
    broker._resumed()
    produce(broker, [b"a"])
    assert [b"a"] == read(broker, 1)
    connection.close()
    refused.close()


def test_catalogue_needs_an_object_store(machines: Machines) -> None:
    with pytest.raises(ConfigError, match="Set objects, too"):
        machines.start(objects=None)


def test_objects_in_memory_are_refused(machines: Machines) -> None:
    with pytest.raises(ConfigError, match="a store that outlives the broker"):
        machines.start(objects="memory://")


def test_a_database_that_was_restored_in_part_is_refused(machines: Machines) -> None:
    first = machines.start()
    produce(first, [b"a"])
    assert first.stop()
    with shared_server().connect() as connection:
        connection.execute(f"UPDATE {machines.settings['catalogue_schema']}.owner SET number = 0".encode())
    with pytest.raises(ConfigError, match=r"Restore the database as a whole: .* its owner's row says 0"):
        machines.start()


def test_directory_with_data_of_its_own_is_refused(machines: Machines, tmp_path: Path) -> None:
    alone = BrokerServer(BrokerConfig(listeners=("kafka://127.0.0.1:0",), data_dir=f"{tmp_path}/own"))
    alone.start()
    produce(alone, [b"a"])
    assert alone.stop()
    with pytest.raises(ConfigError, match="broker migrate"):
        machines.start(data_dir=f"{tmp_path}/own")
    assert (tmp_path / "own" / "t-0").is_dir()
    # And the state was given up: the next broker need not wait.
    machines.start()
