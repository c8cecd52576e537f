"""Quix Streams: exactly once from topic to topic, although the answer to a commit is lost.

pip install reactor-broker quixstreams pytest
pytest test_quixstreams.py
"""

import pytest
from quixstreams import Application


@pytest.mark.parametrize("kind", ["reset", "reset_after"])
def test_each_reading_is_converted_once(broker, kind, tmp_path):
    broker.produce("celsius", ["0", "100", "37"])
    broker.create_topic("fahrenheit")
    app = Application(
        broker_address=broker.bootstrap_servers,
        consumer_group="converter",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        state_dir=str(tmp_path),
    )
    readings = app.dataframe(app.topic("celsius", value_deserializer="json"))
    readings.apply(lambda degrees: degrees * 9 // 5 + 32).to_topic(app.topic("fahrenheit", value_serializer="json"))

    fault = broker.faults.add(kind, api="END_TXN")
    app.run(count=3, timeout=30)
    assert fault.hits == 1
    assert sorted(int(record.value) for record in broker.records("fahrenheit")) == [32, 98, 212]
    assert broker.committed("converter") == {("celsius", 0): 3}
