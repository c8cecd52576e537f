"""Batch reads: planned on a real broker for each option, and through Spark where Spark takes part."""

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import ConfigError
from broker.spark.source.batch_source import BatchReader, spark_schema
from broker.spark.source.options import SourceOptions
from broker.spark.source.resolve import DataLossError
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]
Ranges = dict[int, tuple[int, int]]


def plan(topics: Topics, **options: Any) -> list[tuple[str, int, int, int]]:
    given = {"kafka.bootstrap.servers": topics.bootstrap_servers} | options
    parsed = SourceOptions.parse(given, streaming=False)
    pieces = BatchReader(parsed, spark_schema(parsed.columns)).partitions()
    return [(piece.range.topic, piece.range.partition, piece.range.start, piece.range.end) for piece in pieces]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def orders(topics: Topics) -> str:
    """Offsets 0 to 5 in partition 0, 0 to 2 in partition 1; the record at offset n is of 1000 + n ms."""
    name = topics.make(2)
    topics.put(name, 0, range(6))
    topics.put(name, 1, range(3))
    return name


# Start and end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({}, {0: (0, 6), 1: (0, 3)}),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, {0: (0, 6), 1: (0, 3)}),
        ({"startingOffsets": '{"T": {"0": 2, "1": -2}}'}, {0: (2, 6), 1: (0, 3)}),
        ({"endingOffsets": '{"T": {"0": 4, "1": -1}}'}, {0: (0, 4), 1: (0, 3)}),
        ({"startingOffsets": '{"T": {"0": 4, "1": 3}}', "endingOffsets": '{"T": {"0": 4, "1": 3}}'}, {}),
        ({"startingOffsets": "-2 offsets"}, {0: (4, 6), 1: (1, 3)}),
        ({"startingOffsets": "-4 offsets"}, {0: (2, 6), 1: (0, 3)}),
        ({"startingOffsets": "-0 offsets"}, {}),
        ({"startingTimestamp": "1002"}, {0: (2, 6), 1: (2, 3)}),
        ({"startingTimestamp": "1970-01-01T00:00:01.001Z"}, {0: (1, 6), 1: (1, 3)}),
        ({"startingTimestamp": "1004", "startingOffsetsByTimestampStrategy": "latest"}, {0: (4, 6)}),
        ({"startingTimestamp": "-10 minutes"}, {}),  # the records are of 1970
        ({"startingOffsetsByTimestamp": '{"T": {"0": 1003, "1": 0}}'}, {0: (3, 6), 1: (0, 3)}),
        ({"endingTimestamp": "1001"}, {0: (0, 1), 1: (0, 1)}),
        ({"endingTimestamp": "1004"}, {0: (0, 4), 1: (0, 3)}),
        ({"endingOffsetsByTimestamp": '{"T": {"0": 1005, "1": 1000}}'}, {0: (0, 5)}),
        ({"startingTimestamp": "1002", "endingTimestamp": "1001"}, {}),
        ({"endingTimestamp": "-1 day"}, {0: (0, 6), 1: (0, 3)}),
    ],
)
def test_start_and_end(topics: Topics, orders: str, options: dict[str, str], ranges: Ranges) -> None:
    named = {name: value.replace("T", orders) if "{" in value else value for name, value in options.items()}
    assert ranges == {partition: (start, end) for _, partition, start, end in plan(topics, subscribe=orders, **named)}


def test_topics_are_named_in_three_ways(topics: Topics, orders: str) -> None:
    other = topics.fill(1, 2)
    everything = [(orders, 0, 0, 6), (orders, 1, 0, 3), (other, 0, 0, 2)]
    assert sorted(everything) == plan(topics, subscribe=f"{orders},{other}")
    assert sorted(everything) == plan(topics, subscribePattern=f"({orders}|{other})")
    assert [(orders, 0, 0, 6)] == plan(topics, assign=f'{{"{orders}": [0]}}')
    assert [] == plan(topics, subscribePattern="nothing-is-called-so")
    assert [] == plan(topics, subscribePattern=orders[1:])  # the whole name has to match


