"""Topics that come into being, grow, go away and come back while clients use them; and a thousand of them at once."""

import asyncio
import contextlib
from collections.abc import Callable

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from broker.client import Broker
from tests.compat.clients import aio, each_client, kafka_python, librdkafka, skip_if_missing
from tests.compat.clients.kafka_python import kafka
from tests.compat.clients.kcat import run as kcat
from tests.compat.clients.librdkafka import Librdkafka, settings
from tests.compat.clients.record import Client, Record
from tests.compat.conftest import new_name

RECORD = Record(b"key", b"value")


def delete(admin: AdminClient, *topics: str) -> None:
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.result(30)


@each_client
def test_writing_makes_the_topic(client: Client, name: str, servers: str, admin: AdminClient) -> None:
    skip_if_missing(client)
    client.produce(servers, name, 0, [RECORD], "none", -1)
    assert {0} == set(admin.list_topics(name, 30).topics[name].partitions)
    assert {0: [RECORD]} == client.consume(servers, name, 1)


def test_reading_makes_no_topic_unless_asked_to(name: str, servers: str, admin: AdminClient) -> None:
    consumer = Consumer(settings(servers, group_id=name))
    consumer.subscribe([name])
    message = consumer.poll(30)
    assert message is not None
    assert KafkaError.UNKNOWN_TOPIC_OR_PART == message.error().code()
    consumer.close()
    assert name not in admin.list_topics(timeout=30).topics


def test_a_name_that_cannot_be_is_refused(servers: str) -> None:
    producer = Producer(settings(servers))
    errors = []
    producer.produce("not a topic", b"value", on_delivery=lambda error, _message: errors.append(error.code()))
    producer.flush(30)
    assert [KafkaError.TOPIC_EXCEPTION] == errors
    python = kafka.KafkaProducer(bootstrap_servers=servers)
    with pytest.raises(ValueError, match="is illegal"):
        python.send("not a topic", b"value")
    python.close()
    # librdkafka says the one while it produces, the other once it has heard of the topic.
    said = kcat(servers, "-P", "-t", "not a topic", stdin=b"value", fails=True)
    assert b"Invalid topic" in said or b"Unknown topic" in said


def test_missing_topic_is_an_error_without_auto_creation() -> None:
    async def send(servers: str) -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, request_timeout_ms=3000) as producer:
            await producer.send_and_wait("absent", b"value")

    with Broker(auto_create_topics_enable=False) as broker:
        servers = broker.bootstrap_servers
        producer = Producer(settings(servers, topic_metadata_propagation_max_ms=500))
        errors = []
        producer.produce("absent", b"value", on_delivery=lambda error, _message: errors.append(error.code()))
        producer.flush(30)
        assert [KafkaError.UNKNOWN_TOPIC_OR_PART] == errors
        python = kafka.KafkaProducer(bootstrap_servers=servers, max_block_ms=1000)
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            python.send("absent", b"value")
        python.close()
        with pytest.raises(aiokafka.errors.UnknownTopicOrPartitionError):
            asyncio.run(send(servers))
        assert [] == broker.server.kafka.logs.topics()


def test_producer_and_consumer_see_added_partitions(topic: str, servers: str, admin: AdminClient) -> None:
    often = {"topic_metadata_refresh_interval_ms": 100}
    producer = Producer(settings(servers, **often))
    consumer = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest", **often))
    consumer.subscribe([topic])
    producer.produce(topic, b"0", partition=0)
    assert [b"0"] == [message.value() for message in librdkafka.consume(consumer, 1)]
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    while len(producer.list_topics(topic, 30).topics[topic].partitions) < 3:
        pass
    for partition in range(3):
        producer.produce(topic, str(partition).encode(), partition=partition)
    assert 0 == producer.flush(30)
    assert {b"0", b"1", b"2"} == {message.value() for message in librdkafka.consume(consumer, 3)}
    consumer.close()


