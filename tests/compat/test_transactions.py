"""Transactions by real clients: what each commits the others see, and what it aborts nobody does; exactly once over kills."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients import kcat as kcat_client
from tests.compat.clients.kafka_python import kafka
from tests.compat.clients.librdkafka import settings
from tests.compat.conftest import SETTINGS
from tests.compat.served import Served
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


# Producers: a committed, an aborted, and another committed transaction over two topics --------------------------------


def confluent(servers: str, name: str, topics: list[str]) -> None:
    producer = Producer(settings(servers, transactional_id=name))
    producer.init_transactions(30)
    for number in range(3):
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"%d" % number)
        producer.flush(30)
        if number == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def kafka_python(servers: str, name: str, topics: list[str]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=name)
    producer.init_transactions()
    for number in range(3):
        producer.begin_transaction()
        for future in [producer.send(topic, b"%d" % number) for topic in topics]:
            future.get(30)
        if number == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()


def aiokafka_(servers: str, name: str, topics: list[str]) -> None:
    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name) as producer:
            for number in range(3):
                await producer.begin_transaction()
                for topic in topics:
                    await producer.send_and_wait(topic, b"%d" % number)
                if number == 1:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()

    asyncio.run(produce())


PRODUCERS: dict[str, Callable[[str, str, list[str]], None]] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka_,
}


# Readers: everything from the beginning, by the level -----------------------------------------------------------------


def by_confluent(servers: str, topic: str, level: str) -> list[bytes]:
    consumer = Consumer(settings(servers, group_id="reader", isolation_level=level, enable_partition_eof=True))
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while True:
        message = consumer.poll(30)
        assert message is not None, values
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        values.append(message.value())
    consumer.close()
    return values


def end(servers: str, topic: str, level: str) -> int:
    """The offset up to which a reader may read."""
    consumer = Consumer(settings(servers, group_id="reader", isolation_level=level))
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.close()
    return int(end)


def by_kafka_python(servers: str, topic: str, level: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, isolation_level=level)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    values: list[bytes] = []
    while consumer.position(partition) < end(servers, topic, level):
        values += [record.value for records in consumer.poll(timeout_ms=100).values() for record in records]
    consumer.close()
    return values


def by_aiokafka(servers: str, topic: str, level: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=servers, isolation_level=level, auto_offset_reset="earliest"
        )
        async with consumer:
            values: list[bytes] = []
            while await consumer.position(aiokafka.TopicPartition(topic, 0)) < end(servers, topic, level):
                got = await consumer.getmany(timeout_ms=100)
                values += [record.value for records in got.values() for record in records]
            return values

    return asyncio.run(read())


def by_kcat(servers: str, topic: str, level: str) -> list[bytes]:
    if reason := kcat_client.Kcat().missing():
        pytest.skip(reason)
    options = ["-C", "-t", topic, "-o", "beginning", "-e", "-q", "-X", f"isolation.level={level}"]
    return kcat_client.run(servers, *options).split()


READERS: dict[str, Callable[[str, str, str], list[bytes]]] = {
    "confluent-kafka": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
    "kcat": by_kcat,
}


@pytest.mark.parametrize("producer", PRODUCERS)
def test_committed_records_are_visible_and_aborted_are_not(
    producer: str, name: str, servers: str, make_topic: Callable[..., str]
) -> None:
    topics = [make_topic(), make_topic()]
    PRODUCERS[producer](servers, name, topics)
    for topic in topics:
        for reader, read in READERS.items():
            assert [b"0", b"2"] == read(servers, topic, "read_committed"), reader
            assert [b"0", b"1", b"2"] == read(servers, topic, "read_uncommitted"), reader


def test_open_transaction_is_not_read_past(name: str, topic: str, servers: str) -> None:
    producer = Producer(settings(servers, transactional_id=name))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    plain = Producer(settings(servers))
    plain.produce(topic, b"plain")
    plain.flush(30)
    for reader, read in READERS.items():
        assert [] == read(servers, topic, "read_committed"), reader
        assert [b"open", b"plain"] == read(servers, topic, "read_uncommitted"), reader
    producer.commit_transaction(30)
    assert [b"open", b"plain"] == by_confluent(servers, topic, "read_committed")


@pytest.mark.parametrize("producer", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_second_producer_of_an_id_fences_first(producer: str, name: str, topic: str, servers: str) -> None:
    zombie = Producer(settings(servers, transactional_id=name))
    zombie.init_transactions(30)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie")
    zombie.flush(30)
    PRODUCERS[producer](servers, name, [topic])
    with pytest.raises(KafkaException) as error:
        zombie.commit_transaction(30)
    assert error.value.args[0].fatal()
    assert [b"0", b"2"] == by_confluent(servers, topic, "read_committed")


def test_a_transaction_that_takes_too_long_is_aborted(name: str, topic: str, servers: str) -> None:
    producer = Producer(settings(servers, transactional_id=name, transaction_timeout_ms=1000))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"late")
    producer.flush(30)
    wait_for(lambda: end(servers, topic, "read_committed") == 2, "it is not aborted")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert [] == by_confluent(servers, topic, "read_committed")


def test_kafka_python_aborts_a_partition_s_open_transaction(name: str, topic: str, servers: str) -> None:
    producer = Producer(settings(servers, transactional_id=name))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"left open", partition=0)
    producer.flush(30)
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    partition = kafka.TopicPartition(topic, 0)
    (active,) = admin.describe_producers([partition])[partition].active_producers
    admin.abort_transaction(kafka.admin.AbortTransactionSpec(partition, active.producer_id, active.producer_epoch))
    assert admin.describe_transactions([name])[name].state == "CompleteAbort"
    admin.close()
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert [] == by_confluent(servers, topic, "read_committed")


# Offsets --------------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_with_transaction_or_never(name: str, topic: str, servers: str) -> None:
    consumer = Consumer(settings(servers, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False))
    plain = Producer(settings(servers))
    for number in range(4):
        plain.produce(topic, b"%d" % number)
    plain.flush(30)
    consumer.subscribe([topic])
    assert len(consumer.consume(4, 30)) == 4
    producer = Producer(settings(servers, transactional_id=name))
    producer.init_transactions(30)
    for offset, end, expected in (
        (2, producer.abort_transaction, -1001),
        (3, producer.commit_transaction, 3),
        (4, producer.abort_transaction, 3),
    ):
        producer.begin_transaction()
        offsets = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        end(30)
        assert [expected] == [position.offset for position in consumer.committed([TopicPartition(topic, 0)], 30)]
    consumer.close()


def test_offsets_by_aiokafka_and_kafka_python(name: str, topic: str, servers: str) -> None:
    async def by_aio() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
        async with producer, producer.transaction():
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): 5}, name)

    asyncio.run(by_aio())
    consumer = Consumer(settings(servers, group_id=name))
    assert [5] == [position.offset for position in consumer.committed([TopicPartition(topic, 0)], 30)]
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    offsets = {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(6, "", -1)}
    producer.send_offsets_to_transaction(offsets, name)
    producer.commit_transaction()
    producer.close()
    assert [6] == [position.offset for position in consumer.committed([TopicPartition(topic, 0)], 30)]
    consumer.close()


# Exactly once ---------------------------------------------------------------------------------------------------------

COUNT, PARTITIONS = 300, 2


class Transform:
    """The process of ``transform.py``, started again whenever it gives up."""

    def __init__(self, servers: str, *arguments: str) -> None:
        self.arguments = (servers, *arguments)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.compat.transform", *self.arguments]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def wait_for(self, transactions: int) -> None:
        assert self.process.stdout is not None
        for _ in range(transactions):
            if not self.process.stdout.readline():  # given up, or finished
                return

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def finish(self) -> None:
        for _ in range(5):
            _, errors = self.process.communicate(timeout=120)
            if self.process.returncode == 0:
                return
            self.start()
        raise AssertionError(errors.decode())


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, *SETTINGS) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["client", "broker"])
def test_each_record_is_transformed_exactly_once_over_kills(victim: str, own_broker: Served) -> None:
    servers = own_broker.address
    admin = AdminClient(settings(servers))
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in ("in", "out")]).values():
        future.result(30)
    producer = Producer(settings(servers))
    for number in range(COUNT):
        producer.produce("in", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    arguments = ("in", "out", "group", str(COUNT))
    transform = Transform(servers, *arguments)
    for _ in range(3):
        transform.wait_for(3)
        if victim == "client":
            transform.kill()
            transform = Transform(servers, *arguments)
        else:
            own_broker.kill()
            own_broker.start()
    transform.finish()
    transformed: list[bytes] = []
    for partition in range(PARTITIONS):
        transformed += committed_in(servers, "out", partition)
    assert sorted(transformed, key=int, reverse=True) == [b"-%d" % number for number in range(COUNT)]


def committed_in(servers: str, topic: str, partition: int) -> list[bytes]:
    options: dict[str, Any] = {"group_id": "reader", "isolation_level": "read_committed", "enable_partition_eof": True}
    consumer = Consumer(settings(servers, **options))
    consumer.assign([TopicPartition(topic, partition, 0)])
    values = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        values.append(message.value())
    consumer.close()
    return values
