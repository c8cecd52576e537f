"""A broker inside a program: the files that it leaves, however the program ends."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.errors import AuthenticationError, LinkError
from broker.errors import BrokerError, ConfigError
from tests.open_files import open_files, wait_for_librdkafka
from tests.pulsar.clients import client as pulsar_client

STARTED = """
import os, sys, time
from kafka import KafkaProducer
from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.errors import AuthenticationError, LinkError
from broker.errors import ConfigError
running = Broker({arguments}).start()
producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
producer.send("orders", b"one").get(30)
print(running.data_dir, flush=True)
"""


def run(directory: Path, end: str, arguments: str = "", how: signal.Signals | None = None) -> str:
    """Run a program that starts a broker and ends this way; return the broker's data directory."""
    environment = os.environ | {"TMPDIR": str(directory)}
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED.format(arguments=arguments) + end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        assert path, process.stderr and process.stderr.read()
        if how is not None:
            process.send_signal(how)
        process.communicate(timeout=60)
    return path


def test_broker_loads_only_what_it_needs() -> None:
    program = """
import sys
from broker.client import Broker
broker = Broker()
print([name for name in sys.modules if name.startswith(("broker.server", "broker.kafka", "broker.storage", "broker.security"))])
broker.start().close()
print([name for name in ("cryptography", "opentelemetry", "h11", "google.protobuf", "broker.pulsar") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=60)
    assert ["[]", "[]"] == done.stdout.splitlines()


@pytest.mark.parametrize("end", ["", "raise ValueError", "sys.exit(3)", "running.stop()"])
def test_ending_program_leaves_nothing(tmp_path: Path, end: str) -> None:
    run(tmp_path, end)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_next_broker_removes_killed_programs_leftovers(tmp_path: Path, how: signal.Signals) -> None:
    path = run(tmp_path, "time.sleep(600)", how=how)
    assert os.path.isdir(path)
    run(tmp_path, "")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [None, signal.SIGKILL])
def test_given_directory_stays(tmp_path: Path, how: signal.Signals | None) -> None:
    given = tmp_path / "broker-given"
    for _ in range(2):
        run(tmp_path, "time.sleep(600)" if how else "raise ValueError", arguments=repr(str(given)), how=how)
    assert [given] == list(tmp_path.iterdir())
    with Broker(str(given)) as running:
        assert "orders" in [topic.name for topic in running.server.kafka.logs.topics()]


def test_failed_start_leaves_nothing(tmp_path: Path) -> None:
    program = """
from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.errors import AuthenticationError, LinkError
from broker.errors import ConfigError
from broker.errors import ConfigError
try:
    Broker(listeners=("kafka://no-such-host.invalid:1",), allow_anonymous_listeners=True).start()
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [False, True])
def test_forked_process_leaves_the_broker_alone(tmp_path: Path, given: bool) -> None:
    with Broker(data_dir=str(tmp_path) if given else None) as running:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                running.stop()
                status = 0
            finally:
                os._exit(status)
        assert 0 == os.waitpid(child, 0)[1]
        assert os.path.isdir(running.data_dir)
        producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
        producer.send("orders", b"one").get(30)
        producer.close()


ALL = ("kafka://127.0.0.1:0", "shuffle://localhost:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")


def test_restart_keeps_data_and_ports() -> None:
    with Broker(listeners=ALL, control_listener="kafka://127.0.0.1:0?name=control") as running:
        before = running.data_dir, running.server.listeners
        delivered: list[tuple[Any, int]] = []
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "retry.backoff.ms": 20})
        with pulsar_client(f"pulsar://{running.address('pulsar')}") as pulsar:
            other = pulsar.create_producer("others")
            for number in range(30):
                if number in (10, 20):
                    running.stop()
                    running.stop()
                    assert (running.data_dir, running.bootstrap_servers) == (before[0], before[1]["kafka"])
                producer.produce(
                    "orders", b"%d" % number, on_delivery=lambda error, told: delivered.append((error, told))
                )
                if number in (10, 20):
                    running.start()
                    assert (running.data_dir, running.server.listeners) == before
                    other.send(b"%d" % number)
        assert 0 == producer.flush(60)
        assert [None] * 30 == [error for error, _ in delivered]
        log = running.server.kafka.logs.get("orders", 0)
        assert log is not None and log.log_end_offset >= 30
    assert not os.path.exists(before[0])
    with pytest.raises(BrokerError, match="not running"):
        running.address("kafka")


