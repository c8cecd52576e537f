"""An exchange is a repartition: the same rows in the same partitions, and the data stays until it is released."""

import datetime
import decimal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

import attrs
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql import types as t
from rich.console import Console

from broker.client import Broker, ShuffleAdmin, ShuffleWriter
from broker.client.shuffle.blocks import push_block
from broker.spark.exchanges import driver as exchange_driver
from broker.spark.exchanges import tasks as exchange_map
from broker.spark.exchanges.driver import exchange, progress_bar, release_losers
from broker.spark.exchanges.plan import ExchangeError, ExchangePlan, ExchangeSpec, Winner
from broker.spark.exchanges.tasks import MapTask, ReduceTask
from tests.process.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Strategy = st.SearchStrategy[Any]

INT = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
TIME = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
FLOAT = st.sampled_from([0.0, -0.0, 1.5, -2.25, float("inf"), float("nan")])
SIMPLE: list[tuple[t.DataType, Strategy]] = [
    (t.IntegerType(), INT),
    (t.LongType(), st.integers(-(2**63), 2**63 - 1)),
    (t.ByteType(), st.integers(-128, 127)),
    (t.BooleanType(), st.booleans()),
    (t.DoubleType(), FLOAT),
    (t.FloatType(), FLOAT),
    (t.StringType(), TEXT),
    (t.BinaryType(), st.binary(max_size=6).map(bytearray)),
    (t.DecimalType(9, 2), st.decimals(-1000, 1000, places=2)),
    (t.DecimalType(38, 10), st.decimals(decimal.Decimal(-(10**20)), decimal.Decimal(10**20), places=10)),
    (t.DateType(), st.dates(datetime.date(1, 1, 1), datetime.date(9000, 1, 1))),
    (t.TimestampType(), TIME),
    (t.TimestampNTZType(), TIME),
    (t.DayTimeIntervalType(), st.timedeltas(datetime.timedelta(-100), datetime.timedelta(100))),
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[t.DataType, Strategy]:
    """A type, and its values."""
    nested = draw(st.sampled_from(["", "", "", "array", "map", "struct"])) if depth else ""
    if nested == "array":
        kind, values = draw(kinds(depth - 1))
        return t.ArrayType(kind), st.lists(st.none() | values, max_size=3)
    if nested == "map":
        kind, values = draw(kinds(depth - 1))
        return t.MapType(t.StringType(), kind), st.dictionaries(TEXT, st.none() | values, max_size=2)
    if nested == "struct":
        fields = draw(st.lists(kinds(depth - 1), min_size=1, max_size=3))
        schema = t.StructType([t.StructField(f"f{number}", kind) for number, (kind, _) in enumerate(fields)])
        return schema, st.tuples(*(st.none() | values for _, values in fields))
    return draw(st.sampled_from(SIMPLE))


@st.composite
def tables(draw: st.DrawFn) -> tuple[t.StructType, list[tuple[Any, ...]], list[str]]:
    """A schema, rows, and the names of its keys."""
    columns = draw(st.lists(kinds(), min_size=1, max_size=6))
    names = draw(st.permutations(["id", "key", "Ünïcödé", "two words", "map", "a.b"]))[: len(columns)]
    nullable = draw(st.lists(st.booleans(), min_size=len(columns), max_size=len(columns)))
    fields = [t.StructField(name, kind, null) for name, (kind, _), null in zip(names, columns, nullable, strict=True)]
    cells = [st.none() | values if null else values for (_, values), null in zip(columns, nullable, strict=True)]
    rows = draw(st.lists(st.tuples(*cells), max_size=30))
    able = [f"`{field.name}`" for field in fields if "map<" not in field.dataType.simpleString()]
    keys = draw(st.lists(st.sampled_from(able), min_size=1, max_size=3, unique=True)) if able else []
    return t.StructType(fields), rows, keys


def placed(df: "DataFrame") -> list[str]:
    """All rows, each with its partition. As text: NaN is not equal to itself, and -0.0 is to 0.0."""
    return sorted(map(repr, df.select("*", sf.spark_partition_id().alias("partition")).collect()))


def released(broker: Broker) -> bool:
    with ShuffleAdmin(broker.shuffle_address) as admin:
        return not admin.partitions()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Broker]:
    """A broker for many examples."""
    with Broker() as running:
        yield running


