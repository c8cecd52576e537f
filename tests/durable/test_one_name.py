"""Clients that know one name go on by themselves after a take-over, if it leads to both brokers, of which only the owner listens.

These two never go back to their bootstrap servers once they know the brokers: they come back to what is advertised.
"""

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.durable.durable_broker import durable_postgres, wait_until
from tests.ports import free_ports
from tests.process.broker_process import PATIENCE_S, BrokerProcess

NAME = "owner.invalid"
HOSTS = ("127.0.0.2", "127.0.0.3")
pytestmark = [
    pytest.mark.slow,
    # asyncio and kafka-python leave sockets whose connections were refused to the garbage collection.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """Which has the addresses of both machines."""
    resolve = socket.getaddrinfo

    def both(host: Any, *arguments: Any, **options: Any) -> list[Any]:
        hosts = HOSTS if host in (NAME, NAME.encode()) else (host,)
        return [found for each in hosts for found in resolve(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    return NAME


@pytest.fixture
def pair(tmp_path: Path, name: str) -> Iterator[tuple[BrokerProcess, BrokerProcess, str]]:
    """The owner, one that stands by, and where clients find whoever is the owner."""
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        (port,) = free_ports(1, stack)
        settings = (f"catalogue={postgres.url}", f"objects=file://{tmp_path}/objects", "standby=true")
        brokers = []
        for host in HOSTS:
            directory = tmp_path / host
            directory.mkdir()
            listener = f"kafka://{host}:{port}?advertised={name}:{port}"
            broker = BrokerProcess(directory, *settings, "allow_anonymous_listeners=true", listener=listener)
            broker.launch()
            stack.callback(broker.kill)
            brokers.append(broker)
            if host == HOSTS[0]:
                broker.wait_until_ready()
        owner, other = brokers
        wait_until(lambda: "standing_by" in other.output, "the other broker does not stand by")
        yield owner, other, f"{name}:{port}"


def test_kafka_python_goes_on(pair: tuple[BrokerProcess, BrokerProcess, str]) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    owner, other, address = pair
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    producer.send("t", b"before").get(PATIENCE_S)
    consumer = KafkaConsumer("t", bootstrap_servers=address, auto_offset_reset="earliest", group_id="g")
    read = [next(consumer).value]
    owner.kill()
    other.wait_until_ready()
    producer.send("t", b"after").get(PATIENCE_S)
    read.append(next(consumer).value)
    consumer.close()
    producer.close()
    assert [b"before", b"after"] == read


def test_aiokafka_goes_on(pair: tuple[BrokerProcess, BrokerProcess, str]) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    owner, other, address = pair

    async def scene() -> list[bytes | None]:
        producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=True)
        await producer.start()
        await producer.send_and_wait("t", b"before")
        consumer = AIOKafkaConsumer("t", bootstrap_servers=address, auto_offset_reset="earliest", group_id="g")
        await consumer.start()
        read = [(await consumer.getone()).value]
        owner.kill()
        await asyncio.to_thread(other.wait_until_ready)
        await producer.send_and_wait("t", b"after")
        read.append((await consumer.getone()).value)
        await consumer.stop()
        await producer.stop()
        return read

    assert [b"before", b"after"] == asyncio.run(asyncio.wait_for(scene(), 4 * PATIENCE_S))
    gc.collect()
