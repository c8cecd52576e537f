import mmap
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from broker.client import Broker
from broker.client.kafka import Cluster
from broker.client.kafka.columns.batch_builder import Built, build, partitions_for
from broker.client.kafka.errors import KafkaClientError
from protocol.kafka.records.batch import HEADER_SIZE, check_crc, read_header, set_producer
from protocol.kafka.records.records import Record, records

NOW = 1_700_000_000_000
Header = tuple[str, bytes | None]
Row = tuple[bytes | None, bytes | None, list[Header], int | None]

FIELD = st.none() | st.binary(max_size=9) | st.sampled_from([b"x" * 62, b"x" * 63, b"x" * 64, b"x" * 8191, b"x" * 8192])
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3)
TIMES = st.none() | st.integers(NOW - 10, NOW + 9000) | st.integers(-1, 2**62)
ROWS = st.lists(st.tuples(FIELD, FIELD, HEADERS, TIMES), max_size=8)
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BINARY = st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])


def columns(rows: list[Row], kind: pa.DataType) -> dict[str, pa.Array]:
    return {
        "keys": pa.array([row[0] for row in rows], kind),
        "values": pa.array([row[1] for row in rows], kind),
        "headers": pa.array([[{"key": k, "value": v} for k, v in row[2]] for row in rows], HEADERS_TYPE),
        "timestamps_ms": pa.array([row[3] for row in rows], pa.int64()),
    }


def read(built: list[Built]) -> list[Record]:
    """The records of ``built``, their offsets from 0 on without a gap."""
    decoded: list[Record] = []
    for batch in built:
        data = bytes(batch.data)
        header = read_header(data)
        check_crc(data, 0, header)
        assert (header.size, header.record_count, header.last_offset) == (len(data), batch.count, batch.count - 1)
        assert (header.partition_leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (
            -1,
        ) * 4
        these = list(records(data))
        assert [(r.offset, header.max_timestamp) for r in these] == [
            (i, max(r.timestamp for r in these)) for i in range(batch.count)
        ]
        decoded += [record._replace(offset=len(decoded) + record.offset) for record in these]
    return decoded


def expected(rows: list[Row]) -> list[Record]:
    return [
        Record(i, NOW if time is None else time, key, value, headers)
        for i, (key, value, headers, time) in enumerate(rows)
    ]


@given(
    ROWS,
    BINARY,
    st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
    st.sampled_from([1, 200, 20_000, 1_000_000]),
)
def test_built_records_are_read_back(rows: list[Row], kind: pa.DataType, codec: str, size: int) -> None:
    built = build(**columns(rows, kind), now_ms=NOW, compression=codec, max_batch_bytes=size)
    assert expected(rows) == read(built)
    assert [] == [batch.count for batch in built if len(batch.data) > size and batch.count > 1]


@given(st.lists(ROWS, max_size=5), st.integers(0, 3), BINARY)
def test_chunks_and_slices_are_whole_columns(chunks: list[list[Row]], skip: int, kind: pa.DataType) -> None:
    rows = [row for chunk in chunks for row in chunk]
    whole: dict[str, Any] = {}
    for name in columns([], kind):
        made = [columns(chunk, kind)[name] for chunk in chunks]
        whole[name] = pa.chunked_array(made, columns([], kind)[name].type).slice(skip)
    assert expected(rows[skip:]) == read(build(**whole, now_ms=NOW))
    assert expected(rows[skip:]) == read(
        build(**{n: c.slice(skip) for n, c in columns(rows, kind).items()}, now_ms=NOW)
    )


@given(st.lists(st.text(max_size=80), min_size=1), st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
def test_strings_are_written_as_utf_8(texts: list[str], kind: pa.DataType) -> None:
    values = pa.array(texts, kind)
    actual = [(record.key, record.value, record.timestamp) for record in read(build(values, values, now_ms=NOW))]
    assert [(text.encode(), text.encode(), NOW) for text in texts] == actual


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200), st.integers(61, 3000))
def test_batches_are_as_large_as_allowed(lengths: list[int], size: int) -> None:
    built = build(pa.array([bytes(length) for length in lengths]), now_ms=NOW, max_batch_bytes=size)
    assert lengths == [len(record.value or b"") for record in read(built)]
    sizes = [len(batch.data) for batch in built]
    assert [] == [batch.count for batch in built if len(batch.data) > size and batch.count > 1]
    # The next record would not have fitted into the batch, except for the few bytes by which sizes are overestimated.
    slack = 4
    after = [len(two.data) - HEADER_SIZE if two.count == 1 else 14 for two in built[1:]]
    assert [] == [
        i for i, more in enumerate(after) if sizes[i] + more + slack * (built[i].count + 1) <= size and more > 14
    ]


def test_offsets_and_times_count_from_each_batch() -> None:
    times = np.arange(20_000) * 1000 + NOW
    built = build(pa.array([b"x"] * 20_000), timestamps_ms=times, now_ms=0, max_batch_bytes=100_000)
    assert times.tolist() == [record.timestamp for record in read(built)]
    assert [times[sum(batch.count for batch in built[:i])] for i in range(len(built))] == [
        read_header(batch.data).base_timestamp for batch in built
    ]


def test_no_rows_give_no_batches() -> None:
    assert [] == build(pa.array([], pa.binary()), pa.array([], pa.string()), now_ms=NOW)
    assert [] == build(pa.chunked_array([], pa.binary()), now_ms=NOW)


