"""Topics whose messages are not kept, with the real client."""

import re
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, RegexSubscriptionMode

from tests.compat.pulsar.helpers import Admin, is_silent, numbered, receive, send, send_batch, share_out, texts
from tests.compat.served import NODES
from tests.waiting import wait_for

Connect = Callable[..., pulsar.Client]


@pytest.fixture
def topic(name: str) -> str:
    return f"non-persistent://public/default/{name}"


def path(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


def wait_for_permits(rest: Admin, topic: str, count: int) -> None:
    """Until so many consumers may be sent messages: what another connection has sent before is dropped."""

    def permitted() -> int:
        _, stats = rest.call("GET", f"{path(topic)}/stats")
        return sum(each["availablePermits"] > 0 for of in stats["subscriptions"].values() for each in of["consumers"])

    wait_for(lambda: permitted() == count)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover])
def test_present_consumer_gets_messages_in_order(client: pulsar.Client, topic: str, kind: Any) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    ids = send(client.create_producer(topic), 10)
    messages = receive(consumer, 10)
    assert numbered(10) == texts(messages)
    assert [str(message_id) for message_id in ids] == [str(message.message_id()) for message in messages]
    for message in messages:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert is_silent(consumer)


def test_a_batch_comes_as_one(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=100)
    ids = send_batch(producer, numbered(20))
    messages = receive(consumer, 20)
    assert numbered(20) == texts(messages)
    assert [str(message_id) for message_id in ids] == [str(message.message_id()) for message in messages]