@settings(max_examples=20)
@given(table=tables(), partitions=st.integers(1, 9), slices=st.integers(1, 3))
def test_rows_and_placement_are_those_of_repartition(
    spark: "SparkSession",
    lasting: Broker,
    table: tuple[t.StructType, list[tuple[Any, ...]], list[str]],
    partitions: int,
    slices: int,
) -> None:
    schema, rows, keys = table
    if not keys:
        return
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, slices), schema, verifySchema=False)
    with exchange(df, keys, partitions, brokers=lasting.shuffle_address) as exchanged:
        assert schema == exchanged.schema
        assert partitions == exchanged.rdd.getNumPartitions()
        assert placed(df.repartition(partitions, *keys)) == placed(exchanged)
    assert released(lasting)


def words(spark: "SparkSession", rows: int = 1000, slices: int = 4) -> "DataFrame":
    return spark.range(0, rows, 1, slices).select("id", sf.concat(sf.lit("word "), sf.col("id") % 97).alias("word"))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_large_rows_and_several_brokers(spark: "SparkSession", broker: Broker, compression: str | None) -> None:
    df = words(spark, 300).withColumn("text", sf.repeat("word", 5000))
    with Broker() as other:
        addresses = [broker.shuffle_address, f"shuffle://{other.shuffle_address}"]
        with exchange(df, "word", 5, brokers=addresses, compression=compression) as exchanged:
            assert {0, 1} == {winner.broker for winner in exchanged.exchange.winners}
            assert placed(df.repartition(5, "word")) == placed(exchanged)
            assert 300 == exchanged.exchange.rows
        assert released(broker)
        assert released(other)


