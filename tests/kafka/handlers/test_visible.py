"""``visible=durable``: unsynced records are visible through no API, and synced ones through all."""

import json
import threading
from collections.abc import Iterator
from urllib.request import urlopen

import pulsar
import pytest

from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import batches
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.kafka.handlers.share_client import EARLIEST, Member, write
from tests.kafka_connection import fetch_fields
from tests.pulsar.clients import client

LISTENERS = ("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")
LATEST, MAX_TIMESTAMP = -1, -3


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(listeners=LISTENERS, log_visible="durable") as kafka:
        kafka.inside.share.settings = lambda _: EARLIEST
        yield kafka


def write_two(kafka: Kafka, topic: str) -> None:
    for _ in range(2):
        write(kafka, topic)


@pytest.fixture
def log(kafka: Kafka) -> Log:
    """The log of a topic with two durable records."""
    topic = kafka.topic()
    found = kafka.inside.logs.get(topic, 0)
    assert found is not None
    write_two(kafka, topic)
    found.durability.flush_to(2)
    return found


@pytest.fixture
def disk(log: Log) -> Iterator[threading.Event]:
    """Until this is set, no fsync of the log begins."""
    free, held = threading.Event(), threading.Event()

    def hold() -> None:
        with log.durability.sync_lock:
            held.set()
            free.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    yield free
    free.set()
    thread.join()


def fetch(kafka: Kafka, topic: str, offset: int, max_wait: int = 0) -> tuple[int, int, int]:
    """The error, the high watermark, and where what was read ends."""
    answer = kafka.ask(ApiKey.FETCH, 12, **fetch_fields(topic, offset=offset, max_wait=max_wait))
    ((one,),) = [of_topic.partitions for of_topic in answer.responses]
    end = max((header.last_offset + 1 for _, header in batches(one.records or b"")), default=offset)
    return int(one.error_code), one.high_watermark, end


def offset_at(kafka: Kafka, topic: str, timestamp: int) -> int:
    partition = {"partition_index": 0, "timestamp": timestamp}
    answer = kafka.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": topic, "partitions": [partition]}])
    ((one,),) = [of_topic.partitions for of_topic in answer.topics]
    return int(one.offset)


def delete_records(kafka: Kafka, topic: str, offset: int) -> int:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = kafka.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=1000)
    ((one,),) = [of_topic.partitions for of_topic in answer.topics]
    return int(one.error_code)


def test_unsynced_records_are_invisible_to_every_api(kafka: Kafka, log: Log, disk: threading.Event) -> None:
    topic, listeners = log.topic, kafka.broker.server.listeners
    with client(f"pulsar://{listeners['pulsar']}") as consumers, Member(kafka, topic, group=topic) as member:
        early = consumers.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert [0, 1] == [early.receive(60_000).message_id().entry_id() for _ in range(2)]
        write_two(kafka, topic)
        assert (2, 4) == (log.high_watermark, log.log_end_offset)
        assert fetch(kafka, topic, 0) == (ErrorCode.none, 2, 2)
        # A producer with acks=1 knows these offsets. A consumer that begins there waits, and is not sent elsewhere.
        for offset in (2, 3, 4):
            assert fetch(kafka, topic, offset) == (ErrorCode.none, 2, offset)
        assert fetch(kafka, topic, 5)[0] == ErrorCode.offset_out_of_range
        assert (2, True) == (offset_at(kafka, topic, LATEST), offset_at(kafka, topic, MAX_TIMESTAMP) < 2)
        assert delete_records(kafka, topic, 3) == ErrorCode.offset_out_of_range
        assert [0, 1] == [offset for _, offset in member.fetch().all()]
        assert early.get_last_message_id().entry_id() == 1
        with pytest.raises(pulsar.Timeout):
            early.receive(200)
        with urlopen(f"http://{listeners['http']}/api/v1/topics/{topic}/records?partition=0", timeout=60) as answer:
            assert [0, 1] == [record["offset"] for record in json.load(answer)["records"]]
        # All of those that wait are woken by the fsync.
        member.send_fetch(max_wait=60_000)
        with Beside(kafka) as parked:
            found: list[tuple[int, int, int]] = []
            thread = threading.Thread(target=lambda: found.append(fetch(parked, topic, 3, 60_000)))
            thread.start()
            disk.set()
            thread.join(120)
            assert found == [(ErrorCode.none, 4, 4)]
        assert [2, 3] == [offset for _, offset in member.receive_fetch().all()]
        assert [2, 3] == [early.receive(60_000).message_id().entry_id() for _ in range(2)]
    assert delete_records(kafka, topic, 3) == ErrorCode.none


def test_one_record_becomes_visible_by_itself(kafka: Kafka, log: Log) -> None:
    """Nothing else causes an fsync: no other record, no acks=all, no interval."""
    for offset in range(2, 20):
        write(kafka, log.topic)
        assert fetch(kafka, log.topic, offset, 60_000) == (ErrorCode.none, offset + 1, offset + 1)
