"""confluent-kafka: a service that reads orders and writes a shipment for each, on bad days.

pip install reactor-broker confluent-kafka pytest
pytest test_confluent_kafka.py
"""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer


def ship(settings, orders):
    """The code under test: a shipment for each of so many orders, each order committed after its shipment was written."""
    consumer = Consumer(
        {**settings, "group.id": "shipping", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = Producer({**settings, "enable.idempotence": True, "socket.timeout.ms": 1000})
    failed = []
    consumer.subscribe(["orders"])
    for _ in range(orders):
        order = consumer.poll(30)
        if order is None or order.error():
            raise KafkaException(order and order.error())
        producer.produce(
            "shipments", order.value(), order.key(), on_delivery=lambda error, _: error and failed.append(error)
        )
        producer.flush(30)
        if failed:
            raise KafkaException(failed[0])
        consumer.commit(order, asynchronous=False)
    consumer.close()


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "reset_after", "api": "PRODUCE", "topic": "shipments"},  # written, but the answer is lost
        {"kind": "lost", "api": "PRODUCE", "topic": "shipments"},
        {"kind": "error", "api": "PRODUCE", "topic": "shipments", "error": "NOT_LEADER_OR_FOLLOWER", "count": 2},
        {"kind": "error", "api": "OFFSET_COMMIT", "group": "shipping", "error": "COORDINATOR_LOAD_IN_PROGRESS"},
        {"kind": "reset", "api": "FETCH", "topic": "orders"},
        {"kind": "delay", "api": "JOIN_GROUP", "group": "shipping", "delay_ms": 500},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault['api']}",
)
def test_each_order_is_shipped_once(broker, fault):
    orders = [f"order {number}" for number in range(3)]
    broker.produce("orders", orders)
    broker.create_topic("shipments")
    met = broker.faults.add(**fault)
    ship(broker.client_settings, len(orders))
    met.wait()  # a fault that nobody has met proves nothing
    assert [record.value.decode() for record in broker.records("shipments")] == orders
    assert broker.lag("shipping", "orders") == 0
