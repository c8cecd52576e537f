"""What clients see when the broker stops, is killed, and comes back on the same port."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId

from broker.metadata.state_store import INTERVAL_S
from tests.compat.pulsar.conftest import quiet_logger
from tests.compat.pulsar.helpers import (
    Admin,
    acknowledge,
    is_silent,
    numbered,
    receive,
    send,
    send_batch,
    texts,
    wait_for_backlog,
)
from tests.process.broker_process import BrokerProcess
from tests.waiting import wait_for


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, listener="pulsar://127.0.0.1:0", more_listeners=["http://127.0.0.1:0"]) as broker:
        yield broker
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture
def own_client(own_broker: BrokerProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(f"pulsar://{own_broker.address}", logger=quiet_logger())
    yield client
    client.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_go_on_after_a_restart(own_broker: BrokerProcess, own_client: pulsar.Client, how: str) -> None:
    consumer = own_client.subscribe("t", "sub", ConsumerType.Shared)
    reader = own_client.create_reader("t", MessageId.earliest)
    producer = own_client.create_producer("t", producer_name="mine")
    send(producer, 10)
    acknowledge(consumer, receive(consumer, 10)[:5])
    receive(reader, 10)
    wait_for_backlog(Admin(f"http://{own_broker.addresses['http']}"), "t", "sub", 5)
    if how == "kill":
        time.sleep(3 * INTERVAL_S)  # without receipts, they are durable after one
    getattr(own_broker, how)()
    own_broker.start()
    send(producer, 5, start=10)
    assert set(numbered(10, 5)) == set(texts(receive(consumer, 10))), "what was acknowledged comes no more"
    assert is_silent(consumer)
    assert numbered(5, 10) == texts(receive(reader, 5))


def test_subscriptions_partitions_and_batches_survive(own_broker: BrokerProcess, own_client: pulsar.Client) -> None:
    def subscribe() -> Any:
        return own_client.subscribe("t", "sub", batch_index_ack_enabled=True)

    consumer = subscribe()
    producer = own_client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_batch(producer, numbered(6))
    acknowledge(consumer, receive(consumer, 6)[1::2])
    consumer.close()
    producer.close()
    own_broker.stop()
    own_broker.start()
    consumer = subscribe()
    assert ["message 0", "message 2", "message 4"] == texts(receive(consumer, 3))
    assert is_silent(consumer)


def test_receipts_are_kept_when_broker_is_killed(own_broker: BrokerProcess, own_client: pulsar.Client) -> None:
    receipts: list[int] = []
    stop = threading.Event()

    def produce() -> None:
        producer = own_client.create_producer("t", block_if_queue_full=True)
        number = 0

        def receipt(of: int) -> Any:
            def called(result: Any, _: Any) -> None:
                if result == pulsar.Result.Ok:
                    receipts.append(of)

            return called

        while not stop.is_set():
            producer.send_async(b"%d" % number, receipt(number))
            number += 1
        producer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    for _ in range(3):
        before = len(receipts)
        wait_for(lambda: len(receipts) > before + 200)  # noqa: B023
        own_broker.kill()
        own_broker.start()
    stop.set()
    thread.join()
    consumer = own_client.subscribe("t", "check", initial_position=InitialPosition.Earliest)
    missing = set(receipts)
    numbers: list[int] = []
    while missing:
        number = int(receive(consumer, 1)[0].data())
        numbers.append(number)
        missing.discard(number)
    firsts = list(dict.fromkeys(numbers))
    assert firsts == sorted(firsts), "in order, except for what was sent again"


def test_dropped_duplicates_are_dropped_after_a_crash_too(own_broker: BrokerProcess, own_client: pulsar.Client) -> None:
    rest = Admin(f"http://{own_broker.addresses['http']}")
    rest.post("/admin/v2/namespaces/public/default/deduplication", True)
    producer = own_client.create_producer("t", producer_name="mine")
    for sequence in range(10):
        producer.send(b"%d" % sequence, sequence_id=sequence)
    producer.close()
    own_broker.kill()
    own_broker.start()
    producer = own_client.create_producer("t", producer_name="mine")
    assert producer.last_sequence_id() == 9
    for sequence in range(5, 15):
        producer.send(b"%d" % sequence, sequence_id=sequence)
    reader = own_client.create_reader("t", MessageId.earliest)
    assert [str(number) for number in range(15)] == texts(receive(reader, 15))
    assert is_silent(reader)
