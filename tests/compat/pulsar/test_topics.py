"""Topics: partitions, patterns, namespaces, names, lookup."""

import re
from collections.abc import Callable

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, PartitionsRoutingMode

from tests.compat.pulsar.helpers import Admin, acknowledge, is_silent, numbered, receive, send, texts
from tests.waiting import wait_for

Connect = Callable[..., pulsar.Client]


def test_the_partitions_of_a_topic(client: pulsar.Client, rest: Admin, name: str) -> None:
    topic = rest.partitions(name, 3)
    assert [f"{topic}-partition-{number}" for number in range(3)] == client.get_topic_partitions(topic)
    plain = f"persistent://public/default/{name}-plain"
    assert [plain] == client.get_topic_partitions(plain)


def test_messages_of_partitions_come_to_one_consumer(client: pulsar.Client, rest: Admin, name: str) -> None:
    topic = rest.partitions(name, 3)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, message_routing_mode=PartitionsRoutingMode.RoundRobinDistribution)
    ids = send(producer, 30)
    assert {0, 1, 2} == {message_id.partition() for message_id in ids}
    messages = receive(consumer, 30)
    assert sorted(numbered(30)) == sorted(texts(messages))
    received = sorted(message.message_id().serialize() for message in messages)
    assert sorted(message_id.serialize() for message_id in ids) == received
    acknowledge(consumer, messages)
    assert is_silent(consumer)


def test_a_partition_is_a_topic_too(client: pulsar.Client, rest: Admin, name: str) -> None:
    topic = rest.partitions(name, 2)
    consumer = client.subscribe(f"{topic}-partition-1", "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "sub")
    client.create_producer(f"{topic}-partition-1").send(b"value")
    assert 1 == receive(consumer, 1)[0].message_id().partition()


def test_a_key_stays_in_its_partition(client: pulsar.Client, rest: Admin, name: str) -> None:
    producer = client.create_producer(rest.partitions(name, 4))
    where = {key: {producer.send(b"v", partition_key=key).partition() for _ in range(3)} for key in "abcdefgh"}
    assert all(len(partitions) == 1 for partitions in where.values())


def test_one_partition_has_two_names(client: pulsar.Client, rest: Admin, name: str) -> None:
    topic = rest.partitions(name, 1)
    consumers = [client.subscribe(topic, "a"), client.subscribe(f"{topic}-partition-0", "b")]
    send(client.create_producer(topic), 5)
    send(client.create_producer(f"{topic}-partition-0"), 5, start=5)
    for consumer in consumers:
        assert numbered(10) == texts(receive(consumer, 10))


def test_partitions_are_added(connect: Connect, rest: Admin, name: str) -> None:
    topic = rest.partitions(name, 2)
    rest.post(f"/admin/v2/persistent/public/default/{name}/partitions", 5)
    client = connect()
    assert 5 == len(client.get_topic_partitions(topic))
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    assert {0, 1, 2, 3, 4} == {message_id.partition() for message_id in send(producer, 20)}
    assert 20 == len(receive(consumer, 20))
    status, _ = rest.call("POST", f"/admin/v2/persistent/public/default/{name}/partitions", 3)
    assert status >= 400


def test_topics_of_several_namespaces(client: pulsar.Client, rest: Admin, name: str) -> None:
    topics = [f"persistent://public/default/{name}", rest.partitions(name, 2, "public/other")]
    consumer = client.subscribe(topics, "sub", ConsumerType.Shared)
    for topic in topics:
        send(client.create_producer(topic), 10)
    assert sorted(2 * numbered(10)) == sorted(texts(receive(consumer, 20)))
    assert is_silent(consumer)


def test_topics_whose_names_match(client: pulsar.Client, rest: Admin, name: str) -> None:
    rest.partitions(f"{name}-a", 2)
    for suffix in "ab":
        send(client.create_producer(f"{name}-{suffix}"), 5)
    client.create_producer(f"other-{name}").send(b"no")
    consumer = client.subscribe(
        re.compile(f"persistent://public/default/{name}-.*"),
        "sub",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
    )
    acknowledge(consumer, receive(consumer, 10))
    assert is_silent(consumer)


@pytest.mark.parametrize("url", ["service_url", "web_url"])
def test_lookup_over_both_protocols(connect: Connect, request: pytest.FixtureRequest, name: str, url: str) -> None:
    client = connect(request.getfixturevalue(url))
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    send(client.create_producer(name), 3)
    assert numbered(3) == texts(receive(consumer, 3))
    assert [f"persistent://public/default/{name}"] == client.get_topic_partitions(name)


def test_patterns_over_http(connect: Connect, web_url: str, name: str) -> None:
    client = connect(web_url)
    send(client.create_producer(f"{name}-a"), 3)
    consumer = client.subscribe(
        re.compile(f"public/default/{name}-.*"), "sub", initial_position=InitialPosition.Earliest
    )
    assert numbered(3) == texts(receive(consumer, 3))


def test_a_listener_that_there_is_not(connect: Connect, name: str) -> None:
    client = connect(listener_name="elsewhere", operation_timeout_seconds=5)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(name)


@pytest.mark.parametrize("topic", ["nobody/default/x", "public/nowhere/x"])
def test_a_namespace_that_there_is_not(connect: Connect, topic: str) -> None:
    client = connect(operation_timeout_seconds=5)
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"persistent://{topic}")
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe(f"persistent://{topic}", "sub")


