"""The address that a client is told, and faults of the machine that are logged once in a while."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Broker
from broker.kafka import context as module
from broker.kafka.context import KafkaContext
from broker.network.service import Peer


@pytest.fixture(scope="module")
def context() -> Iterator[KafkaContext]:
    with Broker() as broker:
        yield broker.server.kafka


def peer(listener: str) -> Peer:
    return Peer("10.0.0.9", 40_000, listener, ("10.0.0.1", 9092))


def test_a_client_is_told_the_endpoint_of_its_listener(context: KafkaContext) -> None:
    assert context.advertised(peer("kafka")) == ("127.0.0.1", context.ports["kafka"])


@pytest.mark.parametrize("wildcard", ["", "0.0.0.0", "::"])
def test_of_a_listener_on_all_addresses_a_client_is_told_the_one_that_it_has_reached(
    context: KafkaContext, wildcard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(context.endpoints, "everywhere", (wildcard, 19092))
    assert context.advertised(peer("everywhere")) == ("10.0.0.1", 19092)


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def error(self, event: str, **values: Any) -> None:
        self.events.append((event, values["partition"]))


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_fault_is_logged_once_a_minute_for_each_partition(
    context: KafkaContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, clock = Recorder(), Clock()
    monkeypatch.setattr(module, "log", recorder)
    monkeypatch.setattr(context, "clock", clock)
    for partition in (0, 0, 1, 0):
        context.complain("append_failed", "topic", partition, OSError("full"))
    context.complain("read_failed", "topic", 0, OSError("full"))
    assert recorder.events == [("append_failed", 0), ("append_failed", 1), ("read_failed", 0)]
    clock.now += 61.0
    context.complain("append_failed", "topic", 0, OSError("full"))
    assert recorder.events[3:] == [("append_failed", 0)]


def test_the_memory_of_faults_is_bounded(context: KafkaContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "log", Recorder())
    for partition in range(3000):
        context.complain("append_failed", "topic", partition, OSError("full"))
    assert len(context._complaints) <= 1000
