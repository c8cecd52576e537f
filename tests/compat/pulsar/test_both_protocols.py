"""One topic, clients of Pulsar and of Kafka."""

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pulsar import CompressionType, ConsumerType, InitialPosition, MessageId

from tests.compat.pulsar.helpers import (
    PATIENCE_MS,
    Admin,
    acknowledge,
    is_silent,
    numbered,
    receive,
    send,
    send_batch,
    texts,
)

Connect = Callable[..., pulsar.Client]
KAFKA_CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Kafka:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers})

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(30)

    def produce(self, topic: str, *values: Any, **options: Any) -> list[int]:
        """The offsets. A value may be (key, value) or a dict of what ``produce`` takes."""
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 200, **options})
        for value in values:
            fields = value if isinstance(value, dict) else {"value": value}
            producer.produce(topic, on_delivery=delivered, **fields)
        assert producer.flush(30) == 0
        return offsets

    def consume(self, topic: str, count: int, **options: Any) -> list[Any]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"{topic[:100]}-{time.monotonic_ns()}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **options,
            }
        )
        consumer.subscribe([topic])
        try:
            messages: list[Any] = []
            deadline = time.monotonic() + PATIENCE_MS / 1000
            while len(messages) < count:
                assert time.monotonic() < deadline, f"{len(messages)} of {count} came"
                message = consumer.poll(1)
                if message is None:
                    continue
                assert not message.error() or message.error().code() == KafkaError._PARTITION_EOF, message.error()
                messages.append(message)
            return messages
        finally:
            consumer.close()


@pytest.fixture
def kafka(kafka_servers: str) -> Kafka:
    return Kafka(kafka_servers)


