"""Readers, seeking, the last message id, table views."""

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, MessageId

from tests.compat.pulsar.helpers import acknowledge, is_silent, numbered, receive, send, send_batch, texts
from tests.waiting import wait_for

Connect = Callable[..., pulsar.Client]


def test_readers_from_beginning_and_end(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    send(producer, 5)
    first, last = client.create_reader(name, MessageId.earliest), client.create_reader(name, MessageId.latest)
    send(producer, 5, start=5)
    assert numbered(10) == texts(receive(first, 10))
    assert numbered(5, 5) == texts(receive(last, 5))
    assert is_silent(first) and is_silent(last)


@pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_reader_from_each_message(client: pulsar.Client, name: str, batching: bool, inclusive: bool) -> None:
    producer = client.create_producer(name, batching_enabled=batching, batching_max_publish_delay_ms=10_000)
    ids = send_batch(producer, numbered(4)) + send_batch(producer, numbered(3, 4))
    for number, start in enumerate(ids):
        reader = client.create_reader(name, start, start_message_id_inclusive=inclusive)
        expected = numbered(7)[number if inclusive else number + 1 :]
        assert reader.has_message_available() == bool(expected)
        assert expected == texts(receive(reader, len(expected)))
        assert not reader.has_message_available()
        reader.close()


def test_whether_there_is_a_message(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    reader = client.create_reader(name, MessageId.latest)
    assert not reader.has_message_available()
    send(producer, 3)
    assert reader.has_message_available()
    receive(reader, 3)
    assert not reader.has_message_available()
    reader.seek(MessageId.latest)
    assert not reader.has_message_available()
    send(producer, 1)
    assert reader.has_message_available()
    reader.seek(MessageId.latest)
    assert not reader.has_message_available()
    reader.seek(MessageId.earliest)
    assert reader.has_message_available()


def test_the_last_message_itself(client: pulsar.Client, name: str) -> None:
    sent = send(client.create_producer(name), 2)[-1]
    assert not client.create_reader(name, MessageId.latest).has_message_available()
    reader = client.create_reader(name, MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert sent == receive(reader, 1)[0].message_id()


def test_two_readers_do_not_disturb_each_other(connect: Connect, name: str) -> None:
    send(connect().create_producer(name), 10)
    readers = [connect().create_reader(name, MessageId.earliest) for _ in range(2)]
    for reader in readers:
        assert numbered(10) == texts(receive(reader, 10))


def test_the_last_id_of_a_topic(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    empty = consumer.get_last_message_id()
    assert (empty.ledger_id(), empty.entry_id()) == (-1, -1)
    producer = client.create_producer(name)
    for number in range(3):
        sent = producer.send(b"value")
        last = consumer.get_last_message_id()
        assert (last.entry_id(), last.ledger_id()) == (number, sent.ledger_id())
    batched = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    ids = send_batch(batched, numbered(4))
    last = consumer.get_last_message_id()
    assert (last.entry_id(), last.batch_index()) == (ids[-1].entry_id(), 3)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared], ids=str)
def test_a_consumer_seeks(client: pulsar.Client, name: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(name, "sub", kind)
    producer = client.create_producer(name)
    for text in numbered(30):
        producer.send(text.encode())
        time.sleep(0.005)  # so that times of publishing differ
    messages = receive(consumer, 30)
    acknowledge(consumer, messages)
    consumer.seek(MessageId.earliest)
    assert numbered(30) == texts(receive(consumer, 30))
    consumer.seek(messages[14].message_id())
    assert numbered(15, 15) == texts(receive(consumer, 15))
    consumer.seek(messages[20].publish_timestamp())
    assert numbered(10, 20) == texts(receive(consumer, 10))
    consumer.seek(MessageId.latest)
    assert is_silent(consumer)
    producer.send(b"new")
    assert ["new"] == texts(receive(consumer, 1))


def test_a_consumer_seeks_with_the_message_itself(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub", start_message_id_inclusive=True)
    ids = send(client.create_producer(name), 10)
    acknowledge(consumer, receive(consumer, 10))
    consumer.seek(ids[4])
    assert numbered(6, 4) == texts(receive(consumer, 6))


def test_a_consumer_seeks_into_a_batch(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    ids = send_batch(producer, numbered(5)) + send_batch(producer, numbered(5, 5))
    acknowledge(consumer, receive(consumer, 10))
    for number in (2, 4, 7):
        consumer.seek(ids[number])
        assert numbered(9 - number, number + 1) == texts(receive(consumer, 9 - number))


def test_a_reader_seeks(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    ids = send(producer, 10)
    reader = client.create_reader(name, MessageId.latest)
    assert is_silent(reader)
    reader.seek(MessageId.earliest)
    assert numbered(2) == texts(receive(reader, 2))
    reader.seek(ids[5])
    assert numbered(4, 6) == texts(receive(reader, 4))


def test_a_consumer_of_partitions_seeks_by_time(client: pulsar.Client, rest: Any, name: str) -> None:
    topic = rest.partitions(name, 3)
    consumer = client.subscribe(topic, "sub")
    producers = [client.create_producer(f"{topic}-partition-{number}") for number in range(3)]
    for producer in producers:
        producer.send(b"old")
    time.sleep(0.01)
    middle = int(time.time() * 1000)
    for producer in producers:
        producer.send(b"new")
    receive(consumer, 6)
    consumer.seek(middle)
    assert 3 * ["new"] == texts(receive(consumer, 3))
    consumer.seek(0)
    assert 3 * ["new"] + 3 * ["old"] == sorted(texts(receive(consumer, 6)))


def test_consumer_closed_during_seek_can_come_back(client: pulsar.Client, name: str) -> None:
    send(client.create_producer(name), 3)
    for _ in range(10):
        consumer = client.subscribe(name, "sub")
        consumer.seek(MessageId.earliest)
        consumer.close()
    assert numbered(3) == texts(receive(client.subscribe(name, "sub"), 3))


def test_a_table_view_follows_its_topic(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    for number in range(20):
        producer.send(b"old %d" % number, partition_key=f"key {number}")
    view = client.create_table_view(name)
    assert len(view) == 20
    for number in range(10, 40):
        producer.send(b"new %d" % number, partition_key=f"key {number}")
    wait_for(lambda: len(view) == 40)
    wait_for(lambda: view.get("key 39") == b"new 39")
    assert (view.get("key 3"), view.get("key 13")) == (b"old 3", b"new 13")
    producer.send(b"", partition_key="key 3")
    wait_for(lambda: view.get("key 3") is None)
    view.close()


def test_a_table_view_of_partitions(client: pulsar.Client, rest: Any, name: str) -> None:
    topic = rest.partitions(name, 3)
    producer = client.create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"key {number}")
    view = client.create_table_view(topic)
    assert len(view) == 30
    view.close()
