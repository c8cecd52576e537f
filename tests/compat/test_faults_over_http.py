"""A test in another language: kafkajs meets faults that its own program has added over HTTP."""

from broker.client import Broker
from tests.compat.clients import skip_if_missing
from tests.compat.clients.node import Kafkajs


def test_kafkajs_meets_the_faults_that_its_program_adds() -> None:
    client = Kafkajs()
    skip_if_missing(client)
    with Broker(listeners=["kafka://127.0.0.1:0", "http://127.0.0.1:0"], faults_enabled=True) as broker:
        broker.create_topic("orders")
        url = f"http://{broker.address('http')}"
        found = client.run("faults", servers=broker.bootstrap_servers, url=url, topic="orders")
        assert found.pop("refused").startswith("400: ")
        # It repeats what is worth repeating, and reports the rest.
        assert found == {
            "error": "TOPIC_AUTHORIZATION_FAILED",
            "baseOffset": "0",
            "hits": 2,
            "seen": ["kafkajs"],
            "left": [],
        }
        assert [record.value for record in broker.records("orders")] == [b"one book"]
        assert broker.faults.list() == []
