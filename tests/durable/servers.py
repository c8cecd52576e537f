"""Brokers in the test's own process, where their state is, and what clients put into them and find."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.config import BrokerConfig
from broker.metadata.postgres import PostgresCatalogue
from broker.metadata.postgres_connection import Address
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime import system_runtime
from broker.runtime.open_objects import open_objects
from broker.server import BrokerServer
from broker.server.moving import Moved
from broker.server.to_database import into_database
from broker.server.to_directory import into_directory
from tests.durable.postgres import PostgresServer, fresh_schema
from tests.metadata.test_copying import Contents
from tests.waiting import DEADLINE_S, wait_for

SMALL = {
    "log_segment_bytes": 20_000,
    "log_cleaner_backoff_ms": 50,
    "log_retention_check_interval_ms": 100,
    "authorizer_class_name": "acl",
    "super_users": "User:ANONYMOUS",
}
VALUES = [b"%06d" % number * 5 for number in range(2000)]


class Silent:
    """Takes what a mover says."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.total = 0
        self.done = 0

    def begin(self, what: str, total: int) -> None:
        self.begun.append(what)
        self.total, self.done = total, 0

    def advance(self, size: int) -> None:
        self.done += size


class Place:
    """A schema, a store, and directories."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server = server
        self.url = server.url
        self.schema = fresh_schema()
        self.objects = f"file://{directory}/objects"
        self.directory = directory

    def config(self, data_dir: str, **settings: Any) -> BrokerConfig:
        listeners = ("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0")
        return BrokerConfig(data_dir=str(self.directory / data_dir), **{"listeners": listeners, **SMALL, **settings})

    def durable(self, data_dir: str = "cache", **settings: Any) -> BrokerConfig:
        return self.config(data_dir, catalogue=self.url, catalogue_schema=self.schema, objects=self.objects, **settings)

    def move(self, data_dir: str = "data") -> Moved:
        progress = Silent()
        moved = into_database(self.durable(), str(self.directory / data_dir), system_runtime(), progress)
        assert progress.total == progress.done
        return moved

    def move_back(self, data_dir: str = "back") -> Moved:
        progress = Silent()
        moved = into_directory(self.durable(), str(self.directory / data_dir), system_runtime(), progress)
        assert progress.total == progress.done
        return moved

    def in_database(self) -> Contents:
        catalogue = PostgresCatalogue(Address.parse(self.url, self.schema))
        try:
            return Contents.of(catalogue)
        finally:
            catalogue.close()

    def in_directory(self, data_dir: str) -> Contents:
        catalogue = SqliteCatalogue(str(self.directory / data_dir / "catalogue.sqlite"))
        try:
            return Contents.of(catalogue)
        finally:
            catalogue.close()

    def wait_for_uploads(self, server: BrokerServer) -> None:
        """Until all closed segments of the topic ``t`` are in the store."""
        log = server.kafka.logs.require("t", 0)
        wait_for(lambda: log.around.tier.latest_tiered(log) == log.view.bases[-1] - 1)  # type: ignore[union-attr]

    def stored(self) -> list[str]:
        return sorted(key for key, _ in open_objects(self.objects).list(""))


def start(config: BrokerConfig, running: list[BrokerServer]) -> BrokerServer:
    server = BrokerServer(config)
    server.start()
    running.append(server)
    return server


def stop(server: BrokerServer, running: list[BrokerServer]) -> None:
    running.remove(server)
    assert server.stop()


def client(server: BrokerServer, **options: Any) -> dict[str, Any]:
    fields = {name.replace("_", "."): value for name, value in options.items()}
    return {"bootstrap.servers": server.listeners["kafka"], "log_level": 0, **fields}


def produce(server: BrokerServer, topic: str, count: int, keys: int = 0) -> None:
    producer = Producer(client(server, enable_idempotence=True, linger_ms=2, batch_num_messages=20))
    for number in range(count):
        producer.produce(topic, b"%06d" % number * 5, key=b"k%d" % (number % keys) if keys else None)
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def commit(server: BrokerServer, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = Consumer(client(server, group_id=group, enable_auto_commit=False))
    consumer.commit(
        offsets=[TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()],
        asynchronous=False,
    )
    consumer.close()


def read(server: BrokerServer, topic: str, partition: int, level: str = "read_committed") -> list[tuple[Any, ...]]:
    """Offset, key, value and time of each record."""
    options = client(
        server, group_id="reader", enable_auto_commit=False, isolation_level=level, enable_partition_eof=True
    )
    consumer = Consumer({**options, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[tuple[Any, ...]] = []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for message in consumer.consume(500, 1.0):
                if message.error() is None:
                    found.append((message.offset(), message.key(), message.value(), message.timestamp()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
        raise AssertionError(f"{topic} does not end")
    finally:
        consumer.close()


def values(server: BrokerServer) -> list[bytes]:
    return [value for _, _, value, _ in read(server, "t", 0)]


def fill_one(server: BrokerServer) -> None:
    admin = AdminClient(client(server))
    admin.create_topics([NewTopic("t", 1)])["t"].result(DEADLINE_S)
    produce(server, "t", 2000)


def broker_command(*arguments: str, fails: int = 0, **environment: str) -> str:
    line = [sys.executable, "-m", "broker", *arguments]
    ended = subprocess.run(
        line, capture_output=True, check=False, timeout=3 * DEADLINE_S, env={**os.environ, **environment}
    )
    said = ended.stdout.decode() + ended.stderr.decode()
    assert ended.returncode == fails, said
    assert "Traceback" not in said, said
    return said