def test_kafka_consumer_reads_pulsar_messages(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    producer = client.create_producer(name)
    sent = producer.send(
        b"value", partition_key="key", properties={"a": "1", "b": "zwei"}, event_timestamp=1_600_000_000_123
    )
    producer.send(b"plain")
    first, second = kafka.consume(name, 2)
    assert (first.key(), first.value()) == (b"key", b"value")
    assert first.headers() == [("a", b"1"), ("b", b"zwei")]
    assert first.timestamp()[1] == 1_600_000_000_123
    assert first.offset() == sent.entry_id()
    assert (second.key(), second.value(), second.headers()) == (None, b"plain", None)
    assert abs(second.timestamp()[1] - time.time() * 1000) < 60_000


@pytest.mark.parametrize("codec", CompressionType.__members__.values(), ids=str)
def test_batches_and_compression_of_pulsar_for_kafka(
    client: pulsar.Client, kafka: Kafka, name: str, codec: CompressionType
) -> None:
    producer = client.create_producer(
        name, batching_enabled=True, compression_type=codec, batching_max_publish_delay_ms=10_000
    )
    ids = send_batch(producer, numbered(10), partition_key="key") + send_batch(producer, numbered(5, 10))
    records = kafka.consume(name, 15)
    assert numbered(15) == [record.value().decode() for record in records]
    assert list(range(15)) == [record.offset() for record in records]
    assert 10 * [b"key"] + 5 * [None] == [record.key() for record in records]
    assert {0} == {message_id.entry_id() for message_id in ids[:10]}
    assert {10} == {message_id.entry_id() for message_id in ids[10:]}


@pytest.mark.parametrize("codec", KAFKA_CODECS)
def test_pulsar_consumer_reads_kafka_records(client: pulsar.Client, kafka: Kafka, name: str, codec: str) -> None:
    kafka.create(name)
    consumer = client.subscribe(name, "sub")
    value = {
        "value": b"value" * 100,
        "key": b"key",
        "headers": [("a", b"1"), ("b", b"zwei")],
        "timestamp": 1_600_000_000_123,
    }
    offsets = kafka.produce(name, value, *(f"{n}".encode() for n in range(9)), **{"compression.type": codec})
    messages = receive(consumer, 10)
    first = messages[0]
    assert (first.data(), first.partition_key()) == (b"value" * 100, "key")
    assert first.properties() == {"a": "1", "b": "zwei"}
    assert 1_600_000_000_123 in (first.publish_timestamp(), first.event_timestamp())
    assert [str(number) for number in range(9)] == texts(messages[1:])
    positions = [message.message_id().entry_id() + max(message.message_id().batch_index(), 0) for message in messages]
    assert offsets == positions
    acknowledge(consumer, messages)
    consumer.close()
    assert is_silent(client.subscribe(name, "sub"))


def test_records_of_both_in_one_topic(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    producer = client.create_producer(name)
    batched = client.create_producer(name, batching_enabled=True)
    expected: list[str] = []
    for turn in range(5):
        send(producer, 1, 100 * turn)
        kafka.produce(name, *(text.encode() for text in numbered(3, 100 * turn + 1)))
        send_batch(batched, numbered(4, 100 * turn + 4))
        expected += numbered(8, 100 * turn)
    assert expected == [record.value().decode() for record in kafka.consume(name, 40)]
    reader = client.create_reader(name, MessageId.earliest)
    assert expected == texts(receive(reader, 40))
    assert is_silent(reader)


def test_both_follow_a_topic_while_it_is_written(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    kafka.create(name)
    shared = [client.subscribe(name, "sub", ConsumerType.Shared) for _ in range(2)]
    for turn in range(5):
        kafka.produce(name, b"%d" % turn)
        received = []
        while not received:
            for consumer in shared:
                try:
                    message = consumer.receive(100)
                except pulsar.Timeout:
                    continue
                consumer.acknowledge(message)
                received.append(message.data())
        assert [b"%d" % turn] == received
        client.create_producer(name).send(b"x")
        [record] = kafka.consume(name, 2 * (turn + 1))[-1:]
        assert record.value() == b"x"
        for consumer in shared:
            try:
                consumer.acknowledge(consumer.receive(200))
            except pulsar.Timeout:
                pass


def test_partitions_are_the_same_for_both(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    kafka.create(name, 3)
    assert 3 == len(client.get_topic_partitions(name))
    consumer = client.subscribe(name, "sub")
    for partition in range(3):
        kafka.produce(name, {"value": b"%d" % partition, "partition": partition})
    assert {("0", 0), ("1", 1), ("2", 2)} == {
        (message.data().decode(), message.message_id().partition()) for message in receive(consumer, 3)
    }
    client.create_producer(f"{name}-partition-2").send(b"pulsar")
    [record] = [record for record in kafka.consume(name, 4) if record.value() == b"pulsar"]
    assert record.partition() == 2


def test_aborted_records_of_kafka_are_not_for_pulsar(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    kafka.create(name)
    consumer = client.subscribe(name, "sub")
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": name})
    producer.init_transactions(30)
    for turn, ends in enumerate(("commit", "abort", "commit")):
        producer.begin_transaction()
        producer.produce(name, f"{ends} {turn}".encode())
        producer.flush()
        if ends == "commit":
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    messages = receive(consumer, 2)
    assert ["commit 0", "commit 2"] == texts(messages)
    acknowledge(consumer, messages)
    assert is_silent(consumer)
    consumer.close()
    consumer = client.subscribe(name, "sub")
    assert is_silent(consumer)


def test_kafka_tombstone_is_a_null_value(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    kafka.create(name)
    consumer = client.subscribe(name, "sub")
    kafka.produce(name, {"key": b"key", "value": None}, {"key": b"key", "value": b""})
    null, empty = receive(consumer, 2)
    assert (null.has_null_value(), empty.has_null_value()) == (True, False)
    assert null.data() == empty.data() == b""


def test_keys_that_are_not_text(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    kafka.create(name)
    consumer = client.subscribe(name, "sub", ConsumerType.KeyShared)
    kafka.produce(name, {"key": b"\xff\x00\xfe", "value": b"value"})
    [message] = receive(consumer, 1)
    assert message.data() == b"value"


def test_pulsar_consumer_starts_inside_a_kafka_batch(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    kafka.create(name)
    kafka.produce(name, *(text.encode() for text in numbered(10)))
    reader = client.create_reader(name, MessageId.earliest)
    ids = [message.message_id() for message in receive(reader, 10)]
    for number in (0, 4, 9):
        other = client.create_reader(name, ids[number])
        assert numbered(9 - number, number + 1) == texts(receive(other, 9 - number))
        other.close()


def test_kafka_consumer_starts_inside_a_pulsar_batch(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    from confluent_kafka import TopicPartition

    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_batch(producer, numbered(10))
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": name})
    consumer.assign([TopicPartition(name, 0, 6)])
    values: list[str] = []
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(values) < 4:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is not None and not message.error():
            values.append(message.value().decode())
    low, high = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=30)
    consumer.close()
    assert numbered(4, 6) == values
    assert (low, high) == (0, 10)


def test_a_terminated_topic_takes_nothing_from_kafka_either(
    client: pulsar.Client, kafka: Kafka, rest: Admin, name: str
) -> None:
    kafka.create(name)
    consumer = client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    kafka.produce(name, b"last")
    status, _ = rest.call("POST", f"/admin/v2/persistent/public/default/{name}/terminate")
    assert 200 == status
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(name, b"late", on_delivery=lambda error, _: refused.append(error.code()))
    assert producer.flush(30) == 0
    assert [KafkaError.POLICY_VIOLATION] == refused
    assert ["last"] == texts(receive(consumer, 1))
    assert is_silent(consumer)


def test_kafka_consumer_passes_encrypted_and_chunked_messages(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    producer = client.create_producer(name, chunking_enabled=True)
    producer.send(b"before")
    producer.send(bytes(11 << 20))
    producer.send(b"after")
    last = client.create_reader(name, MessageId.latest, start_message_id_inclusive=True)
    assert last.has_message_available()
    end = receive(last, 1)[0].message_id().entry_id()
    records = kafka.consume(name, end + 1, **{"fetch.message.max.bytes": 20 << 20})
    assert records[0].value() == b"before" and records[-1].value() == b"after"


def test_kafka_topic_has_no_duplicates_after_a_subscription(client: pulsar.Client, kafka: Kafka, name: str) -> None:
    kafka.create(name)
    client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    kafka.produce(name, *(text.encode() for text in numbered(5)))
    assert numbered(5) == [record.value().decode() for record in kafka.consume(name, 5)]
