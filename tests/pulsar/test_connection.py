from typing import Any

import pytest

from broker.pulsar import connection as module
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.refusals import ServiceNotReady, TooManyRequests
from protocol.errors import ProtocolError
from tests.pulsar.subscriptions.stage import Link, Outbox


class Consumer:
    def disconnected(self) -> None: ...

    def writable(self) -> None: ...


class Producer:
    def __init__(self, id: int) -> None:
        self.id = id
        self.ready = True


def state() -> Any:
    return PulsarConnection(Link(), Outbox())  # type: ignore[arg-type]


def test_closed_connection_accepts_nothing() -> None:
    one, consumer = state(), Consumer()
    one.add_consumer(1, consumer)
    assert ([], [consumer]) == one.close()
    assert ([], []) == one.close()
    with pytest.raises(ServiceNotReady):
        one.add_consumer(2, consumer)
    with pytest.raises(ServiceNotReady):
        one.add_producer(Producer(1))


def test_producers_and_consumers_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ATTACHED", 2)
    one = state()
    one.add_consumer(1, Consumer())
    one.add_producer(Producer(1))
    with pytest.raises(TooManyRequests):
        one.add_producer(Producer(2))


def test_removal_spares_successor_with_same_number() -> None:
    one, first, second = state(), Producer(1), Producer(1)
    one.add_producer(first)
    one.add_producer(second)
    one.remove_producer(first)
    assert {1: second} == one.producers


def test_sends_of_recently_closed_producer_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 2)
    one = state()
    for number in range(3):
        producer = Producer(number)
        one.add_producer(producer)
        one.check_was_producer(number)
        one.remove_producer(producer)
    one.check_was_producer(2)
    for number in (0, 7):
        with pytest.raises(ProtocolError):
            one.check_was_producer(number)


def test_send_of_waiting_producer_is_a_protocol_error() -> None:
    one, producer = state(), Producer(1)
    producer.ready = False
    one.add_producer(producer)
    with pytest.raises(ProtocolError):
        one.check_was_producer(1)


def test_excess_unanswered_sends_pause_until_half_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_OWED", 10)
    one, done = state(), []
    one.owe(10)
    one.park(lambda: done.append("at once"))
    one.owe(1)
    one.park(lambda: done.append("later"))
    one.paid(5)
    assert ["at once"] == done
    one.paid(1)
    assert ["at once", "later"] == done
    one.paid(5)
    assert (0, 2) == (one.owed, len(done))


def test_cpp_clients_are_recognised_by_version() -> None:
    one = state()
    one.client_version = "Pulsar-CPP-v4.2.0"
    assert one.is_cpp
    one.client_version = "Pulsar-Java-4.0"
    assert not one.is_cpp
