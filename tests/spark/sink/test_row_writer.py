"""Rows of all kinds, written to a real broker and read back from their partitions."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

import attrs
import pyarrow as pa
from kafka.partitioner.default import murmur2

from broker.client import Broker
from broker.client.kafka import LATEST, ClientConfig, Cluster
from broker.client.kafka.errors import UnknownTopicError
from broker.errors import ConfigError
from broker.spark.sink.options import SinkColumns
from broker.spark.sink.row_writer import RowWriter
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import Record, records

_names = itertools.count()
PARTITIONS = 3
COLUMNS = SinkColumns(value=0, key=1, headers=2, topic=3, partition=4)
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
    ]
)


class Row(NamedTuple):
    value: bytes | None
    key: str | None = None
    headers: list[dict[str, Any]] | None = None
    topic: str | None = None
    partition: int | None = None


@pytest.fixture(scope="module")
def cluster(session_broker: Broker) -> Iterator[Cluster]:
    with Cluster(ClientConfig.from_properties({"bootstrap.servers": session_broker.bootstrap_servers})) as client:
        yield client


def new_topic(running: Broker, partitions: int = PARTITIONS) -> str:
    name = f"rows-{next(_names)}"
    running.server.kafka.logs.create_topic(name, partitions, {})
    return name


def write(cluster: Cluster, parts: list[list[Row]], topic: str | None = None, columns: SinkColumns = COLUMNS) -> int:
    with cluster.producer() as producer:
        writer = RowWriter(cluster, producer, columns, topic, first=1)
        for rows in parts:
            writer.add(pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=SCHEMA))
        writer.finish()
        producer.flush()
    return writer.rows


def read(cluster: Cluster, topic: str) -> list[list[Record]]:
    """The records of each partition."""
    by_partition: list[list[Record]] = []
    for partition in cluster.topics([topic])[topic].partitions:
        end = cluster.offsets({(topic, partition): LATEST})[topic, partition]
        fetched = cluster.fetcher(topic, partition, 0, end)
        by_partition.append(
            [record for answer in fetched for pos, _ in batches(answer.data) for record in records(answer.data, pos)]
        )
    return by_partition


def test_batches_fit_the_topics_limit(session_broker: Broker, cluster: Cluster) -> None:
    name = f"rows-{next(_names)}"
    session_broker.server.kafka.logs.create_topic(name, 1, {"max.message.bytes": "20000"})
    rows = [Row(b"%d" % number + b"x" * 190) for number in range(10_000)]
    write(cluster, [rows[first : first + 1000] for first in range(0, len(rows), 1000)], name)
    (written,) = read(cluster, name)
    assert [row.value for row in rows] == [record.value for record in written]
    fetched = cluster.fetcher(name, 0, 0, len(rows))
    sizes = [header.size for answer in fetched for _, header in batches(answer.data)]
    assert 20_000 >= max(sizes)
    assert 3 * sum(sizes) // 20_000 >= len(sizes)  # and not smaller than necessary


HEADERS = st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=5)}))
ROWS = st.builds(
    Row,
    st.binary(max_size=40),
    st.none() | st.text(max_size=8),
    st.none() | HEADERS,
    st.sampled_from(["first", "second"]),
    st.none() | st.integers(0, PARTITIONS - 1),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(parts=st.lists(st.lists(ROWS, max_size=30), max_size=4), batch_size=st.integers(100, 2000))
def test_each_row_is_stored_once_in_order(
    session_broker: Broker, cluster: Cluster, parts: list[list[Row]], batch_size: int
) -> None:
    names = {name: new_topic(session_broker) for name in ("first", "second")}
    numbers = itertools.count()
    parts = [
        [row._replace(topic=names[row.topic or ""], value=b"%d:" % next(numbers) + (row.value or b"")) for row in rows]
        for rows in parts
    ]
    small = Cluster(attrs.evolve(cluster.config, batch_size=batch_size))
    with small:
        assert sum(map(len, parts)) == write(small, parts)
    everything = [row for rows in parts for row in rows]
    for name in names.values():
        of_topic = [row for row in everything if row.topic == name]
        stored = read(cluster, name)
        for partition, there in enumerate(stored):
            # All of them, in the order of the rows.
            values = {record.value for record in there}
            expected = [row for row in of_topic if row.value in values]
            assert [as_record(row) for row in expected] == [
                (stored_record.key, stored_record.value, stored_record.headers) for stored_record in there
            ]
            for row in expected:
                assert partition == place_of(row, partition)
        assert len(of_topic) == sum(map(len, stored))


def as_record(row: Row) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    headers = [(header["key"], header["value"]) for header in row.headers or []]
    return None if row.key is None else row.key.encode(), row.value, headers


def place_of(row: Row, anywhere: int) -> int:
    if row.partition is not None:
        return row.partition
    if row.key is None:
        return anywhere
    return int((murmur2(row.key.encode()) & 0x7FFFFFFF) % PARTITIONS)


def test_free_rows_fill_large_batches_and_all_partitions(session_broker: Broker, cluster: Cluster) -> None:
    topic = new_topic(session_broker)
    with Cluster(attrs.evolve(cluster.config, batch_size=10_000)) as small:
        write(small, [[Row(b"x" * 100)] * 50] * 20, topic)
    sizes = []
    for partition in range(PARTITIONS):
        end = cluster.offsets({(topic, partition): LATEST})[topic, partition]
        for fetched in cluster.fetcher(topic, partition, 0, end):
            sizes.append([header.record_count for _, header in batches(fetched.data)])
    assert PARTITIONS == len(sizes)
    assert all(sum(counts) / len(counts) >= 40 for counts in sizes), sizes


def test_option_precedes_the_column(session_broker: Broker, cluster: Cluster) -> None:
    topic = new_topic(session_broker)
    write(cluster, [[Row(b"a", topic="not-this-one"), Row(b"b")]], topic)
    assert [b"a", b"b"] == sorted(record.value or b"" for there in read(cluster, topic) for record in there)


def test_null_value_stays_null(session_broker: Broker, cluster: Cluster) -> None:
    topic = new_topic(session_broker, 1)
    write(cluster, [[Row(None, "key")]], topic)
    assert [[(b"key", None)]] == [[(record.key, record.value) for record in there] for there in read(cluster, topic)]


def test_row_without_topic_is_an_error(session_broker: Broker, cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="A row has no topic: set the option topic"):
        write(cluster, [[Row(b"a", topic=new_topic(session_broker)), Row(b"b")]])


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".", "ü", "x" * 250])
def test_row_with_invalid_topic_is_named(session_broker: Broker, cluster: Cluster, name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"The topic of a row is {re.escape(repr(name))}, which no topic can be called"
    ):
        write(cluster, [[Row(b"a", topic=new_topic(session_broker)), Row(b"b", topic=name)]])


@pytest.mark.parametrize("partition", [-1, PARTITIONS])
def test_missing_partition_is_named(session_broker: Broker, cluster: Cluster, partition: int) -> None:
    topic = new_topic(session_broker)
    with pytest.raises(
        ConfigError,
        match=f"A row is for partition {partition} of '{topic}', which has partitions 0 to 2: leave out the column",
    ):
        write(cluster, [[Row(b"a", partition=1), Row(b"b", partition=partition)]], topic)


def test_topic_that_broker_does_not_create_is_named() -> None:
    with Broker(auto_create_topics_enable=False) as running:
        hasty = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 300}  # gives up after 3 s
        config = ClientConfig.from_properties({"bootstrap.servers": running.bootstrap_servers} | hasty)
        with Cluster(config) as cluster, pytest.raises(UnknownTopicError, match="'nowhere'"):
            write(cluster, [[Row(b"a")]], "nowhere")


def test_compressed(session_broker: Broker, cluster: Cluster) -> None:
    for name in ("gzip", "snappy", "lz4", "zstd"):
        topic = new_topic(session_broker, 1)
        with Cluster(attrs.evolve(cluster.config, compression_type=name)) as compressing:
            write(compressing, [[Row(b"x" * 1000)] * 10], topic)
        assert [b"x" * 1000] * 10 == [record.value for record in read(cluster, topic)[0]]
