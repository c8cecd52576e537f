"""flush.messages has an append fsynced before it is answered, on the thread that also has others' fsyncs done."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.client import Broker
from tests.bench.wire import Wire, batch, produce, produce_frame

CLIENTS, REQUESTS = 4, 50


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "settings",
    [{"network_threads": 1, "log_flush_interval_messages": 3}, {"log_flush_interval_messages": 50}, {}],
    ids=["one processor", "three processors", "not set"],
)
def test_producers_are_answered_with_any_acks(settings: dict[str, Any]) -> None:
    with Broker(**settings) as broker:
        address = broker.bootstrap_servers
        admin = Wire(address)
        for name in ("a", "b"):
            admin.create_topic(name)

        def send(number: int) -> int:
            wire = Wire(address)
            topic = "ab"[number % 2]
            frame = produce_frame(topic, batch(1, 100), -1 if number < CLIENTS else 1)
            offsets = produce(wire, frame, topic, REQUESTS, 1 + number % 3)
            wire.close()
            return len(set(offsets))

        with ThreadPoolExecutor(2 * CLIENTS) as pool:
            assert list(pool.map(send, range(2 * CLIENTS))) == [REQUESTS] * (2 * CLIENTS)
        admin.close()