def test_later_consumer_gets_no_earlier_messages(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send(producer, 3)
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert is_silent(consumer)
    send(producer, 2, start=3)
    assert numbered(2, 3) == texts(receive(consumer, 2)) == texts(receive(reader, 2))


def test_each_subscription_gets_all_and_consumers_divide(connect: Connect, rest: Admin, topic: str) -> None:
    sharing = [connect().subscribe(topic, "shared", ConsumerType.Shared) for _ in range(2)]
    alone = connect().subscribe(topic, "alone")
    wait_for_permits(rest, topic, 3)
    send(connect().create_producer(topic), 100)
    assert numbered(100) == texts(receive(alone, 100))
    received = list(map(texts, share_out(sharing, 100)))
    assert sorted(numbered(100)) == sorted(received[0] + received[1])
    assert 50 == len(received[0])


def test_a_key_stays_with_its_consumer(connect: Connect, rest: Admin, topic: str) -> None:
    consumers = [connect().subscribe(topic, "sub", ConsumerType.KeyShared) for _ in range(3)]
    wait_for_permits(rest, topic, 3)
    producer = connect().create_producer(topic)
    for number in range(300):
        producer.send(str(number).encode(), partition_key=f"key {number % 30}")
    received = share_out(consumers, 300)
    keys = [{message.partition_key() for message in of} for of in received]
    assert 300 == sum(map(len, received))
    assert 30 == len(set.union(*keys)) == sum(map(len, keys))


def test_messages_without_permits_are_dropped_and_counted(connect: Connect, rest: Admin, topic: str) -> None:
    consumer = connect().subscribe(topic, "sub", receiver_queue_size=5)
    wait_for_permits(rest, topic, 1)
    send(connect().create_producer(topic), 100)
    assert numbered(5) == texts(receive(consumer, 5))
    status, stats = rest.call("GET", f"{path(topic)}/stats")
    assert 200 == status
    assert 100 == stats["msgInCounter"]
    of = stats["subscriptions"]["sub"]
    assert (5, 95) == (of["msgOutCounter"], of["msgDropCounter"])


def test_a_failover_goes_to_the_next(connect: Connect, rest: Admin, topic: str) -> None:
    clients = [connect(), connect()]
    consumers = [
        client.subscribe(topic, "sub", ConsumerType.Failover, consumer_name=n)
        for client, n in zip(clients, "ab", strict=True)
    ]
    wait_for_permits(rest, topic, 2)
    producer = connect().create_producer(topic)
    send(producer, 10)
    received = share_out(consumers, 10)
    served = 0 if received[0] else 1
    assert 10 == len(received[served])
    assert not received[1 - served]
    consumers[served].close()
    send(producer, 10)
    assert 10 == len(receive(consumers[1 - served], 10))


def test_partitions(client: pulsar.Client, rest: Admin, topic: str) -> None:
    assert 204 == rest.call("PUT", f"{path(topic)}/partitions", 3)[0]
    assert 409 == rest.call("PUT", f"{path(topic)}/partitions", 3)[0]
    assert 3 == rest.call("GET", f"{path(topic)}/partitions")[1]["partitions"]
    assert [f"{topic}-partition-{number}" for number in range(3)] == client.get_topic_partitions(topic)
    consumer = client.subscribe(topic, "sub")
    routing = pulsar.PartitionsRoutingMode.RoundRobinDistribution
    ids = send(client.create_producer(topic, message_routing_mode=routing), 30)
    assert {0, 1, 2} == {message_id.partition() for message_id in ids}
    assert sorted(numbered(30)) == sorted(texts(receive(consumer, 30)))
    assert ["sub"] == rest.call("GET", f"{path(topic)}/subscriptions")[1]
    assert 412 == rest.call("DELETE", f"{path(topic)}/partitions")[0]
    assert 204 == rest.call("DELETE", f"{path(topic)}/partitions?force=true")[0]


@pytest.mark.skipif(NODES > 1, reason="only the node of such a topic lists it, unless it has partitions")
@pytest.mark.parametrize("url", ["binary", "http"])
def test_pattern_matches_topics_of_its_domain(
    connect: Connect, web_url: str, service_url: str, name: str, url: str
) -> None:
    client = connect(web_url if url == "http" else service_url)
    topics = [f"{domain}://public/default/{name}-x" for domain in ("persistent", "non-persistent")]
    producers = [client.create_producer(topic) for topic in topics]
    modes = {
        RegexSubscriptionMode.PersistentOnly: {"p"},
        RegexSubscriptionMode.NonPersistentOnly: {"n"},
        RegexSubscriptionMode.AllTopics: {"p", "n"},
    }
    consumers = {
        mode: client.subscribe(
            re.compile(f"public/default/{name}-.*"),
            f"{url} {mode}",
            regex_subscription_mode=mode,
            pattern_auto_discovery_period=1,
        )
        for mode in modes
    }
    for producer, value in zip(producers, (b"p", b"n"), strict=True):
        producer.send(value)
    for mode, expected in modes.items():
        assert expected == set(texts(receive(consumers[mode], len(expected))))
        assert is_silent(consumers[mode])


def test_operations_that_need_a_log_are_refused(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    with pytest.raises(pulsar.NotAllowedError):
        consumer.get_last_message_id()


def test_unloading_has_clients_connect_again(client: pulsar.Client, rest: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send(producer, 1)
    assert numbered(1) == texts(receive(consumer, 1))
    assert 204 == rest.call("PUT", f"{path(topic)}/unload")[0]

    def both_are_back() -> bool:
        status, stats = rest.call("GET", f"{path(topic)}/stats")
        return bool(status == 200 and stats["publishers"] and stats["subscriptions"]["sub"]["consumers"])

    wait_for(both_are_back)
    send(producer, 1, start=7)
    assert numbered(1, 7) == texts(receive(consumer, 1))


def test_unsubscribing_and_an_exclusive_place(connect: Connect, rest: Admin, topic: str) -> None:
    consumer = connect().subscribe(topic, "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        connect().subscribe(topic, "sub")
    consumer.unsubscribe()
    assert [] == rest.call("GET", f"{path(topic)}/subscriptions")[1]


def test_kafka_does_not_see_it(client: pulsar.Client, kafka_servers: str, topic: str, name: str) -> None:
    from kafka.admin import KafkaAdminClient

    send(client.create_producer(topic), 1)
    admin = KafkaAdminClient(bootstrap_servers=kafka_servers)
    try:
        assert not [listed for listed in admin.list_topics() if name in listed]
    finally:
        admin.close()
