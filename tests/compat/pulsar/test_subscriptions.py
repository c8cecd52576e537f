"""Several consumers of one subscription: who gets what."""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, KeySharedMode

from tests.compat.pulsar.helpers import (
    acknowledge,
    drain,
    is_silent,
    numbered,
    receive,
    send,
    send_batch,
    share_out,
    texts,
)
from tests.waiting import wait_for

Connect = Callable[..., pulsar.Client]


def sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=list(ranges))


@pytest.mark.parametrize("same", [True, False], ids=["one connection", "two connections"])
def test_an_exclusive_subscription_has_one_consumer(connect: Connect, name: str, same: bool) -> None:
    client = connect()
    other = client if same else connect()
    consumer = client.subscribe(name, "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        other.subscribe(name, "sub")
    assert other.subscribe(name, "another")
    consumer.close()
    assert other.subscribe(name, "sub")


def test_another_type_is_refused_while_consumers_exist(connect: Connect, name: str) -> None:
    consumer = connect().subscribe(name, "sub", ConsumerType.Shared)
    for kind in (ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.KeyShared):
        with pytest.raises(pulsar.ConsumerBusy):
            connect().subscribe(name, "sub", kind)
    consumer.close()
    assert connect().subscribe(name, "sub", ConsumerType.Failover)


def test_shared_consumers_divide_the_messages(connect: Connect, name: str) -> None:
    consumers = [connect().subscribe(name, "sub", ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)]
    send(connect().create_producer(name), 300)
    received = list(map(texts, share_out(consumers, 300)))
    assert sorted(numbered(300)) == sorted(itertools.chain(*received))
    assert all(received), "somebody got nothing"
    assert all(is_silent(consumer) for consumer in consumers)


def test_shared_consumer_without_permits_holds_up_nobody(connect: Connect, name: str) -> None:
    slow = connect().subscribe(name, "sub", ConsumerType.Shared, receiver_queue_size=1)
    quick = connect().subscribe(name, "sub", ConsumerType.Shared)
    send(connect().create_producer(name), 100)
    [received] = share_out([quick], 99)
    received += share_out([quick, slow], 100 - len(received))[1]
    assert sorted(numbered(100)) == sorted(texts(received))


def test_leaving_shared_consumer_s_messages_go_to_others(connect: Connect, name: str) -> None:
    leaver, stayer = connect(), connect()
    first = leaver.subscribe(name, "sub", ConsumerType.Shared)
    send(connect().create_producer(name), 20)
    acknowledge(first, receive(first, 20)[:5])
    second = stayer.subscribe(name, "sub", ConsumerType.Shared)
    assert is_silent(second)
    leaver.close()
    messages = receive(second, 15)
    assert numbered(15, 5) == texts(messages)
    assert {0} == {message.redelivery_count() for message in messages}
    assert is_silent(second)


def test_failover_serves_one_and_then_the_other(connect: Connect, name: str) -> None:
    clients = {consumer: connect() for consumer in ("a", "b")}
    consumers = {
        consumer: client.subscribe(name, "sub", ConsumerType.Failover, consumer_name=consumer)
        for consumer, client in clients.items()
    }
    producer = connect().create_producer(name)
    send(producer, 10)
    messages = dict(zip(consumers, share_out([*consumers.values()], 10), strict=True))
    active = max(messages, key=lambda consumer: len(messages[consumer]))
    assert numbered(10) == texts(messages[active])
    send(producer, 5, start=10)
    received = receive(consumers[active], 5)
    acknowledge(consumers[active], received[:2])
    consumers[active].close()
    [other] = set(consumers) - {active}
    assert numbered(3, 12) == texts(receive(consumers[other], 3))
    assert is_silent(consumers[other])


def test_partitions_of_a_failover_subscription_are_divided(connect: Connect, rest: Any, name: str) -> None:
    topic = rest.partitions(name, 4)
    consumers = [
        connect().subscribe(topic, "sub", ConsumerType.Failover, consumer_name=consumer) for consumer in ("a", "b")
    ]
    client = connect()
    for partition in range(4):
        send(client.create_producer(f"{topic}-partition-{partition}"), 10)
    received = share_out(consumers, 40)
    partitions = [{message.message_id().partition() for message in of} for of in received]
    assert partitions[0] | partitions[1] == {0, 1, 2, 3}
    assert [2, 2] == [len(of) for of in partitions]


@pytest.mark.parametrize("batching", [False, True], ids=["single", "key-based batches"])
def test_a_key_goes_to_one_consumer_in_order(connect: Connect, name: str, batching: bool) -> None:
    consumers = [connect().subscribe(name, "sub", ConsumerType.KeyShared) for _ in range(3)]
    producer = connect().create_producer(
        name,
        batching_enabled=batching,
        batching_type=pulsar.BatchingType.KeyBased,
        block_if_queue_full=True,
    )
    keys = [f"key {random.randrange(50)}" for _ in range(1000)]
    for number, key in enumerate(keys):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=key)
    producer.flush()
    owners: dict[str, set[int]] = defaultdict(set)
    numbers: dict[str, list[int]] = defaultdict(list)
    received = share_out(consumers, 1000)
    for which, of in enumerate(received):
        for message in of:
            owners[message.partition_key()].add(which)
            numbers[message.partition_key()].append(int(message.data()))
    assert sum(map(len, received)) == 1000
    assert all(len(of) == 1 for of in owners.values())
    assert all(of == sorted(of) for of in numbers.values())
    assert {0, 1, 2} == set().union(*owners.values())


