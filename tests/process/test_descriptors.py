"""More clients than descriptors: what is served goes on being served, and whoever comes after them is served at once."""

import errno
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.kafka.api_keys import ApiKey
from tests.faults.raw import fetch, produce
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import BrokerProcess

DESCRIPTORS = 256
CLIENTS = 1000
PARTITIONS = 100


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    limit = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"]
    with BrokerProcess(tmp_path, prefix=limit) as broker:
        yield broker


def write(connection: KafkaConnection, partition: int, value: bytes) -> None:
    connection.send(produce("topic", value, partition=partition, acks=-1))
    (error,) = struct.unpack_from(">h", connection.frame(), 4 + 4 + 4 + 2 + len("topic") + 4 + 4)
    assert error == 0


def create(connection: KafkaConnection) -> None:
    topics = [{"name": "topic", "num_partitions": PARTITIONS, "replication_factor": 1}]
    reply = connection.ask(ApiKey.CREATE_TOPICS, 2, topics=topics, timeout=30_000)
    assert [each.error_code for each in reply.topics] == [0]


def crowd(broker: BrokerProcess) -> list[socket.socket]:
    """As many connections as there is room for in the broker and in its backlog, and more."""
    host, port = broker.address.split(":")
    clients = []
    for _ in range(CLIENTS):
        client = socket.socket()
        client.setblocking(False)
        assert client.connect_ex((host, int(port))) in (0, errno.EINPROGRESS)
        clients.append(client)
    time.sleep(1)  # so that the broker has accepted all that it will
    return clients


def test_partitions_work_with_more_clients_than_descriptors(broker: BrokerProcess) -> None:
    with KafkaConnection(broker.address) as served:
        create(served)
        clients = crowd(broker)
        for partition in range(PARTITIONS):
            write(served, partition, b"first")
        for partition in range(PARTITIONS):
            write(served, partition, b"second")
        served.send(fetch("topic"))
        assert b"second" in served.frame()
        for client in clients:
            client.close()
        with KafkaConnection(broker.address) as late:
            for partition in range(PARTITIONS):
                write(late, partition, b"third")
    assert broker.stop() == 0
    assert broker.errors == []
    broker.start()
    with KafkaConnection(broker.address) as after:
        after.send(fetch("topic"))
        assert b"third" in after.frame()


def test_new_client_is_served_after_crowd_left(broker: BrokerProcess) -> None:
    for leave in ("close", "reset"):
        clients = crowd(broker)
        for client in clients:
            if leave == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        with KafkaConnection(broker.address) as late:
            assert not late.ask(ApiKey.API_VERSIONS, 0).error_code
    assert broker.errors == []
