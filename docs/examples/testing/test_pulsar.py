"""pulsar-client: what was not acknowledged comes again after the broker was restarted.

pip install reactor-broker pulsar-client pytest
pytest test_pulsar.py
"""

import pulsar
import pytest


@pytest.mark.broker(listeners=["kafka://127.0.0.1:0", "pulsar://127.0.0.1:0"])
def test_message_comes_again(broker):
    client = pulsar.Client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=30)
    consumer = client.subscribe("orders", "billing", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer("orders")
    for name in (b"one", b"two"):
        producer.send(name)
    assert [consumer.receive(30_000).data() for _ in range(2)] == [b"one", b"two"]
    broker.restart()
    again = [consumer.receive(30_000) for _ in range(2)]
    assert [message.data() for message in again] == [b"one", b"two"]
    consumer.acknowledge_cumulative(again[-1])
    assert [record.value for record in broker.records("orders")] == [b"one", b"two"]
    client.close()