def test_incompressible_batch_is_not_compressed() -> None:
    values = pa.array([np.random.default_rng(1).bytes(1000)])
    (built,) = build(values, now_ms=NOW, compression="gzip")
    assert 0 == read_header(built.data).compression


def test_record_may_have_very_many_headers() -> None:
    rows: list[Row] = [(None, b"v", [(f"h{i}", b"x") for i in range(count)], None) for count in (0, 63, 64, 9000)]
    assert expected(rows) == read(build(**columns(rows, pa.binary()), now_ms=NOW))


def test_headers_of_no_record_cost_nothing() -> None:
    values = pa.array([b"v"] * 3)
    none = pa.array([None, [], None], HEADERS_TYPE)
    assert build(values, now_ms=NOW)[0].data == build(values, headers=none, now_ms=NOW)[0].data


def test_slice_far_within_large_column_is_written() -> None:
    # 3 GiB of untouched zeros.
    data = mmap.mmap(-1, (3 << 30) + 8)
    offsets = pa.py_buffer(np.array([0, 3 << 30, (3 << 30) + 1, (3 << 30) + 3], np.int64))
    values = pa.Array.from_buffers(pa.large_binary(), 3, [None, offsets, pa.py_buffer(data)]).slice(1)
    assert [b"\x00", b"\x00\x00"] == [record.value for record in read(build(values, now_ms=NOW))]


def test_header_without_name_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"x"}]], HEADERS_TYPE)
    with pytest.raises(KafkaClientError, match="A header has no name"):
        build(pa.array([b"v"]), headers=headers, now_ms=NOW)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"values": pa.array([1])}, "values must be binary or string, not int64"),
        ({"values": pa.array([b"v"]), "keys": pa.array([1.5])}, "keys must be binary or string, not double"),
        ({"values": pa.array([b"v"]), "headers": pa.array(["h"])}, "headers must be list<struct"),
    ],
)
def test_columns_of_other_types_are_refused_by_name(given: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build(**given, now_ms=NOW)


def test_columns_must_be_equally_long() -> None:
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        build(pa.array([b"a", b"b"]), pa.array([b"k"]), now_ms=NOW)


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="no codec is called 'brotli': there are none, gzip, snappy, lz4, zstd"):
        build(pa.array([b"a"]), now_ms=NOW, compression="brotli")


# -- the producer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [False, True])
def test_stamp_identifies_the_producer(transactional: bool) -> None:
    (built,) = build(pa.array([b"a"] * 99), now_ms=NOW, compression="lz4")
    set_producer(built.data, 77, 5, 1234, transactional)
    header = read_header(built.data)
    check_crc(built.data, 0, header)
    actual = (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
        header.compression,
    )
    assert (77, 5, 1234, transactional, 3) == actual
    set_producer(built.data, 77, 5, 1234, False)
    assert not read_header(built.data).is_transactional


# -- partitions ---------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 50))
def test_keys_go_to_the_partitions_of_kafkas_clients(keys: list[bytes], partitions: int) -> None:
    expected = [(kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert expected == partitions_for(pa.array(keys, pa.binary()), partitions).tolist()
    assert expected == [(aiokafka_murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]


@given(st.lists(st.none() | st.text(max_size=9), max_size=30), st.integers(0, 3), st.integers(1, 3))
def test_keys_may_be_text_in_chunks_and_slices(keys: list[str | None], skip: int, chunks: int) -> None:
    expected = [aiokafka_murmur2((key or "").encode()) & 0x7FFFFFFF for key in keys]
    parts = [pa.array(keys[i::chunks], pa.large_string()).slice(skip) for i in range(chunks)]
    actual = partitions_for(pa.chunked_array(parts, pa.large_string()), 2**31 - 1)
    assert [hash_ % (2**31 - 1) for i in range(chunks) for hash_ in expected[i::chunks][skip:]] == actual.tolist()


def test_key_may_be_very_long() -> None:
    keys = [b"k" * length for length in (0, 3, 100_003, 7)]
    assert [aiokafka_murmur2(key) & 0x7FFFFFFF for key in keys] == partitions_for(pa.array(keys), 2**31 - 1).tolist()


def test_the_layout_is_kafkas() -> None:
    (built,) = build(pa.array([b"value"]), pa.array([b"key"]), now_ms=7)
    assert struct.pack(">q", 7) == built.data[27:35]
    assert b"\x1c\x00\x00\x00\x06key\x0avalue\x00" == built.data[HEADER_SIZE:]


# -- real clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_real_consumer_reads_built_batches(running: Broker, cluster: Cluster, topic: str, codec: str) -> None:
    rows: list[Row] = [
        (b"key" * (i % 3) or None, b"v" * i, [("h", b"x"), ("n", None)][: i % 3], NOW + i) for i in range(200)
    ]
    with cluster.producer() as producer:
        for batch in build(**columns(rows, pa.binary()), now_ms=NOW, compression=codec, max_batch_bytes=5000):
            producer.send(topic, 0, batch.data, batch.count)
        producer.flush()
    assert expected(rows) == consumed(running, topic, len(rows))


def consumed(running: Broker, topic: str, count: int) -> list[Record]:
    """Read them with librdkafka."""
    consumer = Consumer({"bootstrap.servers": running.bootstrap_servers, "group.id": "any"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        records: list[Record] = []
        while len(records) < count:
            for message in consumer.consume(count - len(records), 10):
                assert not message.error()
                headers = list(message.headers() or ())
                records.append(
                    Record(message.offset(), message.timestamp()[1], message.key(), message.value(), headers)
                )
        return records
    finally:
        consumer.close()