def bytes_counted(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each map stage that is run, whether Spark counts the bytes of batches."""
    runs = []
    written = exchange_driver._run_map_stage

    def observed(session: Any, spec: Any, schema: Any, batches: Any) -> Any:
        runs.append(batches.settings["spark.sql.execution.arrow.maxBytesPerBatch"] != str(2**31 - 1))
        return written(session, spec, schema, batches)

    monkeypatch.setattr(exchange_driver, "_run_map_stage", observed)
    return runs


def test_row_wider_than_all_others(spark: "SparkSession", broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is detected when other rows have been written already, also by finished tasks."""
    runs = bytes_counted(spark, monkeypatch)
    text = sf.when(sf.col("id") == 29_999, sf.repeat(sf.lit("x"), 17_000)).otherwise("narrow")
    df = words(spark, 30_000).withColumn("text", text)
    with exchange(df, "word", 3, brokers=broker.shuffle_address) as exchanged:
        assert runs == [False, True]
        assert 30_000 == exchanged.exchange.rows
        assert placed(df.repartition(3, "word")) == placed(exchanged)
        with ShuffleAdmin(broker.shuffle_address) as admin:
            assert len(exchanged.exchange.winners) == len(admin.partitions())
    assert released(broker)


@pytest.mark.parametrize(
    ("made", "counted"),
    [
        ("id", [False]),
        ("cast(null as string)", [False]),
        ("repeat('x', 16384)", [False]),
        ("repeat('x', 16385)", [False, True]),
        ("cast(repeat('ä', 8193) as binary)", [False, True]),
        ("array_repeat(id, 2048)", [False]),
        ("array_repeat(id, 2049)", [False, True]),
        ("named_struct('a', repeat('x', 10000), 'b', array_repeat(1, 2500))", [False, True]),
        ("named_struct('a', 'x', 'A.b', 1)", [False]),
        ("named_struct('a', 'x', 'A.`b', named_struct('c d', repeat('x', 16385)))", [False, True]),
        ("named_struct('a', repeat('x', 16385), 'A', 1)", [True]),
        ("if(id = 1, named_struct('a', 'x'), null)", [False]),
        ("map('a', 1)", [True]),
        ("array('a')", [True]),
    ],
)
def test_width_of_a_row(
    spark: "SparkSession", broker: Broker, monkeypatch: pytest.MonkeyPatch, made: str, counted: list[bool]
) -> None:
    runs = bytes_counted(spark, monkeypatch)
    df = spark.range(3).withColumn("made", sf.expr(made))
    with exchange(df, "id", 2, brokers=broker.shuffle_address) as exchanged:
        assert counted == runs
        assert placed(df.repartition(2, "id")) == placed(exchanged)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_leave_empty_partitions(spark: "SparkSession", broker: Broker, rows: int) -> None:
    df = words(spark, rows)
    with exchange(df, ["word", sf.col("id")], 3, brokers=broker.shuffle_address) as exchanged:
        assert placed(df.repartition(3, "word", "id")) == placed(exchanged)
        assert rows == exchanged.exchange.rows


def test_expression_keys_and_duplicate_names_are_allowed(spark: "SparkSession", broker: Broker) -> None:
    df = words(spark).select("id", "word", sf.col("word").alias("word"))
    with exchange(df, sf.col("id") % 10, 4, brokers=broker.shuffle_address) as exchanged:
        assert placed(df.repartition(4, sf.col("id") % 10)) == placed(exchanged)


def test_collated_key_is_refused(spark: "SparkSession") -> None:
    """Spark hashes it by a function that cannot be called."""
    df = spark.range(1).select(sf.lit("Key").cast("string collate UTF8_LCASE").alias("key"), "id")
    with pytest.raises(ExchangeError, match="The key key has a collation"):
        exchange(df, ["id", "key"], 8, brokers="localhost:1")


def test_as_many_partitions_as_spark_would_make(spark: "SparkSession", broker: Broker) -> None:
    with exchange(words(spark), "word", brokers=broker.shuffle_address) as exchanged:
        assert int(spark.conf.get("spark.sql.shuffle.partitions")) == exchanged.rdd.getNumPartitions()


def test_result_does_not_change_with_its_source(spark: "SparkSession", broker: Broker) -> None:
    df = words(spark).withColumn("chance", sf.rand())
    with exchange(df, "word", 4, brokers=broker.shuffle_address) as exchanged:
        once = placed(exchanged)
        assert once == placed(exchanged)
        assert sorted(once) == sorted(placed(exchanged.union(exchanged.limit(0))))


def test_join_does_not_broadcast_an_exchange(spark: "SparkSession", broker: Broker) -> None:
    """Spark broadcasts relations that it assumes to be small. It must not assume that of an exchange."""
    with exchange(words(spark), "word", 4, brokers=broker.shuffle_address) as exchanged:
        size = exchanged._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
        assert size > 2**60


def test_session_is_left_unchanged(spark: "SparkSession", broker: Broker) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    exchange(words(spark), "word", 2, brokers=broker.shuffle_address).release()
    assert before == spark.conf.get(name)


def test_exchanges_at_once_leave_the_session_alone(
    spark: "SparkSession", broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange is in its map stage while another begins and ends: no visible setting is changed."""

    def settings_now() -> dict[str, str]:
        return dict(spark.conf.getAll)

    before, seen = settings_now(), []
    started, goes_on = threading.Event(), threading.Event()
    collect = exchange_driver.DataFrame.collect

    def watched(df: "DataFrame") -> Any:
        seen.append(settings_now())
        if len(seen) == 1:
            started.set()
            assert goes_on.wait(60)
        return collect(df)

    monkeypatch.setattr(exchange_driver.DataFrame, "collect", watched)

    def one() -> None:
        exchange(words(spark), "word", 2, brokers=broker.shuffle_address).release()

    thread = threading.Thread(target=one)
    thread.start()
    try:
        assert started.wait(60)
        one()
    finally:
        goes_on.set()
        thread.join(60)
    assert [before, before] == seen
    assert before == settings_now()


def test_map_stage_is_planned_with_its_own_settings(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    df = exchange_driver.in_cloned_session(spark.range(0, 100, 1, 1), {name: "7"})

    def sizes(batches: Any) -> Any:
        for batch in batches:
            yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int32())})

    assert [7] * 14 + [2] == [row.rows for row in df.mapInArrow(sizes, "rows int").collect()]
    assert [100] == [row.rows for row in spark.range(0, 100, 1, 1).mapInArrow(sizes, "rows int").collect()]


def test_cached_and_observed_frames_are_exchanged(spark: "SparkSession", broker: Broker) -> None:
    """The map stage runs in a session of its own, which shares the state of the user's."""
    from pyspark.sql import Observation

    observation = Observation("exchanged")
    df = words(spark).observe(observation, sf.count("*").alias("rows"))
    exchange(df, "word", 2, brokers=broker.shuffle_address).release()
    assert {"rows": 1000} == observation.get
    cached = spark.range(50).cache()
    try:
        assert 50 == cached.count()
        clone = exchange_driver.in_cloned_session(cached, {})
        assert "InMemoryTableScan" in clone._jdf.queryExecution().executedPlan().toString()
    finally:
        cached.unpersist()


def test_later_rdd_frames_stay_in_the_session(spark: "SparkSession", broker: Broker) -> None:
    """PySpark's ``RDD.toDF`` creates frames in the session that was created last in this process."""
    numbers = spark.sparkContext.parallelize([(7,)], 1)
    session = numbers.toDF(["number"]).sparkSession
    exchange(words(spark), "word", 2, brokers=broker.shuffle_address).release()
    made = numbers.toDF(["number"])
    assert made.sparkSession is session
    made.createOrReplaceTempView("made_afterwards")
    try:
        assert [(7,)] == session.sql("SELECT number FROM made_afterwards").collect()
    finally:
        session.catalog.dropTempView("made_afterwards")


def test_interrupting_the_session_stops_the_map_stage(spark: "SparkSession", broker: Broker) -> None:
    slow = spark.range(0, 10_000, 1, 2).selectExpr("id", "reflect('java.lang.Thread', 'sleep', bigint(20)) as nap")
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            exchange(slow, "id", 2, brokers=broker.shuffle_address)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getActiveJobsIds():
        assert thread.is_alive()
        time.sleep(0.01)
    spark.interruptAll()
    thread.join(60)
    assert not thread.is_alive()
    assert "cancelled" in str(outcome[0]).lower()
    assert released(broker)


@pytest.mark.parametrize("skewed", [False, True])
def test_wide_rows_and_one_dominant_key(spark: "SparkSession", broker: Broker, skewed: bool) -> None:
    """Blocks of a MB or two: a few fill a writer's window, long before they use up a quarter of its credit."""
    if skewed:  # rows of 1 KB, 90 % of one key
        df = spark.range(0, 60_000, 1, 2).selectExpr("if(id % 10 = 0, id, 0) as key", "repeat(uuid(), 28) as value")
    else:  # rows of 1 MB
        df = spark.range(0, 60, 1, 2).selectExpr("id % 3 as key", "repeat(cast(id as string), 500000) as value")
    with exchange(df, "key", 4, brokers=broker.shuffle_address) as exchanged:
        assert (60_000 if skewed else 60) == exchanged.count()


def test_released_rows_cannot_be_read(spark: "SparkSession", tmp_path: Path) -> None:
    with Broker(str(tmp_path), shuffle_partition_request_timeout_ms=50) as broker:
        exchanged = exchange(words(spark), "word", 2, brokers=broker.shuffle_address, ttl=77)
        exchanged.release()
        exchanged.release()
        assert released(broker)
        with pytest.raises(Exception, match=r"ExchangeError: The exchange is not on its broker .*live \(77 s\)"):
            exchanged.collect()


def test_unreleased_data_is_deleted_after_its_time(spark: "SparkSession", broker: Broker) -> None:
    exchange(words(spark), "word", 2, brokers=broker.shuffle_address, ttl=0.2)
    while not released(broker):
        pass


def test_failed_job_leaves_nothing_and_gives_the_reason(spark: "SparkSession", broker: Broker) -> None:
    df = words(spark).withColumn("word", sf.when(sf.col("id") == 900, sf.raise_error(sf.lit("bad row"))).otherwise("x"))
    with pytest.raises(Exception, match="bad row"):
        exchange(df, "word", 2, brokers=broker.shuffle_address)
    assert released(broker)


def test_failing_with_block_releases_too(spark: "SparkSession", broker: Broker) -> None:
    with pytest.raises(KeyError), exchange(words(spark), "word", 2, brokers=broker.shuffle_address):
        raise KeyError
    assert released(broker)


def test_failed_tasks_are_retried(spark: "SparkSession", broker: Broker) -> None:
    """An attempt that failed half-way has written rows, and none of them counts."""

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            if number == 2 and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt")

    df = words(spark, 100_000, 2).withColumn("text", sf.repeat("word", 20))
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        with exchange(df.mapInArrow(fail_first, df.schema), "word", 3, brokers=broker.shuffle_address) as exchanged:
            assert placed(df.repartition(3, "word")) == placed(exchanged)
            with ShuffleAdmin(broker.shuffle_address) as admin:
                assert 2 == len(admin.partitions())
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)


def test_broker_may_restart_between_the_stages(spark: "SparkSession", tmp_path: Path) -> None:
    df = words(spark)
    expected = placed(df.repartition(3, "word"))
    with Broker(str(tmp_path)) as first:
        address = first.shuffle_address
        exchanged = exchange(df, "word", 3, brokers=address)
        assert expected == placed(exchanged)
    with Broker(str(tmp_path), listeners=("kafka://127.0.0.1:0", f"shuffle://{address}")):
        assert expected == placed(exchanged)
        exchanged.release()


# -- attempts ---------------------------------------------------------------------------------------------------------

ROWS = pa.record_batch({"v": ["a", "b", "c"], "bucket": pa.array([0, 2, 0], pa.int32())})
SCHEMA = t.StructType([t.StructField("v", t.StringType())])


def spec_of(*addresses: str) -> ExchangeSpec:
    return ExchangeSpec(bytes(range(16)), addresses, 3, 60_000, "somebody", None, 5.0)


def commit(task: MapTask, attempt: int, broker: int = 0) -> Winner:
    (row,) = task.run([ROWS], 7, attempt, broker).to_pylist()
    return Winner.of(list(row.values()))


def read(plan: ExchangePlan, bucket: int) -> list[str]:
    batches = ReduceTask(plan, SCHEMA).read([pa.record_batch({"bucket": [bucket]})])
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_attempt_reports_its_filled_buckets(broker: Broker) -> None:
    spec = spec_of(broker.shuffle_address)
    winner = commit(MapTask(spec, SCHEMA), 3)
    assert (7, 3, 0, 3, [True, False, True]) == (
        winner.map_number,
        winner.attempt,
        winner.broker,
        winner.rows,
        [winner.has(bucket) for bucket in range(3)],
    )
    assert [["a", "c"], [], ["b"]] == [read(ExchangePlan(spec, (winner,)), bucket) for bucket in range(3)]


def test_finished_attempt_does_not_win_by_that(broker: Broker) -> None:
    """The stage before it may have failed, and then it has finished with fewer rows."""
    spec = spec_of(broker.shuffle_address)
    task = MapTask(spec, SCHEMA)
    _, second = task.run([ROWS.slice(1, 1)], 7, 3, 0), commit(task, 4)
    assert (7, 4, 3) == (second.map_number, second.attempt, second.rows)
    plan = ExchangePlan(spec, (second,))
    assert [["a", "c"], [], ["b"]] == [read(plan, bucket) for bucket in range(3)]


def test_two_attempts_at_two_brokers_do_not_mix(broker: Broker) -> None:
    with Broker() as other:
        spec = spec_of(broker.shuffle_address, other.shuffle_address)
        task = MapTask(spec, SCHEMA)
        _, winner = commit(task, 3, 0), commit(task, 4, 1)
        plan = ExchangePlan(spec, (winner,))
        release_losers(plan)
        assert released(broker)
        assert not released(other)
        assert [["a", "c"], [], ["b"]] == [read(plan, bucket) for bucket in range(3)]


def test_two_attempts_at_the_same_time(broker: Broker) -> None:
    """Speculation: both attempts finish, and the driver takes Spark's choice."""
    spec = spec_of(broker.shuffle_address)
    task = MapTask(spec, SCHEMA)
    nested: list[Winner] = []

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield ROWS
        nested.append(commit(task, 4))

    (row,) = task.run(meanwhile(), 7, 3, 0).to_pylist()
    for winner in (Winner.of(list(row.values())), *nested):
        assert [["a", "c"], [], ["b"]] == [read(ExchangePlan(spec, (winner,)), bucket) for bucket in range(3)]


def test_dead_attempt_is_no_winner(broker: Broker) -> None:
    spec = spec_of(broker.shuffle_address)
    writer = ShuffleWriter(broker.shuffle_address, spec.partition(7, 3), 3, "blocking")
    writer.open()
    push_block(writer, 0, b"half a block")
    winner = commit(MapTask(spec, SCHEMA), 4)
    assert 4 == winner.attempt
    assert ["a", "c"] == read(ExchangePlan(spec, (winner,)), 0)
    writer.close()


def test_attempt_with_too_wide_row_leaves_nothing() -> None:
    wide = pa.record_batch({"v": pa.array([None], pa.string()), "bucket": pa.array([-1], pa.int32())})
    with Broker(shuffle_writer_retention_ms=50) as broker:
        (row,) = MapTask(spec_of(broker.shuffle_address), SCHEMA).run([ROWS, wide, ROWS], 7, 3, 0).to_pylist()
        assert Winner.of(list(row.values())).too_wide
        while not released(broker):  # until then its readers are told why
            time.sleep(0.01)


def test_attempt_after_the_release_leaves_nothing(broker: Broker) -> None:
    """Spark does not wait for the tasks of an abandoned stage."""
    spec = spec_of(broker.shuffle_address)
    with ShuffleAdmin(broker.shuffle_address) as admin:
        admin.release_data_set(spec.data_set)
    with pytest.raises(ExchangeError, match=r"^The exchange could not write to the broker at .*: .*released"):
        commit(MapTask(spec, SCHEMA), 4)
    assert released(broker)


def test_attempt_without_rows_needs_no_partition(broker: Broker) -> None:
    spec = spec_of(broker.shuffle_address)
    (row,) = MapTask(spec, SCHEMA).run([ROWS.slice(0, 0)], 7, 3, 0).to_pylist()
    assert (-1, 0) == (row["broker"], row["rows"])
    assert released(broker)


# -- clear sentences ----------------------------------------------------------------------------------------------------


def test_no_broker(spark: "SparkSession") -> None:
    with Broker() as gone:
        address = gone.shuffle_address
    with pytest.raises(ExchangeError, match=rf"^The exchange needs a broker at {address}: .*refused.*broker serve"):
        exchange(words(spark), "word", 2, brokers=address)


def test_no_room_in_the_quota(spark: "SparkSession") -> None:
    with Broker(shuffle_quota_bytes=1000) as broker:
        with pytest.raises(ExchangeError, match=r"^The broker at .* has no room for more of the owner 'somebody'"):
            exchange(words(spark), "word", 2, brokers=broker.shuffle_address, owner="somebody")
        assert released(broker)


def test_no_room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_map, "_FULL_BROKER_TIMEOUT_S", 1.0)
    with Broker(shuffle_disk_bytes=0, shuffle_memory_bytes=1024 * 1024) as broker:
        task = MapTask(spec_of(broker.shuffle_address), SCHEMA)
        text = pa.array(["x" * 100_000] * 200)
        rows = pa.record_batch({"v": text, "bucket": pa.array([0] * len(text), pa.int32())})
        with pytest.raises(ExchangeError, match=r"has no room \(.*shuffle_disk_bytes\): .* no credit within"):
            task.run([rows] * 10, 7, 3, 0)


