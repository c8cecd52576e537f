"""Stopping, made slow at the moments that matter: the system may take a thread off the processor between any two steps."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from broker.client import Broker
from broker.network.sending import ProcessorOutbox
from broker.network.service import Handover
from protocol.kafka.api_keys import ApiKey
from tests.kafka_connection import KafkaConnection, fetch_fields

WAIT_MS = 300_000


@contextmanager
def eager_reader(broker: Broker) -> Iterator[None]:
    """It asks again, and is ready to wait for minutes, the moment it is answered: as every consumer does."""
    with KafkaConnection(broker.bootstrap_servers, timeout_s=WAIT_MS / 1000) as connection:

        def fetch() -> None:
            connection.tell(ApiKey.FETCH, 4, **fetch_fields("topic", max_wait=WAIT_MS))

        def read() -> None:
            try:
                while connection.frame():
                    fetch()
            except OSError:
                pass  # the broker has gone

        thread = threading.Thread(target=read)
        fetch()
        thread.start()
        yield
        thread.join()


def parked(broker: Broker) -> bool:
    return any(
        connection.data is not None
        for processor in broker.server.sockets.processors
        for connection in processor.connections.copy()
    )


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(network_threads=1, shutdown_timeout_ms=60_000) as broker:
        broker.server.kafka.logs.create_topic("topic")
        yield broker


def test_eager_reader_does_not_delay_a_stop(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_call(outbox: ProcessorOutbox, connection: Any, work: Callable[[], None]) -> None:
        call(outbox, connection, work)
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.1)

    with eager_reader(broker):
        while not parked(broker):
            time.sleep(0.01)
        call = ProcessorOutbox.call
        monkeypatch.setattr(ProcessorOutbox, "call", slow_call)
        assert broker.server.stop(), "requests were left unfinished"


def test_fetch_parked_during_a_stop_is_answered(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.kafka.fetches import ParkedFetch
    from broker.kafka.handlers import fetch as handler

    began, go_on = threading.Event(), threading.Event()
    prepare, park = handler._prepare, ParkedFetch.park

    def on_a_handler(*arguments: Any) -> Handover:
        return Handover(None, prepare(*arguments))  # as if the records had to come from the disk

    def late_park(parked: Any) -> None:
        began.set()
        go_on.wait(60)
        park(parked)

    api = broker.server.part("kafka").apis[ApiKey.FETCH]
    monkeypatch.setitem(broker.server.part("kafka").apis, ApiKey.FETCH, attrs.evolve(api, prepare=on_a_handler))
    monkeypatch.setattr(ParkedFetch, "park", late_park)
    with eager_reader(broker):
        assert began.wait(60)
        threading.Timer(0.5, go_on.set).start()  # when everybody who waits has been answered
        assert broker.server.stop(), "requests were left unfinished"