def test_an_ordering_key_comes_before_the_partition_key(connect: Connect, name: str) -> None:
    consumers = [connect().subscribe(name, "sub", ConsumerType.KeyShared) for _ in range(2)]
    producer = connect().create_producer(name)
    for number in range(60):
        producer.send(b"value", partition_key=f"key {number}", ordering_key="the same")
    assert sorted(map(len, share_out(consumers, 60))) == [0, 60]


def test_key_stays_with_consumer_of_unacknowledged_messages(connect: Connect, name: str) -> None:
    first = connect().subscribe(name, "sub", ConsumerType.KeyShared, consumer_name="first")
    producer = connect().create_producer(name)

    def send_round(start: int) -> None:
        for number in range(start, start + 40):
            producer.send(b"%d" % number, partition_key=f"key {number % 20}")

    send_round(0)
    held = receive(first, 40)
    second = connect().subscribe(name, "sub", ConsumerType.KeyShared, consumer_name="second")
    send_round(40)
    assert is_silent(second), "the other consumer still has messages of these keys"
    acknowledge(first, held)
    order: dict[str, list[int]] = defaultdict(list)
    owners: dict[str, set[str]] = defaultdict(set)

    def all_have_come() -> bool:
        for consumer, which in ((first, "first"), (second, "second")):
            for message in drain(consumer, 100):
                order[message.partition_key()].append(int(message.data()))
                owners[message.partition_key()].add(which)
        return sum(map(len, order.values())) >= 40

    wait_for(all_have_come)
    assert {key: sorted(of) for key, of in order.items()} == order
    assert all(len(of) == 1 for of in owners.values())
    assert {"first", "second"} == set().union(*owners.values())


def test_sticky_ranges_of_hashes(connect: Connect, name: str) -> None:
    low = connect().subscribe(name, "sub", ConsumerType.KeyShared, key_shared_policy=sticky((0, 30000)))
    with pytest.raises(pulsar.ConsumerAssignError):
        connect().subscribe(name, "sub", ConsumerType.KeyShared, key_shared_policy=sticky((20000, 40000)))
    high = connect().subscribe(name, "sub", ConsumerType.KeyShared, key_shared_policy=sticky((30001, 65535)))
    producer = connect().create_producer(name)
    for number in range(100):
        producer.send(b"%d" % number, partition_key=f"key {number}")
    received = [[int(message.data()) for message in of] for of in share_out([low, high], 100)]
    assert list(range(100)) == sorted(received[0] + received[1])
    assert all(received)


def test_keys_without_an_owner_wait_for_one(connect: Connect, name: str) -> None:
    low = connect().subscribe(name, "sub", ConsumerType.KeyShared, key_shared_policy=sticky((0, 30000)))
    producer = connect().create_producer(name)
    for number in range(50):
        producer.send(b"%d" % number, partition_key=f"key {number}")
    [received] = share_out([low], 1)
    high = connect().subscribe(name, "sub", ConsumerType.KeyShared, key_shared_policy=sticky((30001, 65535)))
    late, waited = share_out([low, high], 50 - len(received))
    assert 0 < len(waited) < 50
    assert set(range(50)) == {int(message.data()) for message in received + late + waited}


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared], ids=str)
def test_cumulative_acknowledgements_are_not_for_several_consumers(
    client: pulsar.Client, name: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(name, "sub", kind)
    client.create_producer(name).send(b"value")
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(receive(consumer, 1)[0])


def test_each_subscription_has_all_messages(connect: Connect, name: str) -> None:
    client = connect()
    consumers = [client.subscribe(name, f"sub {number}", kind) for number, kind in enumerate(4 * [ConsumerType.Shared])]
    consumers += [client.subscribe(name, f"more {number}") for number in range(4)]
    producer = client.create_producer(name, batching_enabled=True)
    send_batch(producer, numbered(100))
    for consumer in consumers:
        messages = receive(consumer, 100)
        assert numbered(100) == texts(messages)
        acknowledge(consumer, messages)
    assert all(is_silent(consumer, 50) for consumer in consumers)


def test_consumers_that_come_and_go_lose_nothing(connect: Connect, name: str) -> None:
    producer = connect().create_producer(name, batching_enabled=True, batching_max_messages=7, block_if_queue_full=True)
    for text in numbered(500):
        producer.send_async(text.encode(), lambda *_: None)
    producer.flush()
    received: list[str] = []
    for turn in range(12):
        client = connect()
        consumer = client.subscribe(
            name,
            "sub",
            ConsumerType.Shared,
            receiver_queue_size=random.choice((1, 5, 100)),
            initial_position=InitialPosition.Earliest,
        )
        for _ in range(random.randrange(60)):
            try:
                message = consumer.receive(2_000)
            except pulsar.Timeout:
                break
            consumer.acknowledge(message)
            received.append(message.data().decode())
        if turn % 2:
            consumer.close()
        client.close()
    last = connect().subscribe(name, "sub", ConsumerType.Shared)

    def all_have_come() -> bool:
        received.extend(texts(drain(last, 50)))
        return set(numbered(500)) == set(received)

    wait_for(all_have_come)
