"""Rows written to topics by real Spark and read back by another client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[..., None]


@pytest.fixture
def write(topics: Topics) -> Write:
    """``write(df, topic=...)``: a batch write to the session's broker."""

    def save(df: "DataFrame", **options: str) -> None:
        given = {"kafka.bootstrap.servers": topics.bootstrap_servers} | options
        df.write.format("broker").options(**given).save()

    return save


def messages(topics: Topics, topic: str, partitions: int = 2) -> list[Message]:
    """All committed messages."""
    settings: dict[str, Any] = {
        "bootstrap.servers": topics.bootstrap_servers,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    received = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(30)
        assert message is not None, received
        error = message.error()
        if error is None:
            received.append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
    consumer.close()
    return received


def seen(topics: Topics, topic: str) -> list[str]:
    return sorted((message.value() or b"").decode() for message in messages(topics, topic))


def sentence_of(failure: pytest.ExceptionInfo[Exception]) -> str:
    return str(failure.value)


# Batch ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_every_column_arrives(spark: "SparkSession", topics: Topics, write: Write, guarantee: str) -> None:
    first, second = topics.make(), topics.make()
    rows: list[Any] = [
        (b"k", b"v", [("h", b"1"), ("h", None)], first, 1),
        (None, b"w", None, second, 0),
        (b"gone", None, [], first, 0),
    ]
    schema = "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int"
    write(spark.createDataFrame(rows, schema), deliveryGuarantee=guarantee)
    actual = [
        (message.key(), message.value(), message.headers() or [], message.topic(), message.partition())
        for topic in (first, second)
        for message in messages(topics, topic)
    ]
    expected = [(key, value, headers or [], topic, partition) for key, value, headers, topic, partition in rows]
    assert sorted(expected, key=repr) == sorted(actual, key=repr)


def test_as_sql(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.make()
    options = f"'kafka.bootstrap.servers' '{topics.bootstrap_servers}', topic '{topic}', subscribe '{topic}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sink_{topic.replace('-', '_')} USING broker OPTIONS ({options})")
    df = spark.sql("SELECT 'a' AS value UNION ALL SELECT 'b'")
    df.write.format("broker").options(**{"kafka.bootstrap.servers": topics.bootstrap_servers, "topic": topic}).mode(
        "append"
    ).save()
    rows = spark.sql(f"SELECT cast(value AS string) AS v FROM sink_{topic.replace('-', '_')} ORDER BY v").collect()
    assert ["a", "b"] == [row.v for row in rows]


def test_repeated_task_is_seen_once(spark: "SparkSession", topics: Topics, write: Write, tmp_path: Path) -> None:
    """local[2,3]: the first try of a task dies after it has written most of its rows."""
    topic = topics.make()
    marker = tmp_path / "tried"

    def flaky(batches: "Iterator[Any]") -> "Iterator[Any]":
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("dies once")

    rows = spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) as value").mapInArrow(flaky, "value string")
    write(rows, topic=topic, deliveryGuarantee="exactly-once", **{"kafka.batch.size": "1000"})
    assert marker.exists()
    assert sorted(map(str, range(2000))) == seen(topics, topic)


def test_failed_job_shows_nothing(spark: "SparkSession", topics: Topics, write: Write) -> None:
    topic = topics.make()

    def fails(batches: "Iterator[Any]") -> "Iterator[Any]":
        yield from batches
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            raise RuntimeError("always dies")

    rows = spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) as value").mapInArrow(fails, "value string")
    with pytest.raises(Exception, match="always dies"):
        write(rows, topic=topic, deliveryGuarantee="exactly-once")
    assert [] == seen(topics, topic)


@pytest.mark.parametrize(
    ("options", "sql", "sentence"),
    [
        ({"topic": "t"}, "SELECT 1 AS value", "The column 'value' must be string or binary, not int: cast it."),
        ({"topic": "t"}, "SELECT 'a' AS key", "There must be a column 'value' to write; the columns are: key."),
        ({}, "SELECT 'a' AS value", "Say where to write: set the option topic, or add a column 'topic'."),
        ({}, "SELECT 'a' AS value, cast(NULL AS string) AS topic", "A row has no topic"),
        ({"topic": "t"}, "SELECT 'a' AS value, 99 AS partition", "A row is for partition 99 of 't'"),
        ({"topic": "t", "kafka.max.request.size": "1000"}, "SELECT repeat('x', 2000) AS value", "A record for t-"),
        (
            {"topic": "t", "kafka.bootstrap.servers": "localhost:1", "kafka.socket.connection.setup.timeout.ms": "100"},
            "SELECT 'a' AS value",
            "No broker answers at localhost:1: connection refused.",
        ),
    ],
)
def test_error_is_one_sentence(
    spark: "SparkSession", topics: Topics, write: Write, options: dict[str, str], sql: str, sentence: str
) -> None:
    with pytest.raises(Exception) as failure:  # Spark has several classes, all with our sentence
        write(spark.sql(sql), **options)
    assert sentence in sentence_of(failure)


