"""Quotas with real clients: each of them sees its throttle times, and gets everything all the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from broker.client import Broker
from broker.security.client_quotas import DEFAULT, Entity, Kind

TOPIC = "t"
RECORDS, SIZE = 20, 5_000
# Bytes a second: all records take about 3 s, which is more than a busy machine needs for them.
RATE = 30_000.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        quotas = broker.server.kafka.quotas
        quotas.alter([(Entity("ANONYMOUS", DEFAULT), kind, RATE) for kind in (Kind.PRODUCE, Kind.FETCH)])
        broker.server.kafka.logs.create_topic("filled", 1, {})
        quotas.alter([(Entity("ANONYMOUS", "unlimited"), kind, 1e12) for kind in (Kind.PRODUCE, Kind.FETCH)])
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "unlimited"})
        for number in range(RECORDS):
            producer.produce("filled", bytes([number]) * SIZE)
            producer.flush()
        yield broker


def test_librdkafka_is_told_its_throttle_time(broker: Broker) -> None:
    throttles: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "librdkafka",
            "linger.ms": 0,
            "throttle_cb": throttles.append,
        }
    )
    delivered: list[Any] = []
    for _ in range(RECORDS):
        producer.produce("rd", b"x" * SIZE, callback=lambda error, _: delivered.append(error))
        producer.poll(0.01)
    while len(delivered) < RECORDS:
        producer.poll(0.1)
    producer.flush()
    assert delivered == [None] * RECORDS
    assert max(throttle.throttle_time for throttle in throttles) > 0


def test_a_consumer_of_librdkafka_gets_everything(broker: Broker) -> None:
    throttles: list[Any] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "rd-consumer",
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "throttle_cb": throttles.append,
        }
    )
    consumer.subscribe(["filled"])
    values = []
    while len(values) < RECORDS:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value()[:1])
    consumer.close()
    assert values == [bytes([number]) for number in range(RECORDS)]
    assert max(throttle.throttle_time for throttle in throttles) > 0


def test_kafka_python_is_told_its_throttle_time(broker: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id="kafka-python", linger_ms=0)
    for _ in range(RECORDS):
        producer.send("py", b"x" * SIZE).get(60)
    metrics = producer.metrics()["producer-metrics"]
    producer.close()
    assert metrics["throttle-time-max"] > 0


def test_a_consumer_of_kafka_python_gets_everything(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    consumer = KafkaConsumer(
        "filled", bootstrap_servers=broker.bootstrap_servers, client_id="py-consumer", auto_offset_reset="earliest"
    )
    values = [next(consumer).value[:1] for _ in range(RECORDS)]
    consumer.close()
    assert values == [bytes([number]) for number in range(RECORDS)]
    assert "FetchResponse throttled by broker" in caplog.text


def test_kafka_python_admin_learns_of_partition_quota(broker: Broker) -> None:
    broker.server.kafka.quotas.alter([(Entity("ANONYMOUS", "admin"), Kind.MUTATION, 1e-3)])
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, client_id="admin")
    topics = {name: {"num_partitions": 3, "replication_factor": 1} for name in ("one", "two")}
    with pytest.raises(KafkaError, match=r"(?i)throttling.?quota.?exceeded"):
        admin.create_topics(topics)
    broker.server.kafka.throttling.end_all()
    admin.close()
    assert broker.server.kafka.logs.topic("one") is not None
    assert broker.server.kafka.logs.topic("two") is None


def test_the_statistics_of_librdkafka_have_the_throttle_times(broker: Broker) -> None:
    statistics: list[dict[str, Any]] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "statistics",
            "linger.ms": 0,
            "statistics.interval.ms": 100,
            "stats_cb": lambda text: statistics.append(json.loads(text)),
        }
    )
    for _ in range(RECORDS):
        producer.produce("stats", b"x" * SIZE)
        producer.flush()
    while not any(each["throttle"]["max"] for report in statistics for each in report["brokers"].values()):
        producer.produce("stats", b"x" * SIZE)
        producer.poll(0.2)
    producer.flush()