def test_closed_broker_begins_anew() -> None:
    running = Broker().start()
    first = running.data_dir
    running.stop()
    assert os.path.isdir(first)
    running.close()
    running.close()
    assert not os.path.exists(first)
    with running:
        assert first != running.data_dir


def test_dropped_stopped_broker_leaves_nothing() -> None:
    wait_for_librdkafka("an earlier test has left something")  # it would open files, too
    running = Broker().start()
    path, files = running.data_dir, len(open_files())
    running.stop()
    stopped = len(open_files())
    del running
    gc.collect()
    assert not os.path.exists(path)
    assert len(open_files()) < stopped < files


def test_taken_port_is_reported_without_loss() -> None:
    with Broker(listeners=("kafka://127.0.0.1:0",)) as running:
        producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
        producer.send("orders", b"one").get(30)
        producer.close()
        running.stop()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", int(running.bootstrap_servers.rpartition(":")[2])))
            other.listen()
            with pytest.raises(ConfigError, match="in use"):
                running.start()
            assert "not running" in repr(running)
        running.start()
        assert ["orders"] == [topic.name for topic in running.server.kafka.logs.topics()]


def test_broker_with_users_takes_one_more_call() -> None:
    with Broker(listeners=("kafka://127.0.0.1:0", "kafka+sasl://127.0.0.1:0"), num_partitions=2) as broker:
        broker.add_user("alice", "s3cret")
        assert broker.bootstrap_servers == broker.address("kafka") != broker.address("kafka+sasl")
        settings = {
            "bootstrap.servers": broker.address("kafka+sasl"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
        }
        with Cluster(ClientConfig.from_properties({**settings, "sasl.password": "s3cret"})) as cluster:
            assert {} == cluster.topics()
        with (
            Cluster(ClientConfig.from_properties({**settings, "sasl.password": "another"})) as cluster,
            pytest.raises(AuthenticationError, match="refuses 'alice'"),
        ):
            cluster.topics()
        plain = {"bootstrap.servers": broker.address("kafka+sasl"), "default.api.timeout.ms": 2000}
        with Cluster(ClientConfig.from_properties(plain)) as cluster, pytest.raises(LinkError, match="ask for a login"):
            cluster.topics()
        with pytest.raises(ConfigError, match=r"There is no listener 'kafka\+ssl': this broker has kafka, kafka\+sasl"):
            broker.address("kafka+ssl")


def test_wrong_setting_is_reported_before_the_start() -> None:
    with pytest.raises(ConfigError, match="did you mean 'num_partitions'"):
        Broker(num_partition=4)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="num_partitions to a whole number of at least 1"):
        Broker(num_partitions=0)


def test_directory_may_be_a_path(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        assert str(tmp_path / "data") == broker.data_dir


def test_repr_names_the_state(tmp_path: Path) -> None:
    broker = Broker(listeners=["kafka://127.0.0.1:0"])
    assert "<Broker, not running, data in a temporary directory>" == repr(broker)
    assert f"<Broker, not running, data in '{tmp_path}'>" == repr(Broker(str(tmp_path)))
    with broker:
        assert f"<Broker at kafka://{broker.bootstrap_servers}, data in '{broker.data_dir}'>" == repr(broker)
        with pytest.raises(BrokerError, match="running already"):
            broker.start()


def test_use_before_the_start_is_reported() -> None:
    broker = Broker()
    for use in (lambda: broker.bootstrap_servers, lambda: broker.data_dir, lambda: broker.server):
        with pytest.raises(BrokerError, match="not running: use it in `with Broker"):
            use()


def test_coroutine_can_use_a_broker() -> None:
    async def main() -> str:
        broker = Broker()
        async with broker:
            producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
            async with producer:
                assert 0 == (await producer.send_and_wait("orders", b"one")).offset
            directory = broker.data_dir
            assert os.path.isdir(directory)
        assert "not running" in repr(broker)
        return directory

    assert not os.path.exists(asyncio.run(main()))