def test_topic_is_appended_to_without_a_mode_too(spark: "SparkSession", topics: Topics) -> None:
    """As with Spark's Kafka sink: its modes are append and errorifexists, Spark's default."""
    topic = topics.make()
    options = {"kafka.bootstrap.servers": topics.bootstrap_servers, "topic": topic}
    rows = spark.sql("SELECT 'a' AS value")
    rows.write.format("broker").options(**options).save()
    rows.write.format("BROKER").options(**options).mode("error").save()
    rows.write.mode("ErrorIfExists").save(format="broker", **options)
    rows.write.save(format="broker", mode="append", **options)
    assert 4 * ["a"] == seen(topics, topic)


@pytest.mark.parametrize("mode", ["overwrite", "ignore"])
def test_topic_is_not_overwritten(spark: "SparkSession", topics: Topics, mode: str) -> None:
    from pyspark.errors import AnalysisException

    options = {"kafka.bootstrap.servers": topics.bootstrap_servers, "topic": "t"}
    writer = spark.sql("SELECT 'a' AS value").write.format("broker").options(**options)
    with pytest.raises(AnalysisException, match=f"cannot be written in the mode '{mode}', only appended to"):
        writer.mode(mode).save()
    with pytest.raises(AnalysisException, match=f"cannot be written in the mode '{mode}', only appended to"):
        writer.save(mode=mode)


def test_sql_cannot_overwrite_a_topic_either(spark: "SparkSession", topics: Topics) -> None:
    options = f"`kafka.bootstrap.servers` '{topics.bootstrap_servers}', topic 't'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW overwritten USING broker OPTIONS ({options})")
    with pytest.raises(Exception, match="cannot be overwritten, only appended to"):
        spark.sql("INSERT OVERWRITE overwritten SELECT X'61', X'62', 'c', 1, 2L, now(), 1").collect()


def test_other_formats_keep_their_modes(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    rows = spark.sql("SELECT 'a' AS value")
    rows.write.save(str(tmp_path / "rows"), "parquet")
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        rows.write.format("parquet").save(str(tmp_path / "rows"))
    rows.write.mode("overwrite").parquet(str(tmp_path / "rows"))
    assert 1 == spark.read.parquet(str(tmp_path / "rows")).count()


# Streams --------------------------------------------------------------------------------------------------------------


def run(df: "DataFrame", checkpoint: Path, topics: Topics, **options: str) -> None:
    """Write all rows in micro-batches."""
    given = {"kafka.bootstrap.servers": topics.bootstrap_servers, "checkpointLocation": str(checkpoint)} | options
    query = df.writeStream.format("broker").options(**given).trigger(availableNow=True).start()
    query.awaitTermination(240)
    assert query.exception() is None


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_stream_runs_from_topic_to_topic(
    topics: Topics, stream: "Callable[..., DataFrame]", tmp_path: Path, guarantee: str
) -> None:
    source, target = topics.fill(2, 30), topics.make()
    rows = stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="25").select("key", "value")
    run(rows, tmp_path, topics, topic=target, deliveryGuarantee=guarantee)
    assert sorted(f"{partition}:{number}" for partition in range(2) for number in range(30)) == seen(topics, target)


def test_replayed_batch_is_seen_once(topics: Topics, stream: "Callable[..., DataFrame]", tmp_path: Path) -> None:
    source, target = topics.fill(2, 10), topics.make()
    rows = stream(subscribe=source, startingOffsets="earliest").select("key", "value")
    run(rows, tmp_path, topics, topic=target)
    # As if Spark had been killed between our commit and its own entry of it.
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    topics.put(source, 0, range(10, 15))
    run(rows, tmp_path, topics, topic=target)
    expected = [f"0:{number}" for number in range(15)] + [f"1:{number}" for number in range(10)]
    assert sorted(expected) == seen(topics, target)
