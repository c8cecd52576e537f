"""One topic, both protocols: what Kafka's clients write, Pulsar's client reads, and the other way round, at the same offsets."""

import uuid
from collections.abc import Iterator

import pulsar
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.process.broker_process import BrokerProcess

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]
PATIENCE_MS = 30_000


class Both:
    """A broker with a listener for each, and a client of each."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.servers = broker.addresses["kafka"]
        self.client = pulsar.Client(
            f"pulsar://{broker.addresses['pulsar']}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )

    def kafka_producer(self, **settings: object) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 20, **settings})

    def read_with_kafka(self, topic: str, count: int, **settings: object) -> list[tuple[int, bytes, bytes, bytes]]:
        """Offset, key, value, and the header ``h``."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": uuid.uuid4().hex, **settings})
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = []
        try:
            while len(records) < count:
                message = consumer.poll(PATIENCE_MS / 1000)
                assert message is not None, f"{len(records)} of {count} records came"
                assert message.error() is None
                headers = dict(message.headers() or [])
                records.append((message.offset(), message.key(), message.value(), headers.get("h")))
        finally:
            consumer.close()
        return records

    def read_with_pulsar(
        self, topic: str, count: int, kind: pulsar.ConsumerType = pulsar.ConsumerType.Exclusive
    ) -> list[tuple[int, str, bytes, str | None]]:
        """The same. The offset is that of the entry and the index in its batch."""
        consumer = self.client.subscribe(
            topic, uuid.uuid4().hex, kind, initial_position=pulsar.InitialPosition.Earliest
        )
        records = []
        try:
            for _ in range(count):
                message = consumer.receive(PATIENCE_MS)
                consumer.acknowledge(message)
                entry = message.message_id()
                offset = entry.entry_id() + max(0, entry.batch_index())
                records.append((offset, message.partition_key(), message.data(), message.properties().get("h")))
        finally:
            consumer.close()
        return records


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with BrokerProcess(tmp_path_factory.mktemp("both"), more_listeners=["pulsar://127.0.0.1:0"]) as broker:
        both = Both(broker)
        yield both
        both.client.close()
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
@pytest.mark.parametrize("batching", [False, True])
def test_kafka_reads_what_pulsar_writes(
    both: Both, topic: str, compression: pulsar.CompressionType, batching: bool
) -> None:
    producer = both.client.create_producer(
        topic, compression_type=compression, batching_enabled=batching, batching_max_publish_delay_ms=20
    )
    for number in range(300):
        producer.send_async(
            b"v%d" % number, lambda result, _: None, partition_key=f"k{number % 7}", properties={"h": f"{number}"}
        )
    producer.flush()
    producer.close()
    expected = [(number, b"k%d" % (number % 7), b"v%d" % number, b"%d" % number) for number in range(300)]
    assert expected == both.read_with_kafka(topic, 300)


@pytest.mark.parametrize("codec", CODECS)
def test_pulsar_reads_what_kafka_writes(both: Both, topic: str, codec: str) -> None:
    producer = both.kafka_producer(**{"compression.type": codec})
    for number in range(300):
        producer.produce(topic, b"v%d" % number, b"k%d" % (number % 7), headers=[("h", b"%d" % number)], partition=0)
    assert 0 == producer.flush(30)
    expected = [(number, f"k{number % 7}", b"v%d" % number, f"{number}") for number in range(300)]
    assert expected == both.read_with_pulsar(topic, 300)


def test_both_write_and_both_read_the_same(both: Both, topic: str) -> None:
    ours, theirs = both.client.create_producer(topic), both.kafka_producer()
    for number in range(50):
        ours.send(b"pulsar %d" % number, partition_key="k")
        theirs.produce(topic, b"kafka %d" % number, b"k")
        assert 0 == theirs.flush(30)
    expected = [b"%s %d" % (who, number) for number in range(50) for who in (b"pulsar", b"kafka")]
    assert expected == [value for _, _, value, _ in both.read_with_kafka(topic, 100)]
    assert expected == [value for _, _, value, _ in both.read_with_pulsar(topic, 100)]
    assert expected == [value for _, _, value, _ in both.read_with_pulsar(topic, 100, pulsar.ConsumerType.Shared)]


def test_waiting_pulsar_consumer_is_woken_by_kafka_producer(both: Both, topic: str) -> None:
    consumer = both.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = both.kafka_producer(**{"linger.ms": 0})
    for number in range(20):
        producer.produce(topic, b"%d" % number)
        assert 0 == producer.flush(30)
        message = consumer.receive(PATIENCE_MS)
        assert b"%d" % number == message.data()
        consumer.acknowledge(message)
    consumer.close()


def test_pulsar_consumers_see_no_records_of_aborted_transactions(both: Both, topic: str) -> None:
    consumer = both.client.subscribe(topic, "s", pulsar.ConsumerType.Exclusive)
    producer = both.kafka_producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        assert 0 == producer.flush(30)
        if number % 2:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    assert [b"1", b"3", b"5"] == [consumer.receive(PATIENCE_MS).data() for _ in range(3)]
    consumer.close()


def test_kafka_key_goes_to_one_key_shared_consumer(both: Both, topic: str) -> None:
    consumers = [both.client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared) for _ in range(3)]
    producer = both.kafka_producer(**{"linger.ms": 100})
    for number in range(300):
        producer.produce(topic, b"%d" % number, b"key %d" % (number % 20))
        if number % 30 == 29:  # several batches, each with every key
            assert 0 == producer.flush(30)
    owners: dict[str, int] = {}
    seen: dict[str, list[int]] = {}
    while sum(map(len, seen.values())) < 300:
        for index, consumer in enumerate(consumers):
            while True:
                try:
                    message = consumer.receive(100)
                except pulsar.Timeout:
                    break
                key = message.partition_key()
                assert owners.setdefault(key, index) == index
                seen.setdefault(key, []).append(int(message.data()))
                consumer.acknowledge(message)
    assert all(numbers == sorted(numbers) and len(numbers) == 15 for numbers in seen.values())
    assert 20 == len(seen)
