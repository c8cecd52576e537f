"""Topics in use, with a real broker around them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from broker.client.embedded import Broker
from broker.pulsar.refusals import NotAllowed, TopicNotFound
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.topic import IDLE_S
from broker.storage.refusals import TopicExists
from tests.pulsar.wire import Type, Wire, send_frame

Connect = Callable[..., Wire]


def registry_of(broker: Broker) -> TopicRegistry:
    return broker.server.part("pulsar").context.topics  # type: ignore[union-attr, no-any-return]


@pytest.fixture
def topics(broker: Broker) -> TopicRegistry:
    return registry_of(broker)


def test_missing_topic_is_created_on_request(broker: Broker, topics: TopicRegistry) -> None:
    name = parse_topic("t")
    with pytest.raises(TopicNotFound):
        topics.get_or_create(name, create=False)
    topic = topics.get_or_create(name)
    assert topics.get(name) is topic is topics.get_or_create(name)
    info = broker.server.kafka.logs.topic("t")
    assert info is not None
    assert (1, False) == (info.partitions, topics.is_partitioned(info))


def test_a_topic_of_another_namespace_needs_that_namespace(topics: TopicRegistry) -> None:
    topics.has_namespace = lambda namespace: namespace == "shop/eu"
    topics.get_or_create(parse_topic("persistent://shop/eu/t"))
    with pytest.raises(TopicNotFound):
        topics.get_or_create(parse_topic("persistent://shop/us/t"))


def test_single_partition_topic_stays_partitioned_after_restart(tmp_path: Path) -> None:
    for new in (True, False):
        with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
            topics = registry_of(broker)
            if new:
                topics.create_partitioned(parse_topic("one"), 1, {"key": "value"})
                topics.create(parse_topic("plain"))
            assert [1, 0] == [topics.partitions(parse_topic(name)) for name in ("one", "plain")]
            record = topics.record(parse_topic("one"))
            assert record is not None
            assert {"key": "value"} == record.properties
            assert 0 == topics.get_or_create(parse_topic("one-partition-0")).partition
            with pytest.raises(NotAllowed):
                topics.get_or_create(parse_topic("one"))
            with pytest.raises(TopicExists):
                topics.create_partitioned(parse_topic("plain"), 3)


def test_missing_partition_is_not_created(topics: TopicRegistry) -> None:
    topics.create_partitioned(parse_topic("t"), 2)
    with pytest.raises(TopicNotFound):
        topics.get_or_create(parse_topic("t-partition-2"))
    assert [2, 0, None] == [topics.partitions(parse_topic(f"t{end}")) for end in ("", "-partition-1", "-partition-2")]


def test_unpartitioned_topic_may_have_partition_like_name(broker: Broker, topics: TopicRegistry) -> None:
    topic = topics.get_or_create(parse_topic("t-partition-5"))
    assert ("t-partition-5", -1) == (topic.log.topic, topic.partition)
    assert broker.server.kafka.logs.topic("t") is None
    assert topics.get_or_create(parse_topic("t-partition-5")) is topic


def test_partition_has_kafkas_log_and_topics_ledger(broker: Broker, topics: TopicRegistry) -> None:
    broker.server.kafka.logs.create_topic("t", 3)
    found = [topics.get_or_create(parse_topic(f"t-partition-{number}")) for number in range(3)]
    assert [0, 1, 2] == [topic.log.partition for topic in found] == [topic.partition for topic in found]
    assert 1 == len({topic.ledger for topic in found})


def test_simultaneous_requests_get_the_same_topic(topics: TopicRegistry) -> None:
    barrier, found = Barrier(8), []

    def ask() -> None:
        barrier.wait(30)
        found.append(topics.get_or_create(parse_topic("t")))

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1 == len({id(topic) for topic in found})
    assert 8 == len(found)


@contextmanager
def in_a_minute(topics: TopicRegistry, seconds: float = IDLE_S + 1) -> Iterator[None]:
    """As if the time had passed, and the timer looked."""
    table = topics._topics
    clock = table._clock

    class Later:
        def monotonic(self) -> float:
            return clock.monotonic() + seconds

    table._clock = Later()  # type: ignore[assignment]
    try:
        table._sweep()
        yield
    finally:
        table._clock = clock


def test_unused_topic_is_unloaded_and_comes_back(topics: TopicRegistry, connect: Connect) -> None:
    wire = connect()
    wire.produce("used")
    idle = topics.get_or_create(parse_topic("idle"))
    gone: list[Any] = []
    topics.on_unload.append(gone.append)
    with in_a_minute(topics):
        assert ["used"] == [topic.name.local for topic in topics.loaded()]
    assert [idle] == gone
    again = topics.get_or_create(parse_topic("idle"))
    assert (idle.ledger, True, False) == (again.ledger, idle.closed, again.closed)
    wire.raw(send_frame(0))
    assert Type.SEND_RECEIPT == wire.hear()[0]


def test_kafka_topic_of_same_name_is_distinct(broker: Broker, topics: TopicRegistry) -> None:
    logs = broker.server.kafka.logs
    first = topics.get_or_create(parse_topic("t"))
    logs.delete_topic("t")
    assert topics.get(parse_topic("t")) is None
    assert topics.record(parse_topic("t")) is None
    logs.create_topic("t", 1)
    second = topics.get_or_create(parse_topic("t"))
    assert second.ledger > first.ledger
    assert second.log is not first.log


def test_all_partitions_learn_what_changes(topics: TopicRegistry) -> None:
    topics.create_partitioned(parse_topic("t"), 2)
    one, other = (topics.get_or_create(parse_topic(f"t-partition-{number}")) for number in range(2))
    topics.terminate(one, lambda error: None)
    assert other.terminated


def test_nothing_is_left_open_when_the_broker_stops(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]))
        topics = registry_of(broker)
        topic = topics.get_or_create(parse_topic("t"))
        gone: list[Any] = []
        topics.on_unload.append(gone.append)
    assert [topic] == gone