def test_recreated_topic_is_another_topic(
    topic: str, servers: str, admin: AdminClient, make_topic: Callable[..., str]
) -> None:
    producer = Producer(settings(servers, enable_idempotence=True, topic_metadata_refresh_interval_ms=100))
    for number in range(3):
        producer.produce(topic, b"old %d" % number)
    assert 0 == producer.flush(30)
    delete(admin, topic)
    with contextlib.suppress(KafkaException):  # this producer has asked for it, and so made it
        make_topic(topic)
    # A producer that lives on may go on: its old sequence numbers are no reason to refuse it.
    errors = []
    producer.produce(topic, b"new", on_delivery=lambda error, _message: errors.append(error))
    assert 0 == producer.flush(30)
    assert [None] == errors
    assert {0: [Record(None, b"new")]} == Librdkafka().consume(servers, topic, 1)
    consumer = Consumer(settings(servers, group_id=topic))
    assert (0, 1) == consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.close()


def test_waiting_readers_continue_in_a_recreated_topic(
    topic: str, servers: str, admin: AdminClient, make_topic: Callable[..., str]
) -> None:
    # Were a fetch that waits left to its fate when the topic is deleted, these would hear of it only after five minutes.
    wait_ms, timeout_ms = 300_000, 310_000

    async def read_again() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=wait_ms,
            request_timeout_ms=timeout_ms,
        )
        async with consumer:
            assert 3 == len(await aio.consume(consumer, 3))
            recreate()
            assert [b"new"] == [record.value for record in await aio.consume(consumer, 1)]

    def recreate() -> None:
        delete(admin, topic)
        make_topic(topic)
        Librdkafka().produce(servers, topic, 0, [Record(None, b"new")], "none", -1)

    Librdkafka().produce(servers, topic, 0, [RECORD] * 3, "none", -1)
    waits = {"fetch_wait_max_ms": wait_ms, "socket_timeout_ms": 300_000}
    confluent = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest", **waits))
    confluent.assign([TopicPartition(topic, 0, 0)])
    python = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=wait_ms,
        request_timeout_ms=timeout_ms,
        connections_max_idle_ms=2 * timeout_ms,
    )
    python.assign([kafka.TopicPartition(topic, 0)])
    assert 3 == len(librdkafka.consume(confluent, 3))
    assert 3 == len(kafka_python.consume(python, 3))
    asyncio.run(read_again())
    assert [b"new"] == [record.value for record in kafka_python.consume(python, 1)]
    python.close()
    while True:  # it may mention the time without a topic first
        message = confluent.poll(30)
        assert message is not None
        if message.error() is None:
            break
    assert b"new" == message.value()
    confluent.close()


def test_a_thousand_topics(servers: str, admin: AdminClient) -> None:
    prefix = new_name("many")
    names = {f"{prefix}-{number}" for number in range(1000)}
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(60)

    producer = Producer(settings(servers))
    for name in names:
        producer.produce(name, name.encode())
    assert 0 == producer.flush(60)
    consumer = Consumer(settings(servers, group_id=prefix, auto_offset_reset="earliest"))
    consumer.subscribe([f"^{prefix}-.*"])
    received = {(message.topic(), message.value().decode()) for message in librdkafka.consume(consumer, 1000)}
    assert {(name, name) for name in names} == received
    consumer.close()

    python = kafka.KafkaConsumer(bootstrap_servers=servers)
    assert names <= python.topics()
    ends = python.end_offsets([kafka.TopicPartition(name, 0) for name in names])
    assert [1] * 1000 == list(ends.values())
    python.close()
    assert 1000 == kcat(servers, "-L").count(f'topic "{prefix}-'.encode())

    delete(admin, *names)
    assert not names & set(admin.list_topics(timeout=30).topics)


def test_kcat_says_which_topic_is_not_there(name: str, servers: str) -> None:
    with pytest.raises(AssertionError, match="Unknown topic or partition"):
        kcat(servers, "-C", "-t", name, "-e")


def test_a_partition_that_is_not_there_is_named(topic: str, servers: str) -> None:
    producer = Producer(settings(servers))
    producer.list_topics(topic, 30)
    with pytest.raises(KafkaException) as refusal:
        producer.produce(topic, b"value", partition=7)
    assert KafkaError._UNKNOWN_PARTITION == refusal.value.args[0].code()