def test_silent_broker_is_not_called_full(tmp_path: Path) -> None:
    """The error for a broker that answers without progress does not demand more disk, either."""
    with BrokerProcess(tmp_path, "logging_level=warning", listener="shuffle://127.0.0.1:0") as broker:
        task = MapTask(attrs.evolve(spec_of(broker.address), patience=0.1), SCHEMA)

        def rows() -> Iterator[pa.RecordBatch]:
            text = pa.array(["x" * 100_000] * 100)
            for number in range(10):
                if number == 1:
                    broker.suspend()
                yield pa.record_batch({"v": text, "bucket": pa.array([0] * len(text), pa.int32())})

        with pytest.raises(ExchangeError, match="has not answered for") as caught:
            task.run(rows(), 7, 3, 0)
        assert "room" not in str(caught.value)


@pytest.mark.parametrize("kind", ["interval year to month", "interval", "array<interval year>"])
def test_unsupported_interval_is_refused_at_once(spark: "SparkSession", kind: str) -> None:
    made = {
        "interval year to month": "make_ym_interval(1, 2)",
        "interval": "make_interval(1, 2, 3)",
        "array<interval year>": "array(interval '1' year)",
    }[kind]
    df = spark.range(3).selectExpr("id", f"{made} as pause")
    sentence = f"^The column pause cannot be exchanged, because .* the type {kind}: cast it to a string"
    with pytest.raises(ExchangeError, match=sentence):
        exchange(df, "id", 2, brokers="localhost:1")


