"""The stream source on a real broker: called as Spark calls it, and in real queries with a checkpoint."""

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.errors import ConfigError
from broker.spark.source.batch_source import spark_schema
from broker.spark.source.offsets import lag
from broker.spark.source.options import SourceOptions
from broker.spark.source.resolve import DataLossError
from broker.spark.source.stream_source import StreamReader
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)  # a query starts slowly on a busy machine
Stream = Callable[..., "DataFrame"]
EVERYTHING = ReadAllAvailable()


class Asked:
    """A reader as Spark treats it: offsets go through JSON, and partitions through pickle."""

    def __init__(self, topics: Topics, **options: Any) -> None:
        given = {"kafka.bootstrap.servers": topics.bootstrap_servers, "startingOffsets": "earliest"} | options
        parsed = SourceOptions.parse(given, streaming=True)
        self.reader: StreamReader = pickle.loads(pickle.dumps(StreamReader(parsed, spark_schema(parsed.columns))))

    def initial(self) -> dict[str, Any]:
        return self._text(self.reader.initialOffset())

    def latest(self, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
        return self._text(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
        slices = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [(slice_.range.partition, slice_.range.start, slice_.range.end) for slice_ in slices]

    def values(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        return [
            value.as_py().decode()
            for slice_ in self.reader.partitions(start, end)
            for batch in self.reader.read(slice_)
            for value in batch.column("value")
        ]

    @staticmethod
    def _text(offset: dict[str, Any]) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(json.dumps(offset))
        return decoded


def at(offset: dict[str, Any]) -> dict[int, int]:
    """The offsets of the only topic, by partition."""
    ((_, partitions),) = [item for item in offset.items() if not item[0].startswith("#")] or [("", {})]
    return {int(partition): next_ for partition, next_ in partitions.items()}


@pytest.fixture
def ask(topics: Topics) -> Iterator[Callable[..., Asked]]:
    made: list[Asked] = []

    def make(**options: Any) -> Asked:
        made.append(Asked(topics, **options))
        return made[-1]

    yield make
    for asked in made:
        asked.reader.stop()


Ask = Callable[..., Asked]

# The start, and the end of a batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"startingOffsets": ""}, {0: 6, 1: 3}),
        ({"startingOffsets": "latest"}, {0: 6, 1: 3}),
        ({"startingOffsets": "earliest"}, {0: 0, 1: 0}),
        ({"startingOffsets": '{"T": {"0": 5, "1": -1}}'}, {0: 5, 1: 3}),
        ({"startingOffsets": "-2 offsets"}, {0: 4, 1: 1}),
        ({"startingOffsets": "-4 offsets"}, {0: 2, 1: 0}),
        ({"startingTimestamp": "1002"}, {0: 2, 1: 2}),
        ({"startingOffsets": "-10 minutes"}, {0: 6, 1: 3}),
    ],
)
def test_new_query_begins_at_the_configured_start(
    topics: Topics, ask: Ask, options: dict[str, str], offsets: dict[int, int]
) -> None:
    name = topics.make(2)
    topics.put(name, 0, range(6))
    topics.put(name, 1, range(3))
    assert offsets == at(
        ask(subscribe=name, **{key: text.replace("T", name) for key, text in options.items()}).initial()
    )


def test_batch_ends_at_the_end_and_next_continues(topics: Topics, ask: Ask) -> None:
    name = topics.fill(2, 3)
    query = ask(subscribe=name)
    start = query.initial()
    end = query.latest(start)
    assert {0: 3, 1: 3} == at(end)
    assert ["0:0", "0:1", "0:2", "1:0", "1:1", "1:2"] == query.values(start, end)
    assert (end, []) == (query.latest(end), query.ranges(end, end))
    topics.put(name, 1, [3, 4])
    assert ["1:3", "1:4"] == query.values(end, query.latest(end))
    assert at(query.latest(end)) == at(query.reader.reportLatestOffset() or {})


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, EVERYTHING),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "5"}, ReadMaxBytes(5)),
        ({"minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "6"}, ReadMaxRows(6)),
    ],
)
def test_spark_gets_the_limit(ask: Ask, options: dict[str, str], limit: ReadLimit) -> None:
    assert limit == ask(subscribe="any", **options).reader.getDefaultReadLimit()


