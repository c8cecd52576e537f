"""What real clients see of faults that change the broker."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import CommitFailedError, ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, ShareConsumer, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import CommitFailedError as PythonCommitFailedError

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
        group_consumer_heartbeat_interval_ms=100,
        group_share_min_heartbeat_interval_ms=100,
        group_share_heartbeat_interval_ms=100,
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
        given = {**broker.client_settings, **defaults, **settings}
        self.consumer = Consumer({name: value for name, value in given.items() if value is not None})
        self.consumer.subscribe(
            [topic], on_assign=self._on("assigned"), on_revoke=self._on("revoked"), on_lost=self._on("lost")
        )

    def _on(self, what: str) -> Callable[[Any, Any], None]:
        def note(_consumer: Any, partitions: list[Any]) -> None:
            if partitions:
                self.seen.append(f"{what} {len(partitions)}")

        return note

    def poll(self, timeout: float = 0.1) -> None:
        message = self.consumer.poll(timeout)
        if message is None:
            return
        if message.error():
            self.errors.append(message.error().name())
        else:
            self.values.append((message.value() or b"").decode())

    def until(self, condition: Callable[[], Any]) -> None:
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
    with Reader(broker, topic) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        fault = happen(broker, how, "records_deleted", "OFFSET_COMMIT", topic=topic, partition=0, offset=3)
        reader.consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert fault is None or 1 == fault.hits
    assert {(topic, 0): 1} == broker.committed(topic)
    with Reader(broker, topic) as reader:
        reader.read(["a3"])


def test_all_records_are_deleted_without_an_offset(broker: Broker, topic: str) -> None:
    broker.produce(topic, ["b0"], partition=1)
    broker.faults.trigger("records_deleted", topic=topic, offset=2)
    assert ["a2", "a3"] == [(record.value or b"").decode() for record in broker.records(topic)]
    broker.faults.trigger("records_deleted", topic=topic)
    assert [] == broker.records(topic)


# -- groups --------------------------------------------------------------------------------------------------------------


protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def of(protocol: str) -> dict[str, Any]:
    """Settings of a member."""
    return {"group.protocol": "consumer", "heartbeat.interval.ms": None} if protocol == "consumer" else {}


@both_ways
@protocols
def test_a_member_takes_part_in_a_rebalance(broker: Broker, topic: str, how: str, protocol: str) -> None:
    with Reader(broker, topic, **of(protocol)) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        assert ["assigned 2"] == reader.seen
        api = "HEARTBEAT" if protocol == "classic" else "CONSUMER_GROUP_HEARTBEAT"
        happen(broker, how, "rebalance", api, group=topic)
        reader.until(lambda: reader.seen == ["assigned 2", "revoked 2", "assigned 2"])


def test_all_members_take_part_in_a_rebalance(broker: Broker, topic: str) -> None:
    with Reader(broker, topic) as one, Reader(broker, topic) as other:
        one.until(lambda: other.poll() or [one.seen[-1:], other.seen[-1:]] == [["assigned 1"]] * 2)
        before = [len(one.seen), len(other.seen)]
        broker.faults.trigger("rebalance", group=topic)
        one.until(lambda: other.poll() or [len(one.seen), len(other.seen)] == [each + 2 for each in before])
        assert [["revoked 1", "assigned 1"]] * 2 == [one.seen[-2:], other.seen[-2:]]


def test_a_member_may_commit_until_all_have_joined_again(broker: Broker, topic: str) -> None:
    with Reader(broker, topic) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        fault = broker.faults.add("rebalance", api="OFFSET_COMMIT", group=topic)
        reader.consumer.commit(asynchronous=False)
        reader.until(lambda: reader.seen == ["assigned 2", "revoked 2", "assigned 2"])
        assert 1 == fault.hits
    assert {(topic, 0): 4} == broker.committed(topic)


@both_ways
@protocols
def test_a_member_whose_session_expired_comes_back(broker: Broker, topic: str, how: str, protocol: str) -> None:
    with Reader(broker, topic, **of(protocol)) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        api = "HEARTBEAT" if protocol == "classic" else "CONSUMER_GROUP_HEARTBEAT"
        happen(broker, how, "session_expired", api, group=topic)
        reader.until(lambda: reader.seen == ["assigned 2", "lost 2", "assigned 2"])
        reader.read(["a0", "a1", "a2", "a3"] * 2)


def test_a_commit_after_the_session_is_refused(broker: Broker, topic: str) -> None:
    with Reader(broker, topic) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        broker.faults.add("session_expired", api="OFFSET_COMMIT", group=topic)
        with pytest.raises(KafkaException) as error:
            reader.consumer.commit(asynchronous=False)
        assert KafkaError.UNKNOWN_MEMBER_ID == error.value.args[0].code()
        assert {} == broker.committed(topic)


def test_only_the_member_of_the_request_is_removed(broker: Broker, topic: str) -> None:
    with Reader(broker, topic, **{"client.id": "one"}) as one, Reader(broker, topic) as other:
        one.until(lambda: other.poll() or [one.seen[-1:], other.seen[-1:]] == [["assigned 1"]] * 2)
        broker.faults.add("session_expired", api="HEARTBEAT", client_id="one")
        one.until(lambda: other.poll() or "lost 1" in one.seen)
        one.until(lambda: other.poll() or [one.seen[-1:], other.seen[-1:]] == [["assigned 1"]] * 2)
        assert "lost 1" not in other.seen
        broker.faults.trigger("session_expired", group=topic, member_id=other.consumer.memberid())
        other.until(lambda: one.poll() or "lost 1" in other.seen)
        assert 1 == one.seen.count("lost 1")


@both_ways
@protocols
def test_records_are_delivered_again(broker: Broker, topic: str, how: str, protocol: str) -> None:
    with Reader(broker, topic, **of(protocol)) as reader:
        reader.read(["a0", "a1", "a2", "a3"])
        reader.consumer.commit(asynchronous=False)
        assert {(topic, 0): 4} == broker.committed(topic)
        api = "HEARTBEAT" if protocol == "classic" else "CONSUMER_GROUP_HEARTBEAT"
        happen(broker, how, "offsets_rewound", api, group=topic, offset=2)
        reader.read(["a0", "a1", "a2", "a3", "a2", "a3"])
        assert {(topic, 0): 2} == broker.committed(topic)
        assert ["assigned 2", "lost 2", "assigned 2"] == reader.seen


def test_an_idle_group_goes_back_to_the_first_record(broker: Broker, topic: str) -> None:
    broker.produce(topic, ["b0"], partition=1)
    with Reader(broker, topic) as reader:
        reader.until(lambda: len(reader.values) == 5)
        reader.consumer.commit(asynchronous=False)
    assert {(topic, 0): 4, (topic, 1): 1} == broker.committed(topic)
    broker.faults.trigger("records_deleted", topic=topic, partition=0, offset=1)
    broker.faults.trigger("offsets_rewound", group=topic, topic=topic, partition=0)
    assert {(topic, 0): 1, (topic, 1): 1} == broker.committed(topic)
    with pytest.raises(BrokerError, match="no offset that could go back"):
        broker.faults.trigger("offsets_rewound", group=topic, partition=0)


def test_the_records_of_a_share_consumer_are_given_out_again(broker: Broker, topic: str) -> None:
    settings = {**broker.client_settings, "group.id": topic, "share.acknowledgement.mode": "explicit", "log_level": 0}
    with ShareConsumer(settings) as jobs:
        jobs.subscribe([topic])
        produced = itertools.count()
        values: list[bytes] = []

        def has_come_twice() -> bool:
            if not values:
                broker.produce(topic, [f"job {next(produced)}"])  # until the group has begun to read
            for message in jobs.poll(0.1):
                values.append(message.value())
                if len(values) == 1:
                    broker.faults.trigger("session_expired", group=topic)  # while the work is being done
                jobs.acknowledge(message)
            jobs.commit_sync(_S)
            return len(values) > len(set(values))

        wait_for(has_come_twice, "no second delivery")


# -- transactions --------------------------------------------------------------------------------------------------------


def transactional(broker: Broker, name: str) -> Producer:
    """A producer with a transaction open."""
    producer = Producer({**broker.client_settings, "transactional.id": name, "linger.ms": 0, "log_level": 0})
    producer.init_transactions(_S)
    producer.begin_transaction()
    return producer


def refused(call: Callable[..., Any], *args: Any) -> KafkaError:
    with pytest.raises(KafkaException) as error:
        call(*args)
    return error.value.args[0]


both_ends = pytest.mark.parametrize("kind", ["producer_fenced", "transaction_timed_out"])


@both_ends
@pytest.mark.parametrize("api", ["END_TXN", "PRODUCE", "ADD_OFFSETS_TO_TXN", "TXN_OFFSET_COMMIT", None])
def test_an_open_transaction_is_aborted(broker: Broker, topic: str, kind: str, api: str | None) -> None:
    producer = transactional(broker, topic)
    producer.produce(topic, b"open", partition=1)
    assert 0 == producer.flush(_S)
    if api is None:
        broker.faults.trigger(kind, transactional_id=topic)
    else:
        broker.faults.add(kind, api=api, transactional_id=topic)
    if api == "PRODUCE":
        producer.produce(topic, b"late", partition=0)
        assert KafkaError._FENCED == refused(producer.flush, _S).code()
    elif api is not None and "OFFSET" in api:
        with Reader(broker, topic) as reader:
            reader.until(lambda: reader.seen)
            offsets, group = [TopicPartition(topic, 0, 4)], reader.consumer.consumer_group_metadata()
            assert KafkaError._FENCED == refused(producer.send_offsets_to_transaction, offsets, group, _S).code()
    error = refused(producer.commit_transaction, _S)
    assert (KafkaError._FENCED, True) == (error.code(), error.fatal())
    successor = transactional(broker, topic)
    successor.produce(topic, b"committed", partition=1)
    successor.commit_transaction(_S)
    values = [record.value for record in broker.records(topic)]
    assert [b"a0", b"a1", b"a2", b"a3", b"committed"] == values
    assert {} == broker.committed(topic)


@pytest.mark.parametrize(
    ("kind", "after", "committed"),
    [
        ("rebalance", ["revoked 2", "assigned 2"], 2),
        ("session_expired", ["lost 2", "assigned 2"], 1),
        ("offsets_rewound", ["lost 2", "assigned 2"], 0),
    ],
)
def test_a_group_changes_inside_a_transaction(
    broker: Broker, topic: str, kind: str, after: list[str], committed: int
) -> None:
    """Offsets of the old generation count as long as the members have not joined again, and not after the end of a session."""
    with Reader(broker, topic) as reader:
        reader.until(lambda: reader.seen == ["assigned 2"])
        group = reader.consumer.consumer_group_metadata()
        reader.consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        producer = transactional(broker, topic)
        broker.faults.add(kind, api="ADD_OFFSETS_TO_TXN")
        offsets = [TopicPartition(topic, 0, 2)]
        if kind == "rebalance":
            producer.send_offsets_to_transaction(offsets, group, _S)
            producer.commit_transaction(_S)
        else:
            error = refused(producer.send_offsets_to_transaction, offsets, group, _S)
            assert (KafkaError.UNKNOWN_MEMBER_ID, True) == (error.code(), error.txn_requires_abort())
            producer.abort_transaction(_S)
        reader.until(lambda: reader.seen == ["assigned 2", *after])
        assert {(topic, 0): committed} == broker.committed(topic)


def test_a_producer_without_a_transaction_is_fenced(broker: Broker, topic: str) -> None:
    producer = transactional(broker, topic)
    fault = broker.faults.add("producer_fenced", api="ADD_PARTITIONS_TO_TXN", transactional_id=topic)
    producer.produce(topic, b"never")
    assert KafkaError._FENCED == refused(producer.flush, _S).code()
    assert 1 == fault.hits
    with pytest.raises(BrokerError, match="has no open transaction"):
        broker.faults.trigger("transaction_timed_out", transactional_id=topic)


def test_a_busy_transactional_id_is_tried_again(broker: Broker, topic: str) -> None:
    producer = transactional(broker, topic)
    producer.produce(topic, b"open")
    assert 0 == producer.flush(_S)
    before = broker.server.kafka.transactions.describe(topic)[1]
    fencing = [
        threading.Thread(target=broker.faults.trigger, args=["producer_fenced"], kwargs={"transactional_id": topic})
        for _ in range(5)
    ]
    for thread in fencing:
        thread.start()
    for thread in fencing:
        thread.join(_S)
    after = broker.server.kafka.transactions.describe(topic)[1]
    assert before is not None
    assert after is not None
    assert 5 == after.epoch - before.epoch


@both_ends
def test_aiokafka_is_told(broker: Broker, topic: str, kind: str) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"open")
            broker.faults.add(kind, api="END_TXN", transactional_id=topic)
            with pytest.raises(ProducerFenced):
                await producer.commit_transaction()

    asyncio.run(run())
    assert 4 == len(broker.records(topic))


# -- other clients -------------------------------------------------------------------------------------------------------


def test_aiokafka_sees_what_happens_to_its_group(broker: Broker, topic: str) -> None:
    async def run() -> None:
        calls: list[str] = []

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None:
                calls.append(f"revoked {len(revoked)}")

            async def on_partitions_assigned(self, assigned: Any) -> None:
                calls.append(f"assigned {len(assigned)}")

        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )
        consumer.subscribe([topic], listener=Listener())
        async with consumer:
            read = [(await asyncio.wait_for(consumer.getone(), _S)).value for _ in range(4)]
            await consumer.commit({AioPartition(topic, 0): 3})
            calls.clear()
            await asyncio.to_thread(broker.faults.trigger, "rebalance", group=topic)
            read += [(await asyncio.wait_for(consumer.getone(), _S)).value]
            assert ["revoked 2", "assigned 2"] == calls
            broker.faults.add("offsets_rewound", api="HEARTBEAT", group=topic, offset=1)
            read += [(await asyncio.wait_for(consumer.getone(), _S)).value for _ in range(3)]
            assert [b"a0", b"a1", b"a2", b"a3", b"a3", b"a1", b"a2", b"a3"] == read
            broker.faults.add("session_expired", api="OFFSET_COMMIT", group=topic)
            with pytest.raises(CommitFailedError):
                await consumer.commit({AioPartition(topic, 0): 4})

    asyncio.run(run())


def test_kafka_python_sees_what_happens_to_its_group(broker: Broker, topic: str) -> None:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        consumer_timeout_ms=_S * 1000,
    )
    try:
        read = [next(consumer).value for _ in range(4)]
        consumer.commit()
        broker.faults.trigger("offsets_rewound", group=topic, offset=2)
        read += [next(consumer).value for _ in range(2)]
        assert [b"a0", b"a1", b"a2", b"a3", b"a2", b"a3"] == read
        broker.faults.add("session_expired", api="OFFSET_COMMIT", group=topic)
        with pytest.raises(PythonCommitFailedError):
            consumer.commit()
    finally:
        consumer.close()


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
