"""Batches of other clients and of this project are the same, and each side reads the other's."""

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from protocol.kafka.records.batch import batches, check_crc, read_header
from protocol.kafka.records.records import Record, build_batch, records
from tests.protocol.kafka.capturing_broker import CapturingBroker

Given = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
every_client = pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])

FIELD = st.none() | st.binary(max_size=9) | st.sampled_from([bytes(63), bytes(64), bytes(9000)])
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
RECORDS = st.lists(st.tuples(FIELD, FIELD, HEADERS, st.integers(0, 2**42)), min_size=1, max_size=6)

BUILDERS: dict[str, Callable[..., Any]] = {"kafka-python": KafkaPythonBuilder, "aiokafka": AiokafkaBuilder}
READERS: dict[str, Callable[[bytes], Any]] = {"kafka-python": KafkaPythonBatch, "aiokafka": AiokafkaBatch}


def built_by(client: str, given: list[Given], codec: int) -> bytes:
    builder = BUILDERS[client](
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=7,
        producer_epoch=1,
        base_sequence=40,
        batch_size=1 << 20,
    )
    for offset, (key, value, headers, timestamp) in enumerate(given):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    return bytes(builder.build())


def built_here(given: list[Given], codec: int) -> bytes:
    return bytes(
        build_batch(
            given, compression=codec, producer_id=7, producer_epoch=1, base_sequence=40, partition_leader_epoch=0
        )
    )


def as_records(given: list[Given]) -> list[Record]:
    return [Record(offset, time, key, value, headers) for offset, (key, value, headers, time) in enumerate(given)]


@every_client
@given(RECORDS)
def test_uncompressed_batch_equals_the_clients_bytes(client: str, given: list[Given]) -> None:
    theirs = bytearray(built_by(client, given, 0))
    theirs[12:16] = bytes(4)  # clients fill in different leader epochs; the broker overwrites it
    assert theirs == built_here(given, 0)


@every_client
@every_codec
@given(RECORDS)
def test_a_clients_batch_is_read_here(client: str, codec: int, given: list[Given]) -> None:
    batch = built_by(client, given, codec)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.compression in (0, codec)  # both omit a compression without gain
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
    assert (header.record_count, header.last_offset) == (len(given), len(given) - 1)
    assert as_records(given) == list(records(batch))


@every_client
@every_codec
@given(RECORDS)
def test_our_batch_is_read_by_the_client(client: str, codec: int, given: list[Given]) -> None:
    batch = READERS[client](built_here(given, codec))
    assert batch.validate_crc()
    parsed = [Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    assert as_records(given) == parsed


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_librdkafka_are_read_here(codec: str) -> None:
    sent: list[Given] = [
        (b"key", b"value" * 500, [("a", b"1"), ("a", b""), ("null", None)], 1_700_000_000_123),
        (None, None, [], 1_700_000_000_000),
        (b"", b"", [("", b"x")], 1_700_000_000_456),
        *((b"%d" % i, b"abc" * i, [], 1_700_000_001_000 + i) for i in range(200)),
    ]
    with CapturingBroker() as broker:
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{broker.port}",
                "compression.type": codec,
                "linger.ms": 50,
                "log_level": 0,
            }
        )
        for key, value, headers, timestamp in sent:
            producer.produce("topic", key=key, value=value, headers=headers, timestamp=timestamp)
        assert producer.flush(20) == 0
    received: list[Given] = []
    codecs = set()
    for data in broker.batches:
        for pos, header in batches(data):
            check_crc(data, pos, header)
            codecs.add(header.compression)
            assert header.max_timestamp >= header.base_timestamp
            received += [(r.key, r.value, r.headers, r.timestamp) for r in records(data, pos)]
    assert sent == received
    assert CODECS[codec] in codecs
