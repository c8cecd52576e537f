"""What real clients see of faults that change the broker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from broker.client import Broker
from broker.errors import BrokerError, ConfigError
from broker.faults.fault import Entity, Fault
from broker.faults.faults import FaultHandle
from broker.kafka.faulting.changes import KINDS, changes_of
from tests.waiting import wait_for

_S = 60.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(
        group_initial_rebalance_delay_ms=0,
        group_consumer_min_heartbeat_interval_ms=100,
        auto_create_topics_enable=False,
    ) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.faults.clear()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions with the records a0, a1, ... in the first of them."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    broker.create_topic(name, 2)
    broker.produce(name, [f"a{number}" for number in range(4)], partition=0)
    return name


class Reader:
    """A consumer of confluent-kafka, its group's rebalances, and what it has read."""

    def __init__(self, broker: Broker, topic: str, **settings: Any) -> None:
        self.seen: list[str] = []
        self.values: list[str] = []
        self.errors: list[str] = []
        defaults = {
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
            "topic.metadata.refresh.interval.ms": 200,
            "log_level": 0,
        }
        self.consumer = Consumer({**broker.client_settings, **defaults, **settings})
        self.consumer.subscribe(
            [topic], on_assign=self._on("assigned"), on_revoke=self._on("revoked"), on_lost=self._on("lost")
        )

    def _on(self, what: str) -> Callable[[Any, Any], None]:
        return lambda _consumer, partitions: self.seen.append(f"{what} {len(partitions)}")

    def poll(self, timeout: float = 0.1) -> None:
        message = self.consumer.poll(timeout)
        if message is None:
            return
        if message.error():
            self.errors.append(message.error().name())
        else:
            self.values.append((message.value() or b"").decode())

    def until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.poll()
            return condition()

        wait_for(holds, _S)

    def read(self, values: list[str]) -> None:
        self.until(lambda: len(self.values) >= len(values))
        assert values == self.values

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()


def happen(broker: Broker, how: str, kind: str, api: str, **fields: Any) -> FaultHandle | None:
    """By hand, or with the next request of this API."""
    if how == "add":
        return broker.faults.add(kind, api=api, **fields)
    broker.faults.trigger(kind, **fields)
    return None


both_ways = pytest.mark.parametrize("how", ["add", "trigger"])


# -- topics --------------------------------------------------------------------------------------------------------------


@both_ways
def test_a_consumer_is_told_that_its_topic_is_gone(broker: Broker, topic: str, how: str) -> None:
    with Reader(broker, topic) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        happen(broker, how, "topic_deleted", "HEARTBEAT", topic=topic)
        reader.until(lambda: "UNKNOWN_TOPIC_OR_PART" in reader.errors)
        reader.until(lambda: any(each.startswith(("revoked", "lost")) for each in reader.seen))
    with pytest.raises(BrokerError, match="There is no topic"):
        broker.records(topic)


@both_ways
def test_a_consumer_reads_the_topic_that_was_made_again(broker: Broker, topic: str, how: str) -> None:
    logs = broker.server.kafka.logs
    before = logs.topic(topic)
    assert before is not None
    with Reader(broker, topic) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        handle = happen(broker, how, "topic_recreated", "HEARTBEAT", topic=topic)
        if handle is not None:
            reader.until(lambda: handle.hits == 1)
        wait_for(lambda: (logs.topic(topic) or before).topic_id != before.topic_id)
        broker.produce(topic, ["b0"], partition=0)
        reader.read(["a0", "a1", "a2", "a3", "b0"])
    after = logs.topic(topic)
    assert after is not None
    assert (before.partitions, before.configs) == (after.partitions, after.configs)


@both_ways
def test_a_consumer_gets_partitions_that_were_added(broker: Broker, topic: str, how: str) -> None:
    with Reader(broker, topic) as reader:
        reader.until(lambda: reader.seen == ["assigned 2"])
        happen(broker, how, "partitions_added", "METADATA", topic=topic, partitions=3)
        reader.until(lambda: reader.seen[-1] == "assigned 5")


@both_ways
def test_a_consumer_begins_again_where_records_are_left(broker: Broker, topic: str, how: str) -> None:
    broker.produce(topic, ["b0"], partition=1)
    with Reader(broker, topic, **{"enable.partition.eof": False}) as reader:
        happen(broker, how, "records_deleted", "JOIN_GROUP", topic=topic, partition=0, offset=3)
        reader.until(lambda: len(reader.values) == 2)
        assert {"a3", "b0"} == set(reader.values)


def test_all_records_are_deleted_without_an_offset(broker: Broker, topic: str) -> None:
    broker.produce(topic, ["b0"], partition=1)
    broker.faults.trigger("records_deleted", topic=topic, offset=2)
    assert ["a2", "a3"] == [(record.value or b"").decode() for record in broker.records(topic)]
    broker.faults.trigger("records_deleted", topic=topic)
    assert [] == broker.records(topic)


# -- what is asked for ---------------------------------------------------------------------------------------------------


def test_each_thing_of_a_request_is_changed_once() -> None:
    asked = [Entity("t", 0, "g"), Entity("t", 1, "g"), Entity("u", 0, "g")]
    things = [each.thing for each in changes_of(Fault(kind="topic_deleted"), asked)]
    assert [Entity("t"), Entity("u")] == things
    things = [each.thing for each in changes_of(Fault(kind="records_deleted", topic="t"), [Entity(group="g")])]
    assert [Entity("t")] == things
    things = [each.thing for each in changes_of(Fault(kind="records_deleted"), asked)]
    assert [Entity("t", 0), Entity("t", 1), Entity("u", 0)] == things


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_exist_is_an_error(broker: Broker, kind: str) -> None:
    thing = KINDS[kind].thing
    assert thing is not None
    with pytest.raises(BrokerError, match="missing"):
        broker.faults.trigger(kind, **{thing: "missing"})


def test_a_fault_that_cannot_happen_lets_the_request_pass(broker: Broker, topic: str) -> None:
    fault = broker.faults.add("topic_deleted", api="INIT_PRODUCER_ID", topic="missing")
    producer = Producer({**broker.client_settings, "enable.idempotence": True, "log_level": 0})
    producer.produce(topic, b"a4")
    assert 0 == producer.flush(_S)
    assert 1 == fault.hits


def test_a_thing_that_no_request_names_has_to_be_given(broker: Broker) -> None:
    with pytest.raises(ConfigError, match=r"Give topic .* no HEARTBEAT request names one"):
        broker.faults.add("topic_deleted", api="HEARTBEAT")
