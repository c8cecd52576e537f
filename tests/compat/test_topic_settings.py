"""What a topic's settings do to records, as clients see it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.compat.clients import each_client, skip_if_missing, writable
from tests.compat.clients.librdkafka import Librdkafka, consume, settings
from tests.compat.clients.record import CODECS, Client, Record
from tests.compat.served import Served
from tests.compat.test_groups_librdkafka import write
from tests.compat.test_interchange import stored

# Looked after all the time instead of every few seconds and minutes.
BUSY = (
    "log_cleaner_backoff_ms=20",
    "log_retention_check_interval_ms=20",
    "log_cleaner_min_cleanable_ratio=0.01",
    "log_flush_offset_checkpoint_interval_ms=20",
    "log_segment_delete_delay_ms=0",
)


@pytest.fixture(scope="module")
def tidy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("tidy"), *BUSY) as broker:
        yield broker
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture(scope="module")
def compacted(tidy: Served) -> tuple[str, dict[bytes, bytes | None]]:
    """A topic in which keys were written again and again and some deleted, until the broker has tidied it up; what is left."""
    servers = tidy.address
    configs = {"cleanup.policy": "compact", "segment.bytes": "20000", "delete.retention.ms": "0", "segment.ms": "1000"}
    admin = AdminClient(settings(servers))
    admin.create_topics([NewTopic("compacted", 1, 1, config=configs)])["compacted"].result(30)
    producer = Producer(settings(servers, linger_ms=0, batch_num_messages=10))
    latest: dict[bytes, bytes | None] = {}
    for number in range(2000):
        key = b"key %d" % (number % 50)
        value = None if number % 50 in (7, 8) else b"value %d" % number
        producer.produce("compacted", value, key)
        latest[key] = value
    assert 0 == producer.flush(30)
    while count(servers, "compacted") > 500 or b"last" not in latest:
        producer.produce("compacted", b"value", b"last")  # so that what was written before is in closed segments
        producer.flush(30)
        latest[b"last"] = b"value"
    return "compacted", latest


def count(servers: str, topic: str) -> int:
    """How many records there are to be read."""
    return len(read_all(servers, topic))


def read_all(servers: str, topic: str) -> list[Any]:
    consumer = Consumer(
        settings(
            servers, group_id="unused", enable_partition_eof=True, auto_offset_reset="earliest", fetch_wait_max_ms=10
        )
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            assert KafkaError._PARTITION_EOF == message.error().code()
            consumer.close()
            return messages
        messages.append(message)


@each_client
def test_every_client_reads_last_value_of_key(
    client: Client, compacted: tuple[str, dict[bytes, bytes | None]], tidy: Served
) -> None:
    skip_if_missing(client)
    topic, expected = compacted
    # Tidying goes on: what one saw, the next one may not.
    values: dict[bytes | None, bytes | None] = {}
    for attempt in range(20):
        number = count(tidy.address, topic)
        try:
            records = client.consume(tidy.address, topic, number)[0]
        except AssertionError:
            assert attempt < 19
            continue
        values = {record.key: record.value for record in records}
        break
    kept = {key: value for key, value in expected.items() if value is not None}
    assert kept == {key: value for key, value in values.items() if value is not None}


def test_offsets_survive_compaction_and_retention(
    compacted: tuple[str, dict[bytes, bytes | None]], tidy: Served
) -> None:
    topic, _ = compacted
    for message in read_all(tidy.address, topic):
        if message.key() != b"last":
            expected = None if message.offset() % 50 in (7, 8) else b"value %d" % message.offset()
            assert expected == message.value()


def test_reader_of_deleted_records_begins_at_the_rest(tidy: Served) -> None:
    servers = tidy.address
    admin = AdminClient(settings(servers))
    configs = {"segment.bytes": "20000", "retention.bytes": "40000"}
    admin.create_topics([NewTopic("retained", 1, 1, config=configs)])["retained"].result(30)
    slow = Consumer(settings(servers, group_id="slow", auto_offset_reset="earliest", queued_min_messages=1))
    slow.assign([TopicPartition("retained", 0, 0)])
    write(servers, "retained", b"first")
    assert [b"first"] == [message.value() for message in consume(slow, 1)]
    slow.pause([TopicPartition("retained", 0)])
    for _ in range(10):
        write(servers, "retained", *[b"%d" % number + b"v" * 1000 for number in range(10)])
    low = 0
    while low < 50:
        low, high = slow.get_watermark_offsets(TopicPartition("retained", 0), 30)
    assert 101 == high
    slow.seek(TopicPartition("retained", 0, 1))
    slow.resume([TopicPartition("retained", 0)])
    assert consume(slow, 1)[0].offset() >= low
    slow.close()


@pytest.mark.parametrize("codec", CODECS)
def test_topic_may_have_its_own_codec(
    codec: str, make_topic: Callable[..., str], servers: str, broker_process: Served
) -> None:
    topic = make_topic(**{"compression.type": "uncompressed" if codec == "none" else codec})
    records = writable(Librdkafka())
    for sent in CODECS:
        Librdkafka().produce(servers, topic, 0, records, sent, -1)
    assert {0: records * 5} == Librdkafka().consume(servers, topic, len(records) * 5)
    kept = {header.compression for header in stored(broker_process.partition_dir(topic))}
    assert {CODECS.index(codec)} == kept


def test_broker_time_may_replace_producer_time(make_topic: Callable[..., str], servers: str) -> None:
    topic = make_topic(**{"message.timestamp.type": "LogAppendTime"})
    told: list[tuple[int, int]] = []
    producer = Producer(settings(servers))
    producer.produce(topic, b"value", timestamp=1, on_delivery=lambda _error, message: told.append(message.timestamp()))
    assert 0 == producer.flush(30)
    (message,) = read_all(servers, topic)
    assert TIMESTAMP_LOG_APPEND_TIME == message.timestamp()[0]
    assert message.timestamp()[1] > 1_700_000_000_000
    assert [message.timestamp()[1]] == [time for _, time in told]


def test_more_replicas_than_there_are_cannot_acknowledge(make_topic: Callable[..., str], servers: str) -> None:
    topic = make_topic(**{"min.insync.replicas": "2"})
    errors: list[int] = []
    producer = Producer(settings(servers, acks=-1, message_timeout_ms=1000, retries=0))
    producer.produce(topic, b"value", on_delivery=lambda error, _message: errors.append(error.code()))
    producer.flush(30)
    assert [KafkaError.NOT_ENOUGH_REPLICAS] == errors
    Librdkafka().produce(servers, topic, 0, [Record(None, b"value")], "none", 1)
    assert 1 == count(servers, topic)


def test_a_setting_is_in_force_at_once(topic: str, servers: str, admin: AdminClient) -> None:
    small, large = Record(None, b"small"), Record(None, b"large" * 1000)
    Librdkafka().produce(servers, topic, 0, [large], "none", -1)
    change = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)
    with pytest.raises(Exception, match="MSG_SIZE_TOO_LARGE"):
        Librdkafka().produce(servers, topic, 0, [large], "none", -1)
    Librdkafka().produce(servers, topic, 0, [small], "none", -1)
    assert {0: [large, small]} == Librdkafka().consume(servers, topic, 2)
