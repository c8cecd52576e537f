"""A task's reading from a real broker: its rows, repeated reads, and a broker that stops in between."""

import pickle
import threading
import time
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from broker.client import Broker
from broker.client.kafka import ClientConfig
from broker.client.kafka.columns import columns
from broker.spark.source import reading
from broker.spark.source.reading import OffsetRange, ReadSettings, Slice
from broker.spark.source.resolve import DataLossError
from tests.spark.topics import Topics

RECORDS = 3000
SIZE = 2000  # 6 MB: several fetches of 1 MiB


def slice_of(bootstrap_servers: str, name: str, start: int, end: int, **more: Any) -> Slice:
    properties = {"bootstrap.servers": bootstrap_servers, "retry.backoff.ms": 20, "retry.backoff.max.ms": 100} | more
    settings = ReadSettings(ClientConfig.from_properties(properties), ("value", "offset"), True, 60_000)
    return pickle.loads(pickle.dumps(Slice(OffsetRange(name, 0, start, end), settings)))  # type: ignore[no-any-return]


def fill(topics: Topics) -> str:
    name = topics.make(1)
    topics.send(name, 0, [(None, b"%08d" % n + b"." * (SIZE - 8), 1000, []) for n in range(RECORDS)])
    return name


def test_batches_have_a_megabyte_and_are_repeatable(topics: Topics) -> None:
    name = fill(topics)
    task = slice_of(topics.bootstrap_servers, name, 5, RECORDS - 5)
    first, second = list(reading.read(task)), list(reading.read(task))
    assert first == second
    assert all(batch.schema.equals(columns.schema(("value", "offset"))) for batch in first)
    assert list(range(5, RECORDS - 5)) == [offset for batch in first for offset in batch.column("offset").to_pylist()]
    assert [b"%08d" % n for n in range(5, RECORDS - 5)] == [
        value[:8] for batch in first for value in batch.column("value").to_pylist()
    ]
    assert all(batch.nbytes <= 2 << 20 for batch in first)
    assert len(first) <= 20


def test_abandoned_read_can_begin_again(topics: Topics) -> None:
    name = fill(topics)
    task = slice_of(topics.bootstrap_servers, name, 0, RECORDS)
    for _ in range(3):
        given_up = reading.read(task)
        assert 0 == next(given_up).column("offset")[0].as_py()
        given_up.close()  # type: ignore[attr-defined]
    assert RECORDS == sum(batch.num_rows for batch in reading.read(task))


def test_broker_may_restart_within_a_read(restarting: Broker) -> None:
    topics = Topics(restarting.bootstrap_servers)
    name = fill(topics)
    running = reading.read(slice_of(restarting.bootstrap_servers, name, 0, RECORDS))
    seen = next(running).column("offset").to_pylist()
    restarting.stop()

    def come_back() -> None:
        time.sleep(0.5)
        restarting.start()

    coming = threading.Thread(target=come_back)
    coming.start()
    try:
        for batch in running:
            seen += batch.column("offset").to_pylist()
    finally:
        coming.join()
    assert list(range(RECORDS)) == seen


def test_absent_broker_is_named(restarting: Broker) -> None:
    topics = Topics(restarting.bootstrap_servers)
    name = fill(topics)
    running = reading.read(slice_of(restarting.bootstrap_servers, name, 0, RECORDS, **{"default.api.timeout.ms": 3000}))
    next(running)
    address = restarting.bootstrap_servers
    restarting.stop()
    with pytest.raises(Exception, match=address):
        list(running)


def test_empty_partition_of_spark_gives_no_rows() -> None:
    assert [] == list(reading.read(InputPartition(None)))


def test_deleted_topic_is_a_loss(topics: Topics) -> None:
    name = topics.fill(1, 2)
    task = slice_of(topics.bootstrap_servers, name, 0, 2)
    assert 2 == sum(batch.num_rows for batch in reading.read(task))
    topics.delete(name)
    with pytest.raises(DataLossError, match=rf"^{name}-0 was deleted before records 0 to 1 were read\."):
        list(reading.read(task))