@pytest.mark.parametrize("strange", ["topic@%*)(&!%$#@#$><?", "::,::x", "ünï", "a b", "..", "x" * 150, "%41"])
def test_names_that_kafka_would_not_allow(client: pulsar.Client, name: str, strange: str) -> None:
    topic = f"persistent://public/default/{strange}{name}"
    consumer = client.subscribe(topic, f"weird-{strange}")
    send(client.create_producer(topic), 3)
    messages = receive(consumer, 3)
    assert numbered(3) == texts(messages)
    assert {topic} == {message.topic_name() for message in messages}
    consumer.close()
    consumer = client.subscribe(topic, f"weird-{strange}")
    consumer.unsubscribe()


def test_ambiguous_names_are_distinguished(client: pulsar.Client, name: str) -> None:
    topics = [
        f"persistent://public/default/{name}",
        f"persistent://public/other/{name}",
        f"persistent://public/default/public.other.{name}",
        f"persistent://public/default/other.{name}",
        f"persistent://public/default/{name}.",
    ]
    for number, topic in enumerate(topics):
        client.create_producer(topic).send(b"%d" % number)
    for number, topic in enumerate(topics):
        consumer = client.subscribe(topic, "sub", initial_position=InitialPosition.Earliest)
        assert [str(number)] == texts(receive(consumer, 1))
        assert is_silent(consumer, 50)


def test_an_unloaded_topic_goes_on(connect: Connect, rest: Admin, name: str) -> None:
    consumer = connect().subscribe(name, "sub", ConsumerType.Shared)
    producer = connect().create_producer(name)
    send(producer, 5)
    held = receive(consumer, 5)
    acknowledge(consumer, held[:3])
    wait_for(lambda: _unacked(rest, name) == 2)
    status, answer = rest.call("PUT", f"/admin/v2/persistent/public/default/{name}/unload")
    assert status in (200, 204), answer
    send(producer, 5, start=5)
    assert numbered(7, 3) == texts(receive(consumer, 7))


def _unacked(rest: Admin, name: str) -> int:
    stats = rest.get(f"/admin/v2/persistent/public/default/{name}/stats")
    return int(stats["subscriptions"]["sub"]["unackedMessages"])


def test_a_terminated_topic_takes_no_more(connect: Connect, rest: Admin, name: str) -> None:
    producer = connect().create_producer(name, send_timeout_millis=5_000)
    send(producer, 3)
    status, answer = rest.call("POST", f"/admin/v2/persistent/public/default/{name}/terminate")
    assert status == 200, answer
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        connect().create_producer(name)
    reader = connect().create_reader(name, pulsar.MessageId.earliest)
    assert numbered(3) == texts(receive(reader, 3))
