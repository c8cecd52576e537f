"""Clients push their metrics where somebody has subscribed to them (KIP-714), and ``/metrics`` has them."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from broker.client import Broker
from broker.metrics import names
from broker.metrics.registry import render
from tests.compat.clients import java
from tests.compat.clients.librdkafka import settings


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One of its own: the clients of other tests have nothing to push."""
    with Broker() as broker:
        yield broker


def pushed(broker: Broker, client_id: str) -> dict[str, set[str]]:
    """The names of the metrics that a client has pushed, by its instance id."""
    pushes: dict[str, set[str]] = {}
    for instance_id, client, metric, _ in broker.server.metrics.values(names.CLIENT_METRICS):
        if client == client_id:
            pushes.setdefault(instance_id, set()).add(metric)
    return pushes


def test_librdkafka_pushes_what_is_subscribed_to(broker: Broker) -> None:
    configs = broker.server.kafka.telemetry.configs
    configs.alter("all", lambda _own, _in_force: {"metrics": "org.apache.kafka.producer.", "interval.ms": "100"})
    producer = Producer(settings(broker.bootstrap_servers) | {"client.id": "a-producer"})
    metrics: set[str] = set()
    for _ in range(1000):
        producer.produce("topic", b"value")
        producer.flush()
        producer.poll(0.03)
        metrics = set().union(*pushed(broker, "a-producer").values())
        if "org.apache.kafka.producer.connection.creation.total" in metrics:
            break
    assert "org.apache.kafka.producer.connection.creation.total" in metrics
    assert 1 == len(pushed(broker, "a-producer"))
    assert all(name.startswith("org.apache.kafka.producer.") for name in metrics)
    assert b'metric="org.apache.kafka.producer.connection.creation.total"' in render(broker.server.metrics)


def test_java_s_clients_push_and_its_admin_subscribes(broker: Broker) -> None:
    producer_id, consumer_id = java.run(java.jars_or_skip(), "ClientMetrics", broker.bootstrap_servers, "java")
    # Both push a last time when they are closed.
    (of_producer,), (of_consumer,) = pushed(broker, "java-producer").items(), pushed(broker, "java-consumer").items()
    assert (of_producer[0], of_consumer[0]) == (producer_id, consumer_id)
    assert "org.apache.kafka.producer.record.send.total" in of_producer[1]
    assert "org.apache.kafka.consumer.fetch.manager.records.consumed.total" in of_consumer[1]