def test_intervals_of_days_are_exchanged(spark: "SparkSession", broker: Broker) -> None:
    df = spark.range(100).selectExpr(
        "id",
        "make_dt_interval(id, id, id, id / 7) as pause",
        "if(id % 3 = 0, null, interval '1 02' day to hour * id) as other",
        "array(make_dt_interval(-id)) as pauses",
    )
    for keys in ("id", ["pause", "other"]):
        with exchange(df, keys, 3, brokers=broker.shuffle_address) as exchanged:
            assert df.schema == exchanged.schema
            assert placed(df.repartition(3, *([keys] if isinstance(keys, str) else keys))) == placed(exchanged)


def test_invalid_arguments_are_refused(spark: "SparkSession") -> None:
    df = words(spark, 1)
    with pytest.raises(ExchangeError, match="foreachBatch"):
        exchange(spark.readStream.format("rate").load(), "value", 2, brokers="localhost:1")
    with pytest.raises(ValueError, match="0 partitions: 1 to 65536"):
        exchange(df, "word", 0, brokers="localhost:1")
    with pytest.raises(ValueError, match="'localhost' is no host:port"):
        exchange(df, "word", 2, brokers="localhost")
    with pytest.raises(ValueError, match="a broker"):
        exchange(df, "word", 2, brokers=[])
    with pytest.raises(ValueError, match="a key"):
        exchange(df, [], 2, brokers="localhost:1")
    with pytest.raises(ValueError, match="not 'snappy'"):
        exchange(df, "word", 2, brokers="localhost:1", compression="snappy")


def test_bar_shows_the_number_of_finished_tasks(spark: "SparkSession", capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True, width=80)
    with progress_bar(spark, "exchange", True, console):
        words(spark, slices=5).rdd.count()
    assert "exchange" in capsys.readouterr().out


def test_missing_terminal_shows_nothing(
    spark: "SparkSession", broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    exchange(words(spark, 1), "word", 2, brokers=broker.shuffle_address).release()
    assert ("", "") == capfd.readouterr()