def test_long_partitions_are_cut(topics: Topics, orders: str) -> None:
    pieces = plan(topics, subscribe=orders, minPartitions="4")
    assert [(0, 0, 2), (0, 2, 4), (0, 4, 6), (1, 0, 3)] == [piece[1:] for piece in pieces]
    pieces = plan(topics, subscribe=orders, maxRecordsPerPartition="2")
    assert [(0, 0, 2), (0, 2, 4), (0, 4, 6), (1, 0, 1), (1, 1, 3)] == [piece[1:] for piece in pieces]


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"startingOffsets": '{"T": {"0": 2}}'}, ConfigError, "startingOffsets must name every partition .* lacks T-1"),
        (
            {"startingOffsets": '{"T": {"0": 2, "1": 0, "2": 0}}'},
            ConfigError,
            "startingOffsets names T-2, which is not",
        ),
        ({"startingTimestamp": "1004"}, ConfigError, "T-1 has no record from time 1004 on: choose an earlier start"),
        (
            {"startingOffsets": '{"T": {"0": 4, "1": 1}}', "endingOffsets": '{"T": {"0": 3, "1": 1}}'},
            ConfigError,
            r"startingOffsets \(4\) is after endingOffsets \(3\) for T-0",
        ),
        (
            {"startingOffsets": '{"T": {"0": 7, "1": 1}}'},
            DataLossError,
            r"startingOffsets has 7 for T-0, which goes from 0 to 6 \(exclusive\)\. .* set failOnDataLoss to false\.$",
        ),
        ({"endingOffsets": '{"T": {"0": 7, "1": 1}}'}, DataLossError, "endingOffsets has 7 for T-0"),
    ],
)
def test_invalid_option_is_one_sentence(
    topics: Topics, orders: str, options: dict[str, str], error: type[Exception], sentence: str
) -> None:
    named = {name: value.replace("T", orders) if "{" in value else value for name, value in options.items()}
    with pytest.raises(error, match=sentence.replace("T-", f"{orders}-")):
        plan(topics, subscribe=orders, **named)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "missing"}, "^There is no topic 'missing' at 127.0.0.1:"),
        ({"assign": '{"missing": [0]}'}, "^There is no topic 'missing' at "),
        ({"assign": '{"T": [0, 5]}'}, "^There is no partition 5 of topic 'T' at "),
    ],
)
def test_missing_topic_is_one_sentence(topics: Topics, orders: str, options: dict[str, str], sentence: str) -> None:
    named = {name: value.replace("T", orders) for name, value in options.items()}
    with pytest.raises(ConfigError, match=sentence.replace("'T'", f"'{orders}'")):
        plan(topics, **named)


def test_deleted_offsets_are_error_unless_loss_is_allowed(topics: Topics) -> None:
    name = topics.fill(1, 6)
    topics.delete_before(name, 0, 4)
    asked = {"subscribe": name, "startingOffsets": f'{{"{name}": {{"0": 1}}}}'}
    with pytest.raises(DataLossError, match=rf"^startingOffsets has 1 for {name}-0, which goes from 4 to 6 "):
        plan(topics, **asked)
    assert [(name, 0, 4, 6)] == plan(topics, failOnDataLoss="false", **asked)
    assert [(name, 0, 4, 6)] == plan(topics, subscribe=name, startingOffsets="-5 offsets")


# Through Spark -------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_sparks_kafka_connector(read: Read, topics: Topics) -> None:
    name = topics.make(1)
    topics.send(name, 0, [(b"k", b"v", 1500, [("a", b"1"), ("a", None)]), (None, None, 1501, [])])
    rows = read(subscribe=name, includeHeaders="true").orderBy("offset").collect()
    at = [datetime.datetime(1970, 1, 1, 0, 0, 1, ms * 1000) for ms in (500, 501)]
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert [
        dict(zip(columns, (b"k", b"v", name, 0, 0, at[0], 0, [("a", b"1"), ("a", None)]), strict=True)),
        dict(zip(columns, (None, None, name, 0, 1, at[1], 0, None), strict=True)),
    ] == [row.asDict() for row in rows]


def test_only_requested_columns_are_read(read: Read, orders: str, spark: "SparkSession") -> None:
    few = read(subscribe=orders, columns="value,offset", endingOffsets=f'{{"{orders}": {{"0": 1, "1": 0}}}}')
    assert ["value", "offset"] == few.columns
    assert [(b"0:0", 0)] == [tuple(row) for row in few.collect()]


