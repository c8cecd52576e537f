"""The address that a client is told."""

from collections.abc import Iterator

import pytest

from broker.client import Broker
from broker.kafka.context import KafkaContext
from broker.network.service import Peer


@pytest.fixture(scope="module")
def context() -> Iterator[KafkaContext]:
    with Broker() as broker:
        yield broker.server.kafka


def peer(listener: str) -> Peer:
    return Peer("10.0.0.9", 40_000, listener, ("10.0.0.1", 9092))


def test_client_is_told_its_listeners_endpoint(context: KafkaContext) -> None:
    assert context.advertised(peer("kafka")) == ("127.0.0.1", context.ports["kafka"])


@pytest.mark.parametrize("wildcard", ["", "0.0.0.0", "::"])
def test_wildcard_listener_tells_the_reached_address(
    context: KafkaContext, wildcard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(context.endpoints, "everywhere", (wildcard, 19092))
    assert context.advertised(peer("everywhere")) == ("10.0.0.1", 19092)
