"""Real clients of a broker whose machine has faults."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError as KafkaPythonError

from broker.client import Broker
from broker.config import load
from broker.errors import ConfigError, StorageError
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.server import BrokerServer, contents
from broker.server.machine import Machine
from tests.pulsar.clients import client as pulsar_client
from tests.waiting import wait_for

HOUR_MS = 3_600_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listeners=("kafka://127.0.0.1:0",)) as running:
        running.create_topic("orders")
        yield running


class Client:
    """A producer and what it was told."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        fast = {"acks": "all", "retry.backoff.ms": 20, "log_level": 0}
        self._producer = Producer({**broker.client_settings, **fast, **settings})
        self.told: list[int | None] = []

    def send(self, value: bytes) -> None:
        self._producer.produce("orders", value, on_delivery=self._on_delivery)
        self._producer.poll(0)

    def flush(self) -> None:
        assert 0 == self._producer.flush(100)

    def metadata(self) -> Any:
        return self._producer.list_topics(timeout=60)

    def _on_delivery(self, error: KafkaError | None, _message: Any) -> None:
        self.told.append(None if error is None else error.code())


def values(broker: Broker) -> list[bytes | None]:
    return [record.value for record in broker.records("orders")]


# -- a full disk -------------------------------------------------------------------------------------------------------


def test_full_disk_refuses_records_until_there_is_room(broker: Broker) -> None:
    broker.produce("orders", ["before"])
    client, impatient = Client(broker), Client(broker, retries=0)
    with broker.faults.add("disk_full") as full:
        impatient.send(b"refused")
        impatient.flush()
        assert [KafkaError.KAFKA_STORAGE_ERROR] == impatient.told
        hits = full.hits
        client.send(b"one")
        full.wait(hits + 3)  # the client repeats it
        assert [b"before"] == values(broker)
        with pytest.raises(StorageError):
            broker.produce("orders", ["ours"])
        assert {"WRITE"} == {passing.api for passing in full.passed}
    client.flush()
    assert [None] == client.told
    assert [b"before", b"one"] == values(broker)
    assert full.hits > hits + 3