def test_pieces_are_tasks_without_overlap(read: Read, orders: str) -> None:
    from pyspark.sql.functions import spark_partition_id

    rows = read(subscribe=orders, minPartitions="4", columns="value").withColumn("task", spark_partition_id()).collect()
    assert {0, 1, 2, 3} == {row.task for row in rows}
    assert sorted([f"0:{n}" for n in range(6)] + [f"1:{n}" for n in range(3)]) == sorted(
        row.value.decode() for row in rows
    )


def test_empty_topic_has_no_rows(read: Read, topics: Topics) -> None:
    assert [] == read(subscribe=topics.make(2)).collect()


def test_filters_are_pushed_down_on_request(read: Read, orders: str, spark: "SparkSession") -> None:
    wanted = "partition = 0 and offset >= 2 and offset < 5 and timestamp > timestamp'1970-01-01 00:00:01.002'"
    everywhere = read(subscribe=orders, columns="partition,offset,timestamp").where(wanted)
    without = [(row.partition, row.offset) for row in everywhere.collect()]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = read(subscribe=orders, columns="partition,offset,timestamp").where(wanted)
        plan_ = pushed._jdf.queryExecution().executedPlan().toString()
        assert [(0, 3), (0, 4)] == without == [(row.partition, row.offset) for row in pushed.collect()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    # Spark filters only times again, because producers set them.
    (condition,) = [line for line in plan_.splitlines() if "Filter (" in line or "Filter(" in line]
    assert "timestamp" in condition
    assert "offset" not in condition


def test_sql_views_and_tables(spark: "SparkSession", topics: Topics, orders: str) -> None:
    options = f"`kafka.bootstrap.servers` '{topics.bootstrap_servers}', subscribe '{orders}'"
    spark.sql(f"CREATE TEMPORARY VIEW orders_view USING broker OPTIONS ({options}, columns 'value,partition')")
    spark.sql(f"CREATE TABLE orders_table (value BINARY, offset BIGINT) USING broker OPTIONS ({options})")
    try:
        counted = spark.sql("SELECT count(*) FROM orders_view WHERE partition = 1").collect()
        assert [(3,)] == [tuple(row) for row in counted]
        # Spark forgets the options of a table.
        given = options.replace("` '", "` = '").replace("subscribe '", "subscribe = '")
        last = spark.sql(f"SELECT decode(value, 'utf-8') FROM orders_table WITH ({given}) WHERE offset = 5").collect()
        assert [("0:5",)] == [tuple(row) for row in last]
        with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW, or say it in each query"):
            spark.sql("SELECT * FROM orders_table").collect()
    finally:
        spark.sql("DROP VIEW orders_view")
        spark.sql("DROP TABLE orders_table")


def test_aborted_records_are_invisible_under_read_committed(read: Read, topics: Topics) -> None:
    name = topics.fill(1, 2)
    topics.send_and_abort(name, 0, [b"aborted"] * 3)
    topics.put(name, 0, [2])
    committed = read(subscribe=name, columns="value", **{"kafka.isolation.level": "read_committed"}).collect()
    assert [b"0:0", b"0:1", b"0:2"] == [row.value for row in committed]
    every = read(subscribe=name, columns="value").collect()
    assert [b"0:0", b"0:1", b"aborted", b"aborted", b"aborted", b"0:2"] == [row.value for row in every]


def test_failed_task_runs_again_from_its_beginning(read: Read, orders: str) -> None:
    import pyarrow as pa
    from pyspark import TaskContext

    def fail_the_first_time(batches: Any) -> Any:
        for batch in batches:
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails after it has read")
            yield pa.RecordBatch.from_arrays([batch.column("value")], ["value"])

    rows = read(subscribe=orders, columns="value").mapInArrow(fail_the_first_time, "value binary").collect()
    assert sorted([f"0:{n}" for n in range(6)] + [f"1:{n}" for n in range(3)]) == sorted(
        row.value.decode() for row in rows
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "There is no option 'startingoffset': did you mean startingOffsets?"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"columns": "price"}, "columns may name key, value, topic"),
    ],
)
def test_spark_error_has_the_sentence(read: Read, orders: str, options: dict[str, str], sentence: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        read(subscribe=orders, **options).collect()
    assert sentence in str(raised.value)


def test_missing_topic_is_reported_by_spark(read: Read) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="There is no topic 'missing' at"):
        read(subscribe="missing").collect()
