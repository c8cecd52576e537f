"""What the Kafka service measures: groups, transactions, errors."""

from collections.abc import Iterator, Mapping
from unittest import mock

import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from broker.client.embedded import Broker
from broker.kafka import metrics
from broker.kafka.metering import AnsweredErrors
from broker.metrics import Labels, names
from broker.metrics.metric import Metric
from broker.metrics.names import OTHER
from tests.waiting import wait_for


@pytest.fixture
def broker() -> Iterator[Broker]:
    with mock.patch.object(metrics, "_AGE_S", 0.0), mock.patch.object(metrics, "_GROUPS_MAX", 2), Broker() as broker:
        yield broker


def values(broker: Broker, metric: Metric) -> Mapping[Labels, float]:
    return broker.server.metrics.values(metric)


def produce(broker: Broker, topic: str, count: int, timestamp_ms: int) -> None:
    broker.server.kafka.logs.create_topic(topic, 2)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for _ in range(count):
        producer.send(topic, b"x", partition=0, timestamp_ms=timestamp_ms).get(30)
    producer.close()


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=group, enable_auto_commit=False)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.commit({partition: OffsetAndMetadata(offset, "", -1)})
    consumer.close(autocommit=False)


def test_group_lag_is_measured_in_records_and_time(broker: Broker) -> None:
    now_ms = broker.server.runtime.clock.time_ms()
    produce(broker, "orders", 5, now_ms - 100_000)
    commit(broker, "readers", "orders", 2)
    assert {("readers", "orders", "0"): 3} == values(broker, names.GROUP_LAG)
    assert {("readers", "orders", "0"): 2} == values(broker, names.GROUP_OFFSET)
    assert {("readers", "orders"): 3} == values(broker, names.GROUP_LAG_SUM)
    assert 100 <= values(broker, names.GROUP_LAG_SECONDS)["readers", "orders"] < 1000
    assert {("readers",): 0} == values(broker, names.GROUP_MEMBERS)
    commit(broker, "readers", "orders", 5)
    assert {("readers", "orders"): 0} == values(broker, names.GROUP_LAG_SECONDS)


def test_groups_are_counted_by_protocol_and_state(broker: Broker) -> None:
    produce(broker, "orders", 1, -1)
    commit(broker, "readers", "orders", 1)
    newer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "newer", "group.protocol": "consumer"})
    newer.subscribe(["orders"])
    while not newer.assignment():
        newer.poll(0.1)
    wait_for(lambda: ("consumer", "Stable") in values(broker, names.GROUPS_BY_PROTOCOL))
    assert {("classic", "Empty"): 1, ("consumer", "Stable"): 1} == values(broker, names.GROUPS_BY_PROTOCOL)
    assert values(broker, names.GROUPS)["Stable",] == 1
    assert values(broker, names.GROUP_MEMBERS)["newer",] == 1
    newer.close()


def test_groups_beyond_the_bound_are_summed(broker: Broker) -> None:
    produce(broker, "orders", 5, -1)
    for group in ("a", "b", "c", "d"):
        commit(broker, group, "orders", 1)
    sums = values(broker, names.GROUP_LAG_SUM)
    assert 3 == len(sums)
    assert 8 == sums[OTHER, OTHER]
    assert {labels[0] for labels in values(broker, names.GROUP_LAG)} == {labels[0] for labels in sums} - {OTHER}
    assert 3 == len(values(broker, names.GROUP_MEMBERS))


def test_an_error_counts_by_its_name() -> None:
    errors = AnsweredErrors()
    errors.add("Fetch", 3)
    errors.add_all("Fetch", {3: 2, 12345: 1})
    assert {("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"): 3, ("Fetch", "12345"): 1} == errors.read()
