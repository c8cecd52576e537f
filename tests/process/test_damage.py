"""Files that were damaged while the broker was away: what can be mended is, what cannot is said, the rest is served."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.compat.clients.librdkafka import consume, settings
from tests.process.broker_process import BrokerProcess
from tests.process.test_disk import refused
from tests.process.test_kill import inspect
from tests.waiting import wait_for

COUNT = 300
TIMESTAMP = 1_700_000_000_000
SETTINGS = ("log_segment_bytes=20000", "log_index_interval_bytes=500", "num_partitions=2", "log_retention_ms=-1")
Damage = Callable[[Path], None]


def write(servers: str, topic: str, partition: int, first: int, count: int, **more: object) -> list[int]:
    """``count`` numbered records, one a batch; the codes of the errors. ``more`` settings."""
    producer = Producer(settings(servers, linger_ms=0, batch_num_messages=1, **more))
    errors: list[int] = []
    for number in range(first, first + count):
        producer.produce(
            topic,
            b"%06d" % number + b"v" * 200,
            partition=partition,
            timestamp=TIMESTAMP + number,
            on_delivery=lambda error, _message: errors.append(error.code()) if error else None,
        )
    assert 0 == producer.flush(30)
    return errors


def numbers(servers: str, topic: str, partition: int, count: int) -> list[int]:
    consumer = Consumer(settings(servers, group_id="unused", auto_offset_reset="error"))
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = [int(message.value()[:6]) for message in consume(consumer, count)]
    consumer.close()
    return found


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    """Killed; with ``COUNT`` records in both partitions of ``topic``, in several segments, and an offset committed."""
    broker = BrokerProcess(tmp_path, *SETTINGS).start()
    for partition in range(2):
        assert [] == write(broker.address, "topic", partition, 0, COUNT)
    consumer = Consumer(settings(broker.address, group_id="group"))
    consumer.commit(offsets=[TopicPartition("topic", 0, 7)], asynchronous=False)
    consumer.close()
    broker.kill()
    assert len(segments(broker, 0)) >= 3
    return broker


def segments(broker: BrokerProcess, partition: int, suffix: str = ".log") -> list[Path]:
    return sorted((broker.data_dir / f"topic-{partition}").glob(f"*{suffix}"))


def overwritten(path: Path) -> None:
    size = max(path.stat().st_size, 64)
    path.write_bytes(os.urandom(size))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 - 1 if path.stat().st_size > 3 else 0)


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [overwritten, emptied, cut, removed])
def test_damaged_indexes_and_snapshots_are_made_again(damage: Damage, broker: BrokerProcess) -> None:
    for suffix in (".index", ".timeindex", ".snapshot"):
        for path in segments(broker, 0, suffix):
            damage(path)
    with broker:
        assert list(range(COUNT)) == numbers(broker.address, "topic", 0, COUNT)
        assert [] == write(broker.address, "topic", 0, COUNT, 10)
        consumer = Consumer(settings(broker.address, group_id="group", fetch_wait_max_ms=10))
        (committed,) = consumer.committed([TopicPartition("topic", 0)], 30)
        assert 7 == committed.offset
        # Looking up an offset or a time asks an index, in each of the segments.
        for number in range(0, COUNT, 17):
            consumer.assign([TopicPartition("topic", 0, number)])
            assert number == int(consume(consumer, 1)[0].value()[:6])
            (found,) = consumer.offsets_for_times([TopicPartition("topic", 0, TIMESTAMP + number)], 30)
            assert number == found.offset
        consumer.close()
        assert 0 == broker.stop()
        assert [] == broker.errors


def test_torn_tail_of_a_crash_is_cut(broker: BrokerProcess) -> None:
    last = segments(broker, 0)[-1]
    with open(last, "ab") as file:
        file.write(last.read_bytes()[-100:])  # the second half of a batch
    with broker:
        assert list(range(COUNT)) == numbers(broker.address, "topic", 0, COUNT)
        assert [] == write(broker.address, "topic", 0, COUNT, 10)
        assert list(range(COUNT + 10)) == numbers(broker.address, "topic", 0, COUNT + 10)
        assert 0 == broker.stop()
        inspect(broker.data_dir)


def test_damaged_partition_is_offline_and_others_served(broker: BrokerProcess) -> None:
    path = segments(broker, 0)[-1]
    content = bytearray(path.read_bytes())
    content[150] ^= 0xFF  # in the value of the first of many records
    path.write_bytes(content)
    with broker:
        servers = broker.address
        assert list(range(COUNT)) == numbers(servers, "topic", 1, COUNT)
        assert [] == write(servers, "topic", 1, COUNT, 10)
        assert [KafkaError.KAFKA_STORAGE_ERROR] == write(servers, "topic", 0, COUNT, 1, retries=0)
        said = ["partition_taken_offline", "append_failed"]
        assert said == [error["event"] for error in broker.errors]
        consumer = Consumer(settings(servers, group_id="unused"))
        consumer.assign([TopicPartition("topic", 0, 0)])

        def read_failed() -> bool:
            message = consumer.poll(1)
            assert message is None or message.error() is not None, "a damaged partition is read from"
            return len(broker.errors) > len(said)

        wait_for(read_failed)
        consumer.poll(1)
        consumer.close()
        # Once each, however often clients try again.
        assert [*said, "read_failed"] == [error["event"] for error in broker.errors]
        assert {("topic", 0)} == {(error["topic"], error["partition"]) for error in broker.errors}
        assert 0 == broker.stop()


@pytest.mark.parametrize("damage", [overwritten, cut])
def test_a_damaged_catalogue_is_refused_in_one_sentence(damage: Damage, broker: BrokerProcess) -> None:
    assert 0 == broker.start().stop()  # everything is in the one file now
    damage(broker.data_dir / "catalogue.sqlite")
    before = sorted(path.name for path in broker.data_dir.iterdir())
    refused(broker, says="catalogue.sqlite")
    assert set(before) <= {path.name for path in broker.data_dir.iterdir()}, "it has thrown something away"


def test_records_are_found_without_the_catalogue(broker: BrokerProcess) -> None:
    for path in broker.data_dir.glob("catalogue.sqlite*"):
        path.unlink()
    with broker:
        for partition in range(2):
            assert list(range(COUNT)) == numbers(broker.address, "topic", partition, COUNT)
        assert 0 == broker.stop()
