"""kafka-python: a consumer goes on where it was after the broker was restarted.

pip install reactor-broker kafka-python pytest
pytest test_kafka_python.py
"""

from kafka import KafkaConsumer, KafkaProducer


def test_consumer_goes_on_after_restart(broker):
    broker.produce("orders", ["one", "two"])
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    assert next(consumer).value == b"one"
    consumer.commit()
    broker.restart()
    assert next(consumer).value == b"two"
    consumer.commit()
    assert broker.committed("billing") == {("orders", 0): 2}
    consumer.close()


def test_refused_record_is_reported(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=False)
    broker.create_topic("orders")
    with broker.faults.add("error", api="PRODUCE", topic="orders", error="INVALID_RECORD"):
        refused = producer.send("orders", b"one")
        producer.flush(30)
        assert refused.failed()
    assert producer.send("orders", b"two").get(30).offset == 0
    producer.close()
