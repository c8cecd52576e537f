"""Producers: names, who may write beside whom, duplicates, quotas."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar import InitialPosition, ProducerAccessMode

from tests.compat.pulsar.helpers import Admin, is_silent, numbered, receive, send, send_batch, texts
from tests.waiting import wait_for

Connect = Callable[..., pulsar.Client]
DEDUPLICATION = "/admin/v2/namespaces/public/other/deduplication"


def test_name_is_for_one_producer_at_once(connect: Connect, name: str) -> None:
    first = connect().create_producer(name, producer_name="mine")
    connect().create_producer(name, producer_name="another")
    with pytest.raises(pulsar.ProducerBusy):
        connect().create_producer(name, producer_name="mine")
    first.close()
    connect().create_producer(name, producer_name="mine").send(b"value")


def test_producers_without_a_name_get_one_each(connect: Connect, name: str) -> None:
    client = connect()
    names = {client.create_producer(name).producer_name() for _ in range(5)}
    assert len(names) == 5


def test_an_exclusive_producer_is_alone(connect: Connect, name: str) -> None:
    first = connect().create_producer(name, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        connect().create_producer(name, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        connect().create_producer(name)
    first.send(b"value")
    first.close()
    connect().create_producer(name).send(b"value")


def test_exclusive_is_refused_where_somebody_writes(connect: Connect, name: str) -> None:
    connect().create_producer(name)
    with pytest.raises(pulsar.ProducerFenced):
        connect().create_producer(name, access_mode=ProducerAccessMode.Exclusive)


def test_a_fencing_producer_throws_the_other_out(connect: Connect, name: str) -> None:
    first = connect().create_producer(name, access_mode=ProducerAccessMode.Exclusive)
    first.send(b"first")
    second = connect().create_producer(name, access_mode=ProducerAccessMode.ExclusiveWithFencing)
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        first.send(b"too late")
    second.send(b"second")
    reader = connect().create_reader(name, pulsar.MessageId.earliest)
    assert ["first", "second"] == texts(receive(reader, 2))
    assert is_silent(reader)


def test_a_producer_waits_until_it_is_alone(connect: Connect, name: str) -> None:
    first = connect().create_producer(name, access_mode=ProducerAccessMode.Exclusive)
    waiting = connect()
    outcomes: list[Any] = []

    def wait() -> None:
        try:
            outcomes.append(waiting.create_producer(name, access_mode=ProducerAccessMode.WaitForExclusive))
        except pulsar.PulsarException as error:
            outcomes.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(2)
    assert not outcomes
    first.close()
    thread.join(30)
    outcomes[0].send(b"value")


def test_duplicates_are_dropped_where_that_is_wanted(connect: Connect, rest: Admin, name: str) -> None:
    rest.post(DEDUPLICATION, True)
    topic = f"persistent://public/other/{name}"
    consumer = connect().subscribe(topic, "sub")
    producer = connect().create_producer(topic, producer_name="mine")
    assert producer.last_sequence_id() == -1
    for sequence in (0, 1, 2, 1, 2):
        producer.send(b"%d" % sequence, sequence_id=sequence)
    assert producer.last_sequence_id() == 2
    assert ["0", "1", "2"] == texts(receive(consumer, 3))
    producer.close()
    producer = connect().create_producer(topic, producer_name="mine")
    assert producer.last_sequence_id() == 2
    for sequence in (1, 2, 3, 10):
        producer.send(b"%d" % sequence, sequence_id=sequence)
    assert ["3", "10"] == texts(receive(consumer, 2))
    assert is_silent(consumer)
    producer.close()
    rest.post(DEDUPLICATION, False)
    assert connect().create_producer(topic, producer_name="mine").last_sequence_id() == -1


def test_batches_and_chunks_are_not_taken_for_duplicates(connect: Connect, rest: Admin, name: str) -> None:
    rest.post(DEDUPLICATION, True)
    topic = f"persistent://public/other/{name}"
    reader = connect().create_reader(topic, pulsar.MessageId.earliest)
    batched = connect().create_producer(topic, producer_name="batched", batching_enabled=True)
    for start in (0, 10, 20):
        send_batch(batched, numbered(10, start))
    assert numbered(30) == texts(receive(reader, 30))
    chunked = connect().create_producer(topic, producer_name="chunked", chunking_enabled=True)
    large = bytes(12 << 20)
    for _ in range(2):
        chunked.send(large)
        assert large == receive(reader, 1)[0].data()
    rest.post(DEDUPLICATION, False)


def test_many_producers_come_and_go(connect: Connect, name: str) -> None:
    client = connect()
    for number in range(200):
        producer = client.create_producer(name)
        if number % 10 == 0:
            producer.send(b"value")
        producer.close()
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    assert 20 == len(receive(reader, 20))
    assert is_silent(reader)


def test_no_more_producers_than_allowed(connect: Connect, rest: Admin, name: str) -> None:
    namespace = f"public/few-{name}"
    rest.put(f"/admin/v2/namespaces/{namespace}", {"max_producers_per_topic": 2})
    client = connect()
    topic = f"persistent://{namespace}/x"
    first = client.create_producer(topic)
    client.create_producer(topic)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    first.close()
    client.create_producer(topic).send(b"value")


def test_a_backlog_over_its_quota(connect: Connect, rest: Admin, name: str) -> None:
    namespace = f"public/quota-{name}"
    rest.put(f"/admin/v2/namespaces/{namespace}", {})
    topic = f"persistent://{namespace}/x"
    client = connect()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(bytes(2048))
    producer.close()

    def policy(value: str) -> None:
        rest.post(f"/admin/v2/namespaces/{namespace}/backlogQuota", {"policy": value, "limitSize": 1024})

    policy("producer_request_hold")
    wait_for(lambda: _refused(client, topic) is pulsar.ProducerBlockedQuotaExceededError)
    policy("producer_exception")
    wait_for(lambda: _refused(client, topic) is pulsar.ProducerBlockedQuotaExceededException)
    policy("consumer_backlog_eviction")
    wait_for(lambda: _refused(client, topic) is None)
    consumer.close()


def _refused(client: pulsar.Client, topic: str) -> type | None:
    try:
        client.create_producer(topic).close()
    except pulsar.PulsarException as error:
        return type(error)
    return None


def test_reconnected_producer_keeps_its_name(connect: Connect, rest: Admin, name: str) -> None:
    producer = connect().create_producer(name, producer_name="mine")
    for start in range(0, 30, 10):
        send(producer, 10, start)
        rest.call("PUT", f"/admin/v2/persistent/public/default/{name}/unload")
    reader = connect().create_reader(name, pulsar.MessageId.earliest)
    assert numbered(30) == texts(receive(reader, 30))


def test_messages_in_flight_stay_in_order(connect: Connect, name: str) -> None:
    producer = connect().create_producer(name, max_pending_messages=5000, block_if_queue_full=True)
    order: list[int] = []
    for number in range(5000):
        producer.send_async(b"%d" % number, lambda _, message_id: order.append(message_id.entry_id()))
    producer.flush()
    wait_for(lambda: len(order) == 5000)
    assert list(range(5000)) == order


def test_the_time_of_publishing_is_the_clients(connect: Connect, name: str) -> None:
    consumer = connect().subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    before = int(time.time() * 1000)
    connect().create_producer(name).send(b"value")
    assert before <= receive(consumer, 1)[0].publish_timestamp() <= int(time.time() * 1000)
