"""Batches of a few kilobytes that are gigabytes, or millions of records, inside."""

import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import read_header
from protocol.kafka.records.compression import compress
from protocol.kafka.records.records import build_batch
from tests.compat.clients.librdkafka import settings
from tests.kafka_connection import KafkaConnection, produce_fields
from tests.process.broker_process import BrokerProcess
from tests.storage.helpers import lying

AT_ONCE = 8  # as many as there are handlers
# Bytes of resident memory, of which an idle broker has about 60 MB.
MOST_RESIDENT = 500_000_000


def ask(address: str, key: ApiKey, version: int, **fields: object) -> Any:
    with KafkaConnection(address, timeout_s=300) as connection:
        return connection.ask(key, version, **fields)


def at_once(run: object) -> list[int]:
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(run())) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(codes) == AT_ONCE
    return codes


def produce(address: str, topic: str, batch: bytes) -> int:
    answer = ask(address, ApiKey.PRODUCE, 9, **produce_fields(topic, batch, acks=1))
    return answer.responses[0].partition_responses[0].error_code


def bombs(codec: int) -> dict[str, bytes]:
    """By what they have inside."""
    one = batch_of(1, codec)
    tiny = b"\x10\0\0\0\x02k\x01\0\0"  # a record with a key: too many of them, and all with the first one's offset
    return {
        "zeros": with_body(one, compress(codec, bytes(50 << 20)), 1_000_000),
        "millions of records": with_body(one, compress(codec, tiny * 5_000_000), 1_000_000),
        "records without keys": batch_of(100_000, codec),
    }


def batch_of(count: int, codec: int) -> bytes:
    return bytes(build_batch([(None, b"", (), 1_000)] * count, compression=codec))


def with_body(batch: bytes, body: bytes, count: int) -> bytes:
    return bytes(lying(memoryview(batch), lambda _: body, record_count=count, last_offset_delta=count - 1))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="takes Linux's /proc")
@pytest.mark.parametrize("codec", [1, 4])
def test_batch_contents_cost_at_most_the_bounds(codec: int, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        admin = AdminClient(settings(broker.address))
        configs = {"max.message.bytes": "10000000"}
        made = admin.create_topics(
            [
                NewTopic("compacted", 1, 1, config={**configs, "cleanup.policy": "compact"}),
                NewTopic("recoded", 1, 1, config={**configs, "compression.type": "snappy"}),
                NewTopic("plain", 1, 1, config=configs),
            ]
        )
        for future in made.values():
            future.result(30)
        for batch in bombs(codec).values():
            assert len(batch) < 2_000_000
            refused = at_once(lambda batch=batch: produce(broker.address, "compacted", batch))
            assert [ErrorCode.invalid_record] * AT_ONCE == refused
            at_once(lambda batch=batch: produce(broker.address, "recoded", batch))
            # Here nobody looks inside, until somebody asks for a time.
            assert [0] * AT_ONCE == at_once(lambda batch=batch: produce(broker.address, "plain", batch))
            at_once(lambda: list_offsets(broker.address, "plain", 500))
            at_once(lambda: list_offsets(broker.address, "plain", -3))
        assert broker.peak_bytes < MOST_RESIDENT
        producer = Producer(settings(broker.address))
        for topic in ("compacted", "recoded", "plain"):
            producer.produce(topic, b"value", b"key")
        assert 0 == producer.flush(60)
        assert 0 == broker.stop()
        assert not any("offline" in event["event"] for event in broker.events)


def list_offsets(address: str, topic: str, timestamp: int) -> int:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    answer = ask(address, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    partition = answer.topics[0].partitions[0]
    assert 0 == partition.error_code
    return partition.offset


def test_batch_with_impossible_claims_is_refused_at_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        admin = AdminClient(settings(broker.address))
        admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(30)
        small = batch_of(1, 1)
        lie = with_body(small, small[61:], 2**31 - 1)
        assert len(lie) < 100
        assert read_header(lie).record_count == 2**31 - 1
        assert ErrorCode.invalid_record == produce(broker.address, "topic", lie)
        assert 0 == broker.stop()
