"""What is not acknowledged comes again: after a refusal, after a time, to a dead letter topic; what is delayed comes later."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from tests.compat.pulsar.helpers import (
    PATIENCE_MS,
    Admin,
    acknowledge,
    drain,
    is_silent,
    numbered,
    receive,
    send,
    send_batch,
    texts,
    wait_for_backlog,
)

Connect = Callable[..., pulsar.Client]
SEVERAL = [ConsumerType.Shared, ConsumerType.KeyShared]
ALL = [ConsumerType.Exclusive, ConsumerType.Failover, *SEVERAL]


def is_first(message: Any) -> bool:
    """Of its entry. Entries come again as a whole, each time that one of their messages has been refused for long enough."""
    return bool(message.message_id().batch_index() <= 0)


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("kind", ALL, ids=str)
def test_refused_messages_come_again(client: pulsar.Client, name: str, kind: ConsumerType, batching: bool) -> None:
    consumer = client.subscribe(name, "sub", kind, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(name, batching_enabled=batching, batching_type=pulsar.BatchingType.KeyBased)
    send_batch(producer, numbered(10), partition_key="key")
    refused = [message for message in receive(consumer, 10) if is_first(message)]
    # Where there is one consumer, its client asks for all messages, each time that some have been refused for long enough.
    for message in refused if kind in SEVERAL else refused[:1]:
        consumer.negative_acknowledge(message)
    again = receive(consumer, 10)
    assert numbered(10) == texts(again)
    acknowledge(consumer, again)
    assert is_silent(consumer)


@pytest.mark.parametrize("kind", SEVERAL, ids=str)
def test_only_refused_messages_come_again(client: pulsar.Client, name: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(name, "sub", kind, negative_ack_redelivery_delay_ms=100)
    send(client.create_producer(name), 6)
    messages = receive(consumer, 6)
    acknowledge(consumer, messages[::2])
    for message in messages[1::2]:
        consumer.negative_acknowledge(message)
    assert sorted(numbered(6)[1::2]) == sorted(texts(receive(consumer, 3)))
    assert is_silent(consumer)


@pytest.mark.parametrize("kind", SEVERAL, ids=str)
def test_redeliveries_are_counted(client: pulsar.Client, name: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(name, "sub", kind, negative_ack_redelivery_delay_ms=50)
    client.create_producer(name).send(b"value")
    counts = []
    for _ in range(4):
        [message] = receive(consumer, 1)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    assert [0, 1, 2, 3] == counts


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_messages_not_acknowledged_in_time_are_redelivered(
    client: pulsar.Client, name: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(name, "sub", kind, unacked_messages_timeout_ms=10_000)  # the client allows no less
    send(client.create_producer(name), 5)
    messages = receive(consumer, 5)
    acknowledge(consumer, messages[:2])
    again = receive(consumer, 3)
    assert numbered(3, 2) == texts(again)
    acknowledge(consumer, again)
    assert is_silent(consumer)


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_all_unacknowledged_messages_are_redelivered(
    client: pulsar.Client, rest: Admin, name: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(name, "sub", kind)
    send(client.create_producer(name), 10)
    acknowledge(consumer, receive(consumer, 10)[:4])
    wait_for_backlog(rest, name, "sub", 6)
    for _ in range(3):
        consumer.redeliver_unacknowledged_messages()
        again = receive(consumer, 6)
        assert numbered(6, 4) == texts(again)
    acknowledge(consumer, again)
    wait_for_backlog(rest, name, "sub", 0)
    consumer.redeliver_unacknowledged_messages()
    assert is_silent(consumer)


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("kind", SEVERAL, ids=str)
def test_dead_letters(client: pulsar.Client, name: str, kind: ConsumerType, batching: bool) -> None:
    letters = f"{name}-dead"
    policy = pulsar.ConsumerDeadLetterPolicy(2, letters, "first")
    consumer = client.subscribe(name, "sub", kind, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=50)
    producer = client.create_producer(name, batching_enabled=batching, batching_type=pulsar.BatchingType.KeyBased)
    send_batch(producer, numbered(10), partition_key="key")
    for _ in range(30):
        [message] = receive(consumer, 1)
        if is_first(message):
            consumer.negative_acknowledge(message)
    # Its producer makes this subscription before the first message.
    first = client.subscribe(letters, "first")
    assert sorted(numbered(10)) == sorted(texts(receive(first, 10)))
    other = client.subscribe(letters, "other", initial_position=InitialPosition.Earliest)
    messages = receive(other, 10)
    assert {f"persistent://public/default/{name}"} == {message.properties()["REAL_TOPIC"] for message in messages}
    assert is_silent(other)
    assert is_silent(consumer)


def test_a_delayed_message_comes_when_it_is_due(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    alone = client.subscribe(name, "alone")
    producer = client.create_producer(name)
    began = time.monotonic()
    producer.send(b"later", deliver_after=timedelta(milliseconds=2500))
    producer.send(b"at once")
    assert ["at once"] == texts(receive(consumer, 1))
    assert ["later", "at once"] == texts(receive(alone, 2)), "a delay is for subscriptions with several consumers"
    [message] = receive(consumer, 1)
    assert message.data() == b"later"
    assert time.monotonic() - began >= 1.5, "at most a tick too early"


def test_delayed_messages_come_in_order_of_time(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    producer = client.create_producer(name)
    now = int(time.time() * 1000)
    for seconds in (6, 2, 4):
        producer.send(b"%d" % seconds, deliver_at=now + seconds * 1000)
    assert ["2", "4", "6"] == texts(receive(consumer, 3))


def test_delayed_messages_survive_the_last_consumer(connect: Connect, name: str) -> None:
    client = connect()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    producer = connect().create_producer(name)
    for text in numbered(5):
        producer.send(text.encode(), deliver_after=timedelta(seconds=3))
    producer.send(b"now")
    acknowledge(consumer, receive(consumer, 1))
    client.close()
    again = connect().subscribe(name, "sub", ConsumerType.Shared)
    assert numbered(5) == texts(receive(again, 5))
    assert is_silent(again)


def test_refused_messages_are_shared_out_again(connect: Connect, name: str) -> None:
    refuser = connect().subscribe(name, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    send(connect().create_producer(name), 20)
    held = receive(refuser, 20)
    worker = connect().subscribe(name, "sub", ConsumerType.Shared)
    for message in held:
        refuser.negative_acknowledge(message)
    received: list[Any] = []
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(received) < 20:
        assert time.monotonic() < deadline
        received += drain(worker, 100) + drain(refuser, 100)
    assert sorted(numbered(20)) == sorted(texts(received))
    assert {1} == {message.redelivery_count() for message in received}
