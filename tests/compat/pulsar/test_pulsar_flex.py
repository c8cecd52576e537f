"""pulsar-flex, which shares no code with Pulsar's own clients."""

from typing import Any

import pulsar
import pytest

from tests.compat.clients.node import PulsarFlex
from tests.compat.pulsar.helpers import is_silent, numbered, receive, send, send_batch, subscribe_when_free, texts
from tests.process.broker_process import BrokerProcess

TYPES = ["EXCLUSIVE", "SHARED", "FAILOVER", "KEY_SHARED"]


@pytest.fixture
def flex(pulsar_broker: BrokerProcess, name: str) -> Any:
    client = PulsarFlex()
    missing = client.missing()
    if missing:
        pytest.skip(missing)

    def run(command: str, **arguments: Any) -> Any:
        topic = f"persistent://public/default/{name}"
        return client.run(command, address=pulsar_broker.addresses["pulsar"], topic=topic, **arguments)

    return run


@pytest.fixture
def _subscribed(client: pulsar.Client, name: str) -> None:
    """It cannot ask for what was sent before it subscribes."""
    client.subscribe(name, "flex").close()


def consume(flex: Any, count: int, kind: str = "EXCLUSIVE", *, queue: int = 500, refusals: int = 0) -> list[Any]:
    messages = flex("consume", subscription="flex", type=kind, count=count, queue=queue, refusals=refusals)
    assert isinstance(messages, list)
    return messages


@pytest.mark.parametrize("mode", ["SHARED", "EXCLUSIVE"])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_its_messages_reach_other_clients(
    client: pulsar.Client, flex: Any, name: str, batched: bool, mode: str
) -> None:
    consumer = client.subscribe(name, "sub")
    assert 20 == flex("produce", values=numbered(20), batched=batched, mode=mode)
    messages = receive(consumer, 20)
    assert numbered(20) == texts(messages)
    assert {"from": "flex"} == messages[0].properties()
    assert is_silent(consumer)


@pytest.mark.usefixtures("_subscribed")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_others_messages_reach_it(client: pulsar.Client, flex: Any, name: str, kind: str, batched: bool) -> None:
    producer = client.create_producer(name, batching_enabled=batched, batching_max_publish_delay_ms=1_000)
    (send_batch if batched else lambda to, values: send(to, len(values)))(producer, numbered(30))
    messages = consume(flex, 30, kind)
    assert numbered(30) == [message["value"] for message in messages]
    # All of it is acknowledged.
    assert is_silent(subscribe_when_free(client, name, "flex"))


@pytest.mark.usefixtures("_subscribed")
def test_a_queue_smaller_than_what_there_is(client: pulsar.Client, flex: Any, name: str) -> None:
    send(client.create_producer(name), 100)
    assert numbered(100) == [message["value"] for message in consume(flex, 100, queue=7)]


@pytest.mark.usefixtures("_subscribed")
def test_messages_it_refuses_are_redelivered(client: pulsar.Client, flex: Any, name: str) -> None:
    send(client.create_producer(name), 1)
    assert [0, 1, 2] == [message["redeliveryCount"] for message in consume(flex, 1, "SHARED", refusals=2)]
