"""A topic that is deleted and made again under its old name, and clients that live through it and know topic ids.

The clients ask for metadata only when an answer makes them. Without ids a consumer would go on at the offset of the old topic,
and a producer would write to the new topic as if it were the old one.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat.clients import java
from tests.compat.clients.librdkafka import consume, settings
from tests.compat.test_java import jars  # noqa: F401  # a fixture
from tests.kafka.handlers.kafka_client import Kafka

SCENARIOS = ["admin", "consumer", "producer", "commits"]
FOREVER_MS = 600_000


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def servers(kafka: Kafka) -> str:
    return kafka.broker.bootstrap_servers


def refused(kafka: Kafka) -> set[str]:
    """The APIs that have answered UNKNOWN_TOPIC_ID."""
    return {api for api, error in kafka.inside.errors.read() if error == "UNKNOWN_TOPIC_ID"}


def test_java_s_clients_see_another_topic(jars: Path, kafka: Kafka) -> None:  # noqa: F811
    assert SCENARIOS == java.run(jars, "TopicIds", servers(kafka), "ids")
    assert "Fetch" in refused(kafka)
    assert ("Produce" in refused(kafka)) == (jars.name == "java")  # 3.9 knows no Produce by id


def make_again(kafka: Kafka, topic: str, *values: bytes) -> None:
    kafka.inside.logs.delete_topic(topic)
    kafka.inside.logs.create_topic(topic, 1)
    for value in values:
        write(Producer(settings(servers(kafka))), topic, value)


def write(producer: Producer, topic: str, value: bytes) -> None:
    errors = []
    producer.produce(topic, value, on_delivery=lambda error, _message: errors.append(error))
    producer.flush(30)
    assert [None] == errors


def test_librdkafka_s_consumer_sees_another_topic(kafka: Kafka) -> None:
    topic = kafka.topic()
    writer = Producer(settings(servers(kafka)))
    for value in (b"a", b"b", b"c"):
        write(writer, topic, value)
    consumer = Consumer(
        settings(
            servers(kafka),
            group_id="unused",
            auto_offset_reset="earliest",
            topic_metadata_refresh_interval_ms=FOREVER_MS,
            metadata_max_age_ms=FOREVER_MS,
        )
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert [b"a", b"b", b"c"] == [message.value() for message in consume(consumer, 3)]
        make_again(kafka, topic, b"d", b"e")
        assert [b"d", b"e"] == [message.value() for message in consume(consumer, 2)]
    finally:
        consumer.close()
    assert "Fetch" in refused(kafka)


def test_librdkafka_s_producer_writes_to_the_new_topic(kafka: Kafka) -> None:
    """It names topics, up to Produce 10."""
    topic = kafka.topic()
    producer = Producer(settings(servers(kafka), topic_metadata_refresh_interval_ms=FOREVER_MS))
    write(producer, topic, b"a")
    make_again(kafka, topic)
    write(producer, topic, b"b")
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    assert log.log_end_offset == 1