def test_batch_takes_partitions_in_proportion(topics: Topics, ask: Ask) -> None:
    name = topics.make(2)
    topics.put(name, 0, range(90))
    topics.put(name, 1, range(10))
    query = ask(subscribe=name, maxOffsetsPerTrigger="20")
    start = query.initial()
    first = query.latest(start)
    assert {0: 18, 1: 2} == at(first)
    assert {0: 36, 1: 4} == at(query.latest(first))
    assert {0: 90, 1: 10} == at(query.latest(first, EVERYTHING))


def test_batch_takes_about_its_limit_of_bytes(topics: Topics, ask: Ask) -> None:
    name = topics.make(2)
    for partition, size in ((0, 100), (1, 1000)):
        topics.send(name, partition, [(None, b"v" * size, 1000, [])] * 200)
    query = ask(subscribe=name, maxBytesPerTrigger="22000")
    start = query.initial()
    taken = at(query.latest(start))
    # A tenth of all records, and a few bytes around each record.
    assert 15 <= taken[0] <= 20
    assert taken[0] == taken[1]
    end = start
    batches = 0
    while at(end) != {0: 200, 1: 200}:
        end = query.latest(end)
        batches += 1
        assert batches <= 16
    assert batches >= 10


def test_batch_waits_for_its_minimum(topics: Topics, ask: Ask) -> None:
    name = topics.fill(1, 3)
    query = ask(subscribe=name, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    first = query.latest(query.initial())
    topics.put(name, 0, [3, 4])
    assert {0: 3} == at(first) == at(query.latest(first))
    topics.put(name, 0, [5])
    assert {0: 6} == at(query.latest(first))
    impatient = ask(subscribe=name, minOffsetsPerTrigger="100", maxTriggerDelay="0")
    assert {0: 6} == at(impatient.latest(impatient.latest(impatient.initial())))


def test_available_now_ends_at_its_beginnings_offsets(topics: Topics, ask: Ask) -> None:
    name = topics.fill(2, 3)
    query = ask(subscribe=name, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="3")
    query.reader.prepareForTriggerAvailableNow()
    topics.put(name, 0, range(3, 9))
    topics.grow(name, 3)
    topics.put(name, 2, range(4))
    first = query.latest(query.initial())
    second = query.latest(first)
    assert [{0: 2, 1: 2}, {0: 3, 1: 3}] == [at(first), at(second)]
    assert second == query.latest(second)


def test_available_now_from_the_end_is_empty(topics: Topics, ask: Ask) -> None:
    name = topics.fill(1, 3)
    query = ask(subscribe=name, startingOffsets="latest")
    query.reader.prepareForTriggerAvailableNow()
    topics.put(name, 0, [3, 4])
    start = query.initial()
    assert ({0: 3}, start) == (at(start), query.latest(start))


def test_offsets_are_committed_to_a_watched_group(topics: Topics, ask: Ask) -> None:
    name = topics.fill(2, 3)
    query = ask(subscribe=name, commitOffsetsToGroup=f"group-of-{name}")
    end = query.latest(query.initial())
    query.latest(end)  # a request for the next offset implies that this batch is done
    with Cluster(ClientConfig.from_properties({"bootstrap.servers": topics.bootstrap_servers})) as cluster:
        committed = cluster.committed(f"group-of-{name}")
    assert {(name, 0): 3, (name, 1): 3} == {where: commit.offset for where, commit in committed.items()}


def test_first_batch_is_the_same_after_restart(topics: Topics, ask: Ask) -> None:
    name = topics.fill(1, 3)
    before = ask(subscribe=name, startingOffsets="latest")
    start = before.initial()
    assert start == before.latest(start)
    topics.put(name, 0, [3, 4])
    end = before.latest(start)
    topics.put(name, 0, [5])
    after = ask(subscribe=name, startingOffsets="latest")
    assert {0: 6} == at(after.initial())
    assert [(0, 3, 5)] == after.ranges(after.initial(), end)
    assert [] == after.ranges(after.initial(), start)
    second = after.latest(end)
    assert [(0, 5, 6)] == after.ranges(end, second)
    assert "#from" not in second


# Changes during a query ------------------------------------------------------------------------------------------------


def test_new_partitions_are_read_from_their_beginning(topics: Topics, ask: Ask) -> None:
    name = topics.fill(1, 2)
    query = ask(subscribe=name)
    start = query.latest(query.initial())
    topics.grow(name, 3)
    topics.put(name, 2, range(2))
    end = query.latest(start)
    assert {0: 2, 1: 0, 2: 2} == at(end)
    assert ["2:0", "2:1"] == query.values(start, end)


def test_new_topics_of_pattern_are_read_from_beginning(topics: Topics, ask: Ask) -> None:
    query = ask(subscribePattern="later-[0-9]+", startingOffsets="latest")
    start = query.initial()
    assert {} == at(start)
    topics.make(1, "later-1")
    topics.put("later-1", 0, range(2))
    assert ["0:0", "0:1"] == query.values(start, query.latest(start))


def test_missing_topic_is_one_sentence(ask: Ask) -> None:
    with pytest.raises(ConfigError, match=r"^There is no topic 'missing' at 127\.0\.0\.1:[0-9]+\.$"):
        ask(subscribe="missing").initial()


def test_records_deleted_by_retention_are_a_loss(topics: Topics, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    name = topics.fill(1, 8)
    start = ask(subscribe=name, startingOffsets=f'{{"{name}": {{"0": 2}}}}').initial()
    topics.delete_before(name, 0, 5)
    with pytest.raises(DataLossError, match=rf"^Before they were read, records 2 to 4 of {name}-0 were deleted\. "):
        ask(subscribe=name).latest(start)
    going_on = ask(subscribe=name, failOnDataLoss="false", maxOffsetsPerTrigger="2")
    end = going_on.latest(start)
    assert {0: 7} == at(end)
    assert ["0:5", "0:6"] == going_on.values(start, end)
    assert f"records 2 to 4 of {name}-0 were deleted" in caplog.text


def test_records_deleted_after_planning_are_a_loss(topics: Topics, ask: Ask) -> None:
    name = topics.fill(1, 8)
    for fail in (True, False):
        query = ask(subscribe=name, failOnDataLoss=str(fail))
        start = {name: {"0": 0 if fail else 3}}
        end = {name: {"0": 8}}
        (planned,) = query.reader.partitions(start, end)
        topics.delete_before(name, 0, 3 if fail else 6)
        if fail:
            with pytest.raises(DataLossError, match=rf"records 0 to 2 of {name}-0 were deleted: it begins at 3 now\."):
                list(query.reader.read(planned))
        else:
            (batch,) = query.reader.read(planned)
            assert [b"0:6", b"0:7"] == batch.column("value").to_pylist()


def test_deleted_topic_is_a_loss(topics: Topics, ask: Ask) -> None:
    gone, kept = topics.fill(1, 4), topics.fill(1, 2)
    options = {"subscribe": f"{gone},{kept}"}
    query = ask(**options)
    start = query.initial()
    (planned, _) = query.reader.partitions(start, query.latest(start))
    topics.delete(gone)
    with pytest.raises(
        DataLossError, match=rf"^{gone}-0 does not exist any more, and the query had come to its offset 0\."
    ):
        query.latest(start)
    with pytest.raises(DataLossError, match=rf"^{gone}-0 was deleted before records 0 to 3 were read\."):
        list(query.reader.read(planned))
    going_on = ask(failOnDataLoss="false", **options)
    end = going_on.latest(start)
    assert {kept: {"0": 2}} == {topic: offsets for topic, offsets in end.items() if not topic.startswith("#")}
    assert ["0:0", "0:1"] == going_on.values(start, end)


@pytest.mark.parametrize("since", [2, 9], ids=["shorter than what was read", "grown beyond what was read"])
def test_recreated_topic_is_loss_and_read_from_beginning(topics: Topics, ask: Ask, since: int) -> None:
    name = topics.fill(1, 5)
    query = ask(subscribe=name)
    start = query.latest(query.initial())
    planned = query.reader.partitions(query.initial(), start)
    topics.delete(name)
    topics.make(1, name)
    topics.put(name, 0, range(100, 100 + since))
    with pytest.raises(
        DataLossError, match=rf"^The topic '{name}' was deleted and created again; .*to offset 5 of {name}-0"
    ):
        query.latest(start)
    with pytest.raises(
        DataLossError, match=rf"^The topic '{name}' was deleted and created again before {name}-0 \[0, 5\) "
    ):
        list(query.reader.read(planned[0]))
    going_on = ask(subscribe=name, failOnDataLoss="false", maxOffsetsPerTrigger="1")
    end = going_on.latest(start)
    assert ["0:100"] == going_on.values(start, end)
    assert ["0:101"] == going_on.values(end, going_on.latest(end))


def test_shorter_topic_without_id_counts_as_recreated(topics: Topics, ask: Ask) -> None:
    name = topics.fill(1, 2)
    start = {name: {"0": 5}}  # as from a broker that gives no ids
    with pytest.raises(DataLossError, match=rf"^{name}-0 ends at offset 2 and the query had come to 5: the topic was"):
        ask(subscribe=name).latest(start)
    going_on = ask(subscribe=name, failOnDataLoss="false")
    assert ["0:0", "0:1"] == going_on.values(start, going_on.latest(start))


def test_absent_end_is_a_loss_after_its_time(topics: Topics, ask: Ask) -> None:
    name = topics.fill(1, 2)
    options = {"subscribe": name, "kafkaConsumer.pollTimeoutMs": "300", "kafka.fetch.max.wait.ms": "100"}
    start, end = {name: {"0": 0}}, {name: {"0": 5}}
    with pytest.raises(
        DataLossError, match=rf"^{name}-0 ends at 2, before offset 5 that was there when .* within 300 ms"
    ):
        ask(**options).values(start, end)
    assert ["0:0", "0:1"] == ask(failOnDataLoss="false", **options).values(start, end)


# Under real queries ----------------------------------------------------------------------------------------------------


def run(df: "DataFrame", checkpoint: Path, seen: list[str], batches: list[int] | None = None) -> Any:
    """Read all records that exist now; rows are added to ``seen``, and the number of rows of each batch to ``batches``."""

    def take(batch: "DataFrame", _: int) -> None:
        rows = [row.value.decode() for row in batch.collect()]
        seen.extend(rows)
        if batches is not None:
            batches.append(len(rows))

    query = (
        df.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    return query


def test_query_continues_from_its_checkpoint(topics: Topics, stream: Stream, tmp_path: Path) -> None:
    name = topics.fill(2, 5)
    seen: list[str] = []
    batches: list[int] = []
    options = {
        "subscribe": name,
        "startingOffsets": "earliest",
        "columns": "value",
        "maxOffsetsPerTrigger": "6",
        "commitOffsetsToGroup": f"group-of-{name}",
    }
    run(stream(**options), tmp_path, seen, batches)
    assert [6, 4] == batches
    topics.put(name, 0, [5])
    topics.grow(name, 3)
    topics.put(name, 2, [0])
    run(stream(**options), tmp_path, seen, batches)
    assert sorted([*(f"{p}:{n}" for p in (0, 1) for n in range(5)), "0:5", "2:0"]) == sorted(seen)
    with Cluster(ClientConfig.from_properties({"bootstrap.servers": topics.bootstrap_servers})) as cluster:
        committed = cluster.committed(f"group-of-{name}")
    assert {(name, 0): 6, (name, 1): 5, (name, 2): 1} == {where: commit.offset for where, commit in committed.items()}


def test_running_query_reads_new_partitions_with_lag(topics: Topics, stream: Stream, tmp_path: Path) -> None:
    name = topics.fill(1, 3)
    seen: list[str] = []
    query = (
        stream(subscribe=name, startingOffsets="earliest", columns="value", maxOffsetsPerTrigger="2")
        .writeStream.foreachBatch(lambda batch, _: seen.extend(row.value.decode() for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        topics.grow(name, 2)
        topics.put(name, 1, range(2))
        query.processAllAvailable()
        assert ["0:0", "0:1", "0:2", "1:0", "1:1"] == sorted(seen)
        behind = [lag(progress)[0].total for progress in query.recentProgress if progress["numInputRows"]]
        assert (1, 0) == (behind[0], behind[-1])
    finally:
        query.stop()


def test_running_query_survives_a_broker_restart(restarting: Broker, spark: "SparkSession", tmp_path: Path) -> None:
    there = Topics(restarting.bootstrap_servers)
    name = there.fill(1, 3)
    seen: list[str] = []
    options = {
        "kafka.bootstrap.servers": restarting.bootstrap_servers,
        "subscribe": name,
        "startingOffsets": "earliest",
    }
    query = (
        spark.readStream.format("broker")
        .options(**options)
        .load()
        .writeStream.foreachBatch(lambda batch, _: seen.extend(row.value.decode() for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        restarting.stop()
        restarting.start()
        there.put(name, 0, [3, 4])
        query.processAllAvailable()
        assert ["0:0", "0:1", "0:2", "0:3", "0:4"] == seen
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "missing"}, "There is no topic 'missing' at"),
        ({"subscribe": "orders", "endingOffsets": "latest"}, "Leave out endingOffsets: a stream has no end"),
    ],
)
def test_spark_error_has_the_sentence(stream: Stream, tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        run(stream(**options), tmp_path, [])
    assert sentence in str(raised.value)
    assert "UnboundLocalError" not in str(raised.value)  # of Spark, for a reader that was not made


def test_loss_stops_a_query_with_its_sentence(topics: Topics, stream: Stream, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    name = topics.fill(1, 3)
    options = {"subscribe": name, "startingOffsets": "earliest", "columns": "value"}
    run(stream(**options), tmp_path, [])
    topics.put(name, 0, range(3, 9))
    topics.delete_before(name, 0, 7)
    with pytest.raises(PySparkException) as raised:
        run(stream(**options), tmp_path, [])
    assert f"Before they were read, records 3 to 6 of {name}-0 were deleted." in str(raised.value)
    seen: list[str] = []
    run(stream(failOnDataLoss="false", **options), tmp_path, seen)
    assert ["0:7", "0:8"] == seen


def test_repeated_batch_is_the_same_or_a_loss(topics: Topics, stream: Stream, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    def fail(batch: "DataFrame", _: int) -> None:
        raise RuntimeError(f"after {batch.count()} rows")

    name = topics.fill(1, 4)
    options = {"subscribe": name, "startingOffsets": "-4 offsets", "columns": "value"}
    started = stream(**options).writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(PySparkException, match="after 4 rows"):
        started.foreachBatch(fail).start().awaitTermination(600)
    # Planned, and written into the checkpoint; later records belong to another batch.
    topics.put(name, 0, [4])
    topics.delete_before(name, 0, 2)
    with pytest.raises(PySparkException) as raised:
        run(stream(**options), tmp_path, [])
    assert f"Before they were read, records 0 to 1 of {name}-0 were deleted: it begins at 2 now." in str(raised.value)
    seen: list[str] = []
    batches: list[int] = []
    run(stream(failOnDataLoss="false", **options), tmp_path, seen, batches)
    assert (["0:2", "0:3", "0:4"], [2, 1]) == (seen, batches)
