"""Dispatchers with the real client: Failover, redelivery in order, delayed messages."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from broker.client.embedded import Broker


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
        client = pulsar.Client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=30)
        yield client
        client.close()


def send(client: Any, topic: str, *payloads: bytes, **more: Any) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for payload in payloads:
        producer.send(payload, **more)
    producer.close()


def received(consumer: Any, count: int) -> list[bytes]:
    return [consumer.receive(30_000).data() for _ in range(count)]


def test_next_consumer_gets_unacknowledged_messages_of_active(client: Any) -> None:
    def subscribe(name: str) -> Any:
        return client.subscribe("failover", "s", consumer_type=pulsar.ConsumerType.Failover, consumer_name=name)

    first = subscribe("a")
    send(client, "failover", b"1", b"2", b"3")
    messages = [first.receive(30_000) for _ in range(3)]
    assert [b"1", b"2", b"3"] == [message.data() for message in messages]
    first.acknowledge(messages[0])
    second = subscribe("b")
    first.close()
    assert [b"2", b"3"] == received(second, 2)
    send(client, "failover", b"4")
    assert [b"4"] == received(second, 1)


def test_what_was_not_acknowledged_is_redelivered_in_order(client: Any) -> None:
    consumer = client.subscribe("again", "s")
    send(client, "again", b"1", b"2", b"3", b"4")
    messages = [consumer.receive(30_000) for _ in range(4)]
    consumer.acknowledge_cumulative(messages[1])
    consumer.redeliver_unacknowledged_messages()
    assert [b"3", b"4"] == received(consumer, 2)


def test_an_exclusive_consumer_ignores_the_time_of_delivery(client: Any) -> None:
    consumer = client.subscribe("exclusive", "s")
    send(client, "exclusive", b"1", deliver_at=int(time.time() * 1000) + 60 * 60_000)
    assert [b"1"] == received(consumer, 1)


def test_delayed_message_arrives_when_due_without_blocking_others(client: Any) -> None:
    consumer = client.subscribe("delayed", "s", consumer_type=pulsar.ConsumerType.Shared)
    send(client, "delayed", b"much later", deliver_at=int(time.time() * 1000) + 60 * 60_000)
    send(client, "delayed", b"now")
    assert [b"now"] == received(consumer, 1)
    due_ms = int(time.time() * 1000) + 2500
    send(client, "delayed", b"later", deliver_at=due_ms)
    assert [b"later"] == received(consumer, 1)
    assert time.time() * 1000 >= due_ms - 1000  # it may be early by one tick


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_small_queue_delivers_messages_once_in_order(client: Any, kind: Any) -> None:
    consumer = client.subscribe("small", "s", consumer_type=kind, receiver_queue_size=3)
    producer = client.create_producer("small", batching_max_messages=7, block_if_queue_full=True)
    wanted = [b"%d" % number for number in range(500)]
    for payload in wanted:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    found = []
    for _ in wanted:
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        found.append(message.data())
    assert wanted == found
