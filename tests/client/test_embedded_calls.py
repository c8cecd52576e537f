"""What a test puts into its broker and looks up in it."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaProducer

from broker.client import Broker, Record
from broker.errors import BrokerError, Refusal
from tests.pulsar.clients import client as pulsar_client

InThread = Callable[[Callable[[], object]], threading.Thread]


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    """For tests that use topics and groups of their own."""
    with Broker() as running:
        yield running


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def consumer(broker: Broker, group: str, *topics: str) -> Consumer:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    reading = Consumer(settings)
    reading.subscribe(list(topics))
    return reading


def read(reading: Consumer, n: int) -> list[bytes | None]:
    got: list[bytes | None] = []
    while len(got) < n:
        message = reading.poll(30)
        assert message is not None and message.error() is None
        got.append(message.value())
    return got


def test_every_kind_of_record_comes_back(shared: Broker) -> None:
    shared.create_topic("kinds", 3)
    written = shared.produce(
        "kinds",
        [
            "text",
            b"\xff",
            ("k", "value"),
            {"value": "v", "headers": {"trace": "1", "none": None}, "timestamp": 7, "partition": 1},
            {"key": b"k", "headers": [("twice", b"a"), ("twice", b"b")], "partition": 1},
        ],
    )
    records = shared.records("kinds")
    assert [0, 0, 0, 1, 2] == written
    assert (0, 0, b"text") == (records[0].partition, records[0].offset, records[0].value)
    of_1 = [record for record in records if record.partition == 1]
    assert [b"\xff", b"v", None] == values(of_1)
    assert Record(1, 1, 7, None, b"v", [("trace", b"1"), ("none", None)]) == of_1[1]
    assert (b"k", [("twice", b"a"), ("twice", b"b")]) == (of_1[2].key, of_1[2].headers)
    assert [(b"k", b"value")] == [(record.key, record.value) for record in records if record.partition == 2]


def test_clients_read_what_was_produced(shared: Broker) -> None:
    shared.produce("read", [str(number) for number in range(20)])
    reading = consumer(shared, "readers", "read")
    assert [b"%d" % number for number in range(20)] == read(reading, 20)
    reading.close()


def test_keys_choose_the_partition_of_clients(shared: Broker) -> None:
    keys = [b"key-%d" % number for number in range(100)]
    for topic in ("ours", "theirs"):
        shared.create_topic(topic, 5)
    shared.produce("ours", [(key, b"") for key in keys])
    producer = KafkaProducer(bootstrap_servers=shared.bootstrap_servers)
    for key in keys:
        producer.send("theirs", b"", key)
    producer.close()
    ours, theirs = (
        {record.key: record.partition for record in shared.wait_for(topic, 100)} for topic in ("ours", "theirs")
    )
    assert ours == theirs
    assert set(range(5)) == set(ours.values())


@given(st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=40))
def test_offsets_lead_to_the_records(shared: Broker, records: list[tuple[bytes | None, bytes | None]]) -> None:
    if not any(info.name == "random" for info in shared.server.kafka.logs.topics()):
        shared.create_topic("random", 3)
    before = {(record.partition, record.offset) for record in shared.records("random")}
    offsets = shared.produce("random", records)
    new = [record for record in shared.records("random") if (record.partition, record.offset) not in before]
    assert len(records) == len(new) == len(offsets)
    found = {(record.offset, record.key, record.value) for record in new}
    assert {(offset, *record) for offset, record in zip(offsets, records, strict=True)} == found
    for partition in range(3):
        of_one = [record.offset for record in new if record.partition == partition]
        assert sorted(of_one) == of_one


def test_many_bytes_become_several_batches(shared: Broker) -> None:
    large = [b"%03d" % number * 100_000 for number in range(12)]
    assert list(range(12)) == shared.produce("large", large, partition=0)
    assert large == values(shared.records("large"))


def test_topics_have_their_settings(shared: Broker) -> None:
    shared.create_topic("small", 2, max_message_bytes=200, message_timestamp_type="LogAppendTime")
    info = shared.server.kafka.logs.topic("small")
    assert info is not None
    assert {"max.message.bytes": "200", "message.timestamp.type": "LogAppendTime"} == info.configs
    assert list(range(9)) == shared.produce("small", [b"x" * 90] * 9, partition=1)
    assert all(record.timestamp > 0 for record in shared.records("small"))
    with pytest.raises(Refusal, match="200"):
        shared.produce("small", [b"x" * 300])
    with pytest.raises(Refusal, match=r"Unknown topic config name: no\.such"):
        shared.create_topic("other", no_such=1)
    with pytest.raises(Refusal, match="already exists"):
        shared.create_topic("small")


def test_wrong_records_are_refused_before_the_first(shared: Broker) -> None:
    for wrong, message in [
        ("text", r"produce\('wrong', \[...\]\)"),
        ([{"valeu": 1}], "not 'valeu'"),
        (["good", 1], "A value is bytes, str or None, not int"),
        ([("a", "b", "c")], "not 3 items"),
    ]:
        with pytest.raises(TypeError, match=message):
            shared.produce("wrong", wrong)  # type: ignore[arg-type]
    assert shared.server.kafka.logs.topic("wrong") is None
    with pytest.raises(Refusal, match="There is no topic 'wrong'"):
        shared.records("wrong")
    shared.create_topic("wrong")
    with pytest.raises(Refusal, match="There is no partition wrong-3"):
        shared.produce("wrong", ["one"], partition=3)


def test_only_committed_records_are_there(shared: Broker) -> None:
    producer = Producer({"bootstrap.servers": shared.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(30)
    for number, end in enumerate([producer.abort_transaction, producer.commit_transaction]):
        producer.begin_transaction()
        producer.produce("transactions", b"%d" % number)
        assert 0 == producer.flush(30)
        assert [] == shared.records("transactions")
        end(30)
    producer.begin_transaction()
    producer.produce("transactions", b"open")
    assert 0 == producer.flush(30)
    assert [b"1"] == values(shared.records("transactions")) == values(shared.wait_for("transactions", 1))
    with pytest.raises(TimeoutError, match=r"1 of 2 records came to 'transactions' within 0.05 s"):
        shared.wait_for("transactions", 2, timeout=0.05)
    producer.abort_transaction(30)


def test_waiting_ends_with_the_last_record(shared: Broker, in_thread: InThread) -> None:
    with pytest.raises(TimeoutError, match=r"'awaited' was not made within 0\.02 s; 3 records were awaited"):
        shared.wait_for("awaited", 3, timeout=0.02)
    got: list[list[bytes | None]] = []
    thread = in_thread(lambda: got.append(values(shared.wait_for("awaited", 3, timeout=60))))
    shared.produce("awaited", ["0", "1"])
    assert thread.is_alive()
    shared.produce("awaited", ["2"])
    thread.join(60)
    assert [[b"0", b"1", b"2"]] == got


def test_waiting_outlasts_a_restart(in_thread: InThread) -> None:
    with Broker() as broker:
        broker.produce("orders", ["before"])
        got: list[list[bytes | None]] = []
        thread = in_thread(lambda: got.append(values(broker.wait_for("orders", 2, timeout=60))))
        port = broker.bootstrap_servers
        broker.restart()
        broker.stop()
        broker.start()
        assert port == broker.bootstrap_servers
        broker.produce("orders", ["after"])
        thread.join(60)
        assert [[b"before", b"after"]] == got
        broker.stop()
        with pytest.raises(BrokerError, match="not running"):
            broker.wait_for("orders", 2, timeout=60)


def test_lag_counts_what_is_left(shared: Broker) -> None:
    shared.create_topic("work", 2)
    shared.produce("work", ["0", "1", "2"], partition=0)
    shared.produce("work", ["3", "4"], partition=1)
    assert {} == shared.committed("workers")
    assert 5 == shared.lag("workers", "work")
    with pytest.raises(BrokerError, match="'workers' has committed no offset"):
        shared.lag("workers")
    with pytest.raises(Refusal, match="There is no topic 'wrok'"):
        shared.lag("workers", "wrok")
    reading = consumer(shared, "workers", "work")
    read(reading, 5)
    reading.commit(offsets=[TopicPartition("work", 0, 2)], asynchronous=False)
    assert ({("work", 0): 2}, 3) == (shared.committed("workers"), shared.lag("workers"))
    reading.commit(offsets=[TopicPartition("work", 0, 3), TopicPartition("work", 1, 2)], asynchronous=False)
    assert ({("work", 0): 3, ("work", 1): 2}, 0) == (shared.committed("workers"), shared.lag("workers"))
    reading.close()


def test_calls_need_no_login_and_no_rights() -> None:
    with Broker(listeners=["kafka+sasl://127.0.0.1:0"], authorizer_class_name="acl", num_partitions=2) as broker:
        broker.produce("orders", ["one", "two"])
        assert [b"one", b"two"] == values(broker.wait_for("orders", 2))
        assert 2 == broker.lag("nobody", "orders")


def test_calls_need_no_kafka_listener() -> None:
    with Broker(listeners=["shuffle://127.0.0.1:0"]) as broker:
        assert [0] == broker.produce("orders", ["one"])
        assert [b"one"] == values(broker.records("orders"))


def test_messages_of_pulsar_are_records() -> None:
    with Broker(listeners=["kafka://127.0.0.1:0", "pulsar://127.0.0.1:0"]) as broker:
        with pulsar_client(f"pulsar://{broker.address('pulsar')}") as pulsar:
            producer = pulsar.create_producer("orders", batching_enabled=True)
            for number in range(5):
                producer.send_async(b"%d" % number, None, partition_key="k", properties={"a": "b"})
            producer.flush()
            records = broker.wait_for("orders", 5)
        assert [b"%d" % number for number in range(5)] == values(records)
        assert [(b"k", [("a", b"b")])] * 5 == [(record.key, record.headers) for record in records]


def test_coroutines_have_the_same_calls(shared: Broker) -> None:
    async def main() -> None:
        aio = shared.aio
        await aio.create_topic("coroutines", 2, cleanup_policy="compact")
        waiting = asyncio.ensure_future(aio.wait_for("coroutines", 3, timeout=60))
        assert [0, 1, 2] == await aio.produce("coroutines", [("a", "1"), ("a", "2"), ("a", "3")])
        assert [b"1", b"2", b"3"] == values(await waiting)
        assert 3 == len(await aio.records("coroutines"))
        assert ({}, 3) == (await aio.committed("others"), await aio.lag("others", "coroutines"))
        with pytest.raises(TimeoutError, match="3 of 4"):
            await aio.wait_for("coroutines", 4, timeout=0.02)
        cancelled = asyncio.ensure_future(aio.wait_for("coroutines", 4, timeout=3600))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(main())


def test_coroutines_restart_the_broker() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await broker.aio.produce("orders", ["one"])
            before = broker.bootstrap_servers
            await broker.aio.restart()
            await broker.aio.stop()
            await broker.aio.start()
            assert before == broker.bootstrap_servers
            assert [b"one"] == values(await broker.aio.records("orders"))

    asyncio.run(main())
