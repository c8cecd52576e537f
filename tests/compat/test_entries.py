"""Kafka's clients read what Pulsar's producers have written, as records among those of Kafka's producers."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer, TopicPartition

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.storage.log.log import Log
from protocol.kafka.records.batch import batches
from protocol.kafka.records.entry import build_entry
from protocol.kafka.records.records import build_batch, records
from protocol.pulsar.pulsar_pb2 import CompressionType
from tests.compat.clients import each_client, skip_if_missing
from tests.compat.clients.record import Client, Record
from tests.pulsar.entries.messages import batch_of, compressed_batch_of, message

NOW_MS = 1_700_000_000_000
TOPIC = "mixed"


class Mixed:
    """A topic of two partitions, and what Kafka's consumers are to find in it."""

    def __init__(self, broker: Broker) -> None:
        self.servers = broker.bootstrap_servers
        self._logs = broker.server.kafka.logs
        self._logs.create_topic(TOPIC, 2, {"message.timestamp.before.max.ms": str(2**62)})
        self.expected: dict[int, list[Record]] = {0: [], 1: []}
        for partition in (0, 1):
            self._write(partition)

    def _log(self, partition: int) -> Log:
        log = self._logs.get(TOPIC, partition)
        assert log is not None
        return log

    def _entry(self, partition: int, stored: bytes, *records: Record) -> None:
        view = memoryview(build_entry(stored, len(records), NOW_MS + self._log(partition).log_end_offset))
        self._log(partition).append(view, now_ms=NOW_MS, entries=True)
        self.expected[partition] += records

    def _write(self, partition: int) -> None:
        log = self._log(partition)
        log.append(memoryview(build_batch([(b"k", b"kafka", [], NOW_MS)])), now_ms=NOW_MS)
        self.expected[partition].append(Record(b"k", b"kafka"))
        properties = [{"key": "p", "value": "v"}, {"key": "p", "value": "w"}]
        self._entry(
            partition,
            message(b"one", partition_key="key", properties=properties, event_time=5),
            Record(b"key", b"one", (("p", b"v"), ("p", b"w"))),
        )
        self._entry(partition, message(b"", null_value=True, partition_key="key"), Record(b"key", None))
        for codec in (0, *CompressionType.values()):
            values = [b"%d-%d-%d" % (partition, codec, number) for number in range(20)]
            stored = compressed_batch_of(codec, *values) if codec else batch_of(*values)
            self._entry(partition, stored, *[Record(None, value) for value in values])
            batch = build_batch([(None, value, [], NOW_MS) for value in values], compression=codec % 2)
            log.append(memoryview(batch), now_ms=NOW_MS)
            self.expected[partition] += [Record(None, value) for value in values]
        large = b"large, " * 150_000
        self._entry(partition, message(large), Record(None, large))
        self._entry(partition, message(b"the end"), Record(None, b"the end"))


@pytest.fixture(scope="module")
def mixed() -> Iterator[Mixed]:
    with Broker() as broker:
        yield Mixed(broker)


@each_client
def test_client_reads_topic_of_both_producer_kinds(client: Client, mixed: Mixed) -> None:
    skip_if_missing(client)
    count = sum(map(len, mixed.expected.values()))
    assert mixed.expected == client.consume(mixed.servers, TOPIC, count)


@pytest.mark.parametrize(
    "settings", [{"max_partition_fetch_bytes": 1000}, {"fetch_min_bytes": 50_000, "fetch_max_wait_ms": 50}]
)
def test_consumer_may_begin_anywhere_with_any_size(mixed: Mixed, settings: dict[str, int]) -> None:
    partition = TopicPartition(TOPIC, 0)
    expected = mixed.expected[0]
    consumer = KafkaConsumer(bootstrap_servers=mixed.servers, consumer_timeout_ms=20_000, **settings)
    try:
        consumer.assign([partition])
        for start in (0, 1, 5, 22, 23, 90, len(expected) - 1):
            consumer.seek(partition, start)
            consumed = []
            while len(consumed) < len(expected) - start:
                consumed.append(next(consumer))
            assert [*range(start, len(expected))] == [record.offset for record in consumed]
            assert [record.value for record in expected[start:]] == [record.value for record in consumed]
    finally:
        consumer.close()


def test_a_consumer_finds_offsets_by_time(mixed: Mixed) -> None:
    partition = TopicPartition(TOPIC, 1)
    consumer = KafkaConsumer(bootstrap_servers=mixed.servers)
    try:
        end = consumer.end_offsets([partition])[partition]
        position = consumer.offsets_for_times({partition: NOW_MS + end - 1})[partition]
        assert (end - 1, NOW_MS + end - 1) == (position.offset, position.timestamp)
    finally:
        consumer.close()


def test_the_command_line_reads_it(mixed: Mixed) -> None:
    arguments = [sys.executable, "-m", "broker", "consume", TOPIC, "-b", mixed.servers, "-p", "0", "--json"]
    result = subprocess.run(arguments, capture_output=True, check=True, timeout=60)
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert [*range(len(mixed.expected[0]))] == [record["offset"] for record in printed]
    assert [["p", "v"], ["p", "w"]] == printed[1]["headers"]


@pytest.mark.parametrize("max_bytes", [1, 2000, 1 << 20])
def test_the_client_of_this_package_reads_it(mixed: Mixed, max_bytes: int) -> None:
    expected = mixed.expected[1]
    consumed: list[Record] = []
    with (
        Cluster(ClientConfig.from_properties({"bootstrap.servers": mixed.servers})) as cluster,
        cluster.fetcher(TOPIC, 1, 0, len(expected), max_bytes=max_bytes) as fetcher,
    ):
        for fetched in fetcher:
            for position, _ in batches(fetched.data):
                consumed += [
                    Record(record.key, record.value, tuple(record.headers))
                    for record in records(fetched.data, position)
                ]
    assert expected == consumed