def test_full_disk_refuses_topics_and_offsets(broker: Broker) -> None:
    broker.produce("orders", ["one", "two"])
    consumer = Consumer({**broker.client_settings, "group.id": "g", "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition("orders", 0, 0)])
    first = consumer.poll(60)
    assert first is not None and first.value() == b"one"
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    commits = broker.faults.add("observe", api="OFFSET_COMMIT", count=None)
    with broker.faults.add("disk_full"):
        with pytest.raises(KafkaPythonError, match=r"[Ss]torage"):
            admin.create_topics([NewTopic("others", 1, 1)])
        with pytest.raises(StorageError):
            broker.create_topic("others")
        consumer.commit(first, asynchronous=True)
        commits.wait(2)  # the client repeats it
        second = consumer.poll(60)
        assert second is not None and second.value() == b"two"
        assert {} == broker.committed("g")
    consumer.commit(second, asynchronous=False)
    admin.create_topics([NewTopic("others", 1, 1)])
    assert {("orders", 0): 2} == broker.committed("g")
    assert {"orders", "others"} <= set(Client(broker).metadata().topics)
    consumer.close()
    admin.close()


def test_some_writes_may_fail(broker: Broker) -> None:
    full = broker.faults.add("disk_full", count=2, skip=1)
    broker.produce("orders", ["one"])
    for _ in range(2):
        with pytest.raises(StorageError):
            broker.produce("orders", ["lost"])
    broker.produce("orders", ["two"])
    assert [b"one", b"two"] == values(broker)
    assert (2, 0) == (full.hits, full.left)


def test_broker_starts_on_a_full_disk(broker: Broker) -> None:
    broker.produce("orders", ["one"])
    with broker.faults.add("disk_full"):
        broker.restart()
        assert [b"one"] == values(broker)
        with pytest.raises(StorageError):
            broker.produce("orders", ["lost"])
    broker.produce("orders", ["two"])
    assert [b"one", b"two"] == values(broker)


# -- slow fsyncs -------------------------------------------------------------------------------------------------------


def test_only_who_asks_for_an_fsync_waits_for_it(broker: Broker) -> None:
    durable, quick = Client(broker), Client(broker, acks=1)
    for _ in range(3):  # the first fsyncs of a log are those of new files, and not the kernel's queue's
        durable.send(b"before")
        durable.flush()
    durable.told.clear()
    with broker.faults.add("slow_fsync", delay_ms=HOUR_MS) as slow:
        durable.send(b"one")
        slow.wait()
        quick.send(b"two")
        quick.flush()
        assert ([None], []) == (quick.told, durable.told)
        assert [b"before"] * 3 + [b"one", b"two"] == values(broker)
        assert "orders" in quick.metadata().topics
    durable.flush()
    assert [None] == durable.told
    assert "FSYNC" == slow.passed[0].api


def test_fsyncs_come_after_their_delay(broker: Broker) -> None:
    with broker.faults.add("slow_fsync", delay_ms=1, count=3) as slow:
        for number in range(5):
            broker.produce("orders", [b"%d" % number])
        assert (3, 0) == (slow.hits, slow.left)


def test_closed_broker_waits_for_no_slow_fsync() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        slow = broker.faults.add("slow_fsync", delay_ms=HOUR_MS)
        client = Client(broker, **{"message.timeout.ms": 1000})
        client.send(b"one")
        slow.wait()
    assert 0 == slow.left
    client.flush()  # a producer that still owes a delivery report is never collected


# -- the clock ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_clock_jumps_and_comes_back(broker: Broker, jump_ms: int) -> None:
    broker.create_topic("stamped", message_timestamp_type="LogAppendTime")

    def stamp() -> tuple[int, int, int]:
        before = SystemClock.time_ms()
        return before, producer.send("stamped", b"").get(60).timestamp, SystemClock.time_ms()

    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        with broker.faults.add("clock_jump", jump_ms=jump_ms) as jump:
            before, stamped, after = stamp()
            assert before + jump_ms <= stamped <= after + jump_ms
            assert jump.hits > 0
        before, stamped, after = stamp()
        assert before <= stamped <= after


# -- a restart ---------------------------------------------------------------------------------------------------------


def wait_for_restarts() -> None:
    """They come a moment after their requests, which clients may repeat before."""
    wait_for(lambda: not any(thread.name == "broker-restart" for thread in threading.enumerate()))


def test_request_restarts_the_broker(broker: Broker) -> None:
    server, address = broker.server, broker.bootstrap_servers
    client = Client(broker)
    restart = broker.faults.add("restart", api="PRODUCE", topic="orders")
    client.send(b"one")
    client.flush()
    assert [None] == client.told
    wait_for_restarts()
    assert [b"one"] == values(broker)
    assert (1, 0, address) == (restart.hits, restart.left, broker.bootstrap_servers)
    assert server is not broker.server


def test_pulsar_s_commands_restart_it() -> None:
    with (
        Broker(listeners=("pulsar://127.0.0.1:0",)) as broker,
        pulsar_client(f"pulsar://{broker.address('pulsar')}") as it,
    ):
        server, producer = broker.server, it.create_producer("orders")
        restart = broker.faults.add("restart", api="SEND", topic="orders")
        producer.send(b"one")
        restart.wait()
        wait_for_restarts()
        assert [b"one"] == values(broker)
        assert server is not broker.server


def test_faults_of_the_machine_keep_no_request_from_its_usual_way(broker: Broker) -> None:
    told: list[bool] = []
    broker.faults.attach(told.append)
    with broker.faults.add("disk_full"), broker.faults.add("observe"):
        assert [False, True] == told
    assert [False, True, False] == told


def test_many_requests_restart_it_once_at_a_time(broker: Broker) -> None:
    clients = [Client(broker) for _ in range(5)]
    restart = broker.faults.add("restart", api="PRODUCE", count=10)
    for client in clients:
        client.send(b"one")
    for client in clients:
        client.flush()
        assert [None] == client.told
    assert 10 == restart.hits
    assert [b"one"] * 5 == values(broker)
    wait_for_restarts()


# -- brokers without them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("enabled", "kind"), [(False, "disk_full"), (False, "restart"), (True, "restart")])
def test_server_of_its_own_has_no_such_faults(tmp_path: Path, enabled: bool, kind: str) -> None:
    server = BrokerServer(load(data_dir=str(tmp_path), listeners="kafka://127.0.0.1:0", faults_enabled=enabled))
    assert enabled == (type(server.runtime.disk) is not SystemDisk)
    with pytest.raises(ConfigError, match=f"no kind '{kind}'"):
        server.faults.add(kind)


def test_server_with_faults_enabled_has_a_machine(tmp_path: Path) -> None:
    server = BrokerServer(load(data_dir=str(tmp_path), listeners="kafka://127.0.0.1:0", faults_enabled=True))
    server.start()
    with server.faults.add("disk_full") as full, pytest.raises(StorageError):
        contents.create_topic(server, "orders", 1, {})
    assert full.hits > 0
    contents.create_topic(server, "orders", 1, {})
    server.stop()


def test_file_operations_without_faults_ask_for_none(tmp_path: Path) -> None:
    """One look at ``of_machine`` is all that they pay."""

    class Looked:
        looks = 0
        meet: Callable[..., Any]  # missing: a call fails

        @property
        def of_machine(self) -> frozenset[str]:
            self.looks += 1
            return frozenset()

    faults = Looked()
    runtime = Machine(faults).runtime  # type: ignore[arg-type]
    file = runtime.disk.open(str(tmp_path / "file"), create=True)
    for act in (lambda: file.pwrite([b"one"], 0), file.sync, runtime.clock.time_ms):
        before = faults.looks
        act()
        assert 1 == faults.looks - before
    file.close()
