"""A broker that sends no answer and closes no connection: every call ends when its time is over.

``request.timeout.ms`` is left at half a minute: a call that hung would wait at least as long.
"""

import threading
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

import pytest

from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.connection import Limit
from broker.client.kafka.errors import KafkaClientError, RetriableError
from broker.runtime.clock import SystemClock
from protocol.kafka.records.records import build_batch
from tests.process.broker_process import BrokerProcess

CALL_MS = 300
# Less than request.timeout.ms, and more than any call within its time takes.
FOR_EVER_S = 15.0


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("broker")), "logging_level=warning") as running:
        with Cluster(config(running, 60_000)) as cluster:
            cluster.make_topics(["topic"])
        yield running


def config(process: BrokerProcess, call_ms: int = CALL_MS) -> ClientConfig:
    properties = {
        "bootstrap.servers": process.address,
        "default.api.timeout.ms": call_ms,
        "delivery.timeout.ms": call_ms,
        "fetch.max.wait.ms": 100,
    }
    return ClientConfig.from_properties(properties)


def fails_in_time(call: Callable[[], object]) -> None:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(FOR_EVER_S)
    hangs = thread.is_alive()
    assert not hangs
    assert isinstance(outcome[0], KafkaClientError), outcome


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster: cluster.topics(["topic"]),
        lambda cluster: cluster.make_topics(["topic"]),
        lambda cluster: cluster.offsets({("topic", 0): -1}),
        lambda cluster: cluster.committed("group"),
        lambda cluster: cluster.commit("group", {("topic", 0): 1}),
        lambda cluster: cluster.list_transactions(),
        lambda cluster: cluster.abort_transaction("a"),
    ],
)
def test_question_ends(process: BrokerProcess, ask: Callable[[Cluster], object], known: bool) -> None:
    """``known``: an open connection is silent from now on; else a new connection is silent from its beginning."""
    with Cluster(config(process)) as cluster:
        if known:
            ask_well(process, cluster, ask)
        with process.suspended():
            fails_in_time(lambda: ask(cluster))


def ask_well(process: BrokerProcess, cluster: Cluster, ask: Callable[[Cluster], object]) -> None:
    """Set no bound on the time."""
    cluster.routing.config, before = config(process, 60_000), cluster.config
    ask(cluster)
    cluster.routing.config = before


def batch(value: bytes = b"value") -> tuple[bytearray, int]:
    return build_batch([(None, value, [], 0)]), 1


def test_reading_ends(process: BrokerProcess) -> None:
    with Cluster(config(process, 60_000)) as cluster:
        with cluster.producer() as producer:
            producer.send("topic", 0, *batch())
            producer.flush()
        fetcher = cluster.fetcher("topic", 0, 0)
        next(fetcher)
        cluster.routing.config = config(process)
        with process.suspended():
            fails_in_time(lambda: [next(fetcher) for _ in range(3)])
        fetcher.close()


@pytest.mark.parametrize("acks", ["all", "1"])
def test_flushing_ends(process: BrokerProcess, acks: str) -> None:
    with Cluster(config(process, 60_000)) as cluster, cluster.producer(acks=acks) as producer:
        producer.send("topic", 0, *batch())
        producer.flush()
        cluster.routing.config = config(process)
        with process.suspended():
            producer.send("topic", 0, *batch())
            fails_in_time(producer.flush)
            fails_in_time(producer.flush)


def test_sending_ends(process: BrokerProcess) -> None:
    with Cluster(config(process, 60_000)) as cluster, cluster.producer() as producer:
        producer.send("topic", 0, *batch())
        producer.flush()
        cluster.routing.config = config(process)
        with process.suspended():
            fails_in_time(lambda: [producer.send("topic", 0, *batch(bytes(900_000))) for _ in range(50)])


@pytest.mark.parametrize(
    "end",
    [
        lambda producer: producer.commit(),
        lambda producer: producer.abort(),
        lambda producer: producer.commit_offsets("group", {("topic", 0): 1}),
        lambda producer: producer.hand_over(),
    ],
)
def test_transaction_ends(process: BrokerProcess, end: Callable[[object], object]) -> None:
    with Cluster(config(process, 60_000)) as cluster, cluster.producer(transactional_id="t") as producer:
        producer.begin()
        producer.send("topic", 0, *batch())
        producer.flush()
        properties = {"bootstrap.servers": process.address, "request.timeout.ms": 1000}
        properties |= {"default.api.timeout.ms": CALL_MS, "delivery.timeout.ms": CALL_MS}
        cluster.routing.config = ClientConfig.from_properties(properties)
        with process.suspended():
            producer.send("topic", 0, *batch())
            fails_in_time(lambda: end(producer))


# -- the decisions --------------------------------------------------------------------------------------------------


def test_nested_call_has_no_more_time() -> None:
    limit = Limit(SystemClock())
    with limit.until(100.0):
        with limit.until(50.0):
            assert 50.0 == limit.deadline
            with limit.until(70.0):
                assert 50.0 == limit.deadline
        assert 100.0 == limit.deadline
        with pytest.raises(ZeroDivisionError), limit.until(10.0):
            raise ZeroDivisionError
        assert 100.0 == limit.deadline
    assert inf == limit.deadline


def test_last_failure_is_that_of_the_broker(process: BrokerProcess) -> None:
    asked = []

    def refuse() -> None:
        asked.append(1)
        raise RetriableError("not yet")

    with Cluster(config(process)) as cluster, pytest.raises(RetriableError, match="not yet"):
        cluster.routing.retrying(refuse)
    assert len(asked) > 1
