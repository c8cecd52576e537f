"""The driver's side of an exchange: it runs the map stage, records the winning attempts, makes the result and releases it.

>>> with exchange(df, "word", partitions=8, brokers=["10.0.0.7:9094"]) as words:
...     words.mapInArrow(count, "word string, count long").write.parquet("counts")

Life of an exchange (the states are those of its data on the brokers; the driver keeps no field for them):

    state     event                                   next
    writing   every map task has committed            written: losing attempts are released
    writing   the job fails                           released
    written   release, the end of the with block      released
    written   the driver's process ends               released, if the brokers can be reached
    any       the time to live is over                deleted by each broker

The written rows can be read any number of times, by any number of actions, and do not depend on the executors that
wrote them.

``progress_bar`` draws a bar on the terminal while the map stage runs; rich's refresh thread asks Spark for the state
whenever it draws.

Tests: tests/spark/test_exchange.py,
tests/spark/test_exchange_cluster.py,
tests/spark/test_exchange_pipeline.py.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Union

import attrs
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkTypeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.types import StructField, StructType

from broker.client import ShuffleAdmin
from broker.client.shuffle.blocks import AtExit, new_data_set
from broker.client.shuffle.errors import ShuffleError
from broker.client.shuffle.names import parse_address
from broker.client.shuffle.security import SecurityLike, shuffle_security
from broker.spark.exchanges.plan import (
    COMMIT_SCHEMA,
    Batches,
    ExchangeError,
    ExchangePlan,
    ExchangeSpec,
    Winner,
    bounded_by_bytes,
    bounded_by_rows,
)
from broker.spark.exchanges.tasks import MapTask, ReduceTask, arrow_schema, one_row_per_partition

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import DataFrame as AnyDataFrame

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

_REFRESH_PER_SECOND = 2


@contextmanager
def progress_bar(
    spark: SparkSession, what: str, enabled: bool | None, console: Console | None = None
) -> Iterator[None]:
    """``enabled`` None: if stderr is a terminal."""
    if not (sys.stderr.isatty() if enabled is None else enabled):
        yield
        return
    context = spark.sparkContext
    before = set(context.statusTracker().getActiveStageIds())
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _Tasks(spark, before),
        TimeElapsedColumn(),
        console=console or Console(stderr=True),
        refresh_per_second=_REFRESH_PER_SECOND,
    )
    with progress:
        task = progress.add_task(what, total=None)
        yield
        total = progress.tasks[0].total or 1
        progress.update(task, total=total, completed=total)


class _Tasks(ProgressColumn):
    """Shows the number of finished tasks of the stages that began after the bar, and moves the bar."""

    def __init__(self, spark: SparkSession, before: set[int]) -> None:
        super().__init__()
        self._tracker = spark.sparkContext.statusTracker()
        self._before = before

    def render(self, task: Task) -> Text:
        if not task.finished:
            try:
                done, total = self._count()
            except Exception:  # the context is being stopped, and a progress bar must not fail the job
                done, total = 0, 0
            if total:
                task.completed, task.total = min(done, total), total
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)} tasks")

    def _count(self) -> tuple[int, int]:
        done = total = 0
        for stage in self._tracker.getActiveStageIds():
            info = None if stage in self._before else self._tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        return done, total


Key: TypeAlias = Union[str, "Column"]

# The largest number of subpartitions that the protocol allows.
MAX_BUCKETS = 65536

# Longer than most jobs, and short enough that the data of a dead driver does not fill a disk over a weekend.
_TTL_S = 12 * 3600.0

# The reduce side reads columns with 32-bit offsets.
_SETTINGS = {"spark.sql.execution.arrow.useLargeVarTypes": "false"}


class Exchanged(DataFrame):
    """The rows of an exchange, with a partition for each bucket: a DataFrame, and a context manager that releases it.

    ``exchange`` is its plan: the winning attempts, and the numbers of their rows and bytes.
    """

    def __init__(self, df: "AnyDataFrame", plan: ExchangePlan) -> None:
        super().__init__(df._jdf, df.sparkSession)
        self.exchange = plan
        # A driver that ends normally releases the exchange even if its program has not.
        self._at_exit = AtExit(partial(_release_quietly, plan.spec))

    def release(self) -> None:
        """Free the space on the brokers. Afterwards neither the rows nor DataFrames derived from them can be read.

        Calling it again is not an error. Raises ExchangeError if a broker cannot be reached; that broker deletes its share
        when the time to live is over.
        """
        self._at_exit.cancel()
        _release(self.exchange.spec)

    def __enter__(self) -> "Exchanged":
        return self

    def __exit__(self, *_error: object) -> None:
        self._at_exit.cancel()
        _release_quietly(self.exchange.spec)


def exchange(
    df: "AnyDataFrame",
    keys: "Key | Sequence[Key]",
    partitions: int | None = None,
    *,
    brokers: str | Sequence[str],
    ttl: float = _TTL_S,
    owner: str = "",
    compression: str | None = None,
    patience: float = 30.0,
    progress: bool | None = None,
    security: SecurityLike = None,
) -> Exchanged:
    """``df.repartition(partitions, *keys)`` through one or several brokers: the same rows in the same partitions.

    The map stage runs at once, and the call returns when all rows are durable on the brokers. From then on the result
    depends neither on ``df`` nor on the executors that ran it, and may be read any number of times.

    ``partitions``: ``spark.sql.shuffle.partitions`` if not given. ``brokers``: ``host:port`` of their shuffle
    listeners, which all executors must reach; map tasks use them in turn. ``ttl``: s after which a broker deletes
    unreleased data. ``owner``: the owner of the quota in which the data counts. ``compression``: ``"lz4"`` or
    ``"zstd"`` for slow networks. ``patience``: s for which a task tries to restore a lost connection. A connection also
    counts as lost when an answer is due and the broker is silent for 15 s. ``progress``: whether to draw a bar on
    stderr; None: if that is a terminal. ``security``: TLS, by Kafka's names, such as ``{"security.protocol": "SSL",
    "ssl.truststore.location": "ca.crt"}``; the files must exist on every executor, or be given as text
    (``ssl.truststore.certificates``).

    Raises ExchangeError, ConfigError (each with one sentence), ValueError, and the errors of ``df``.
    """
    spark = df.sparkSession
    columns, buckets = _checked_keys(df, keys, partitions)
    _require_codec(compression)
    _require_arrow(df.schema)
    addresses, ttl_ms = _addresses(brokers), max(1, int(ttl * 1000))
    tls = shuffle_security(security, [brokers] if isinstance(brokers, str) else brokers)
    spec = ExchangeSpec(new_data_set(), addresses, buckets, ttl_ms, owner, compression, patience, tls)
    _require(spec)
    schema, tagged = _tagged(df, columns, buckets)
    batches = bounded_by_rows(tagged)
    try:
        with progress_bar(spark, "exchange", progress):
            plan = None if batches is None else _run_map_stage(spark, spec, schema, batches)
            if plan is None:
                # A new data set, so that no attempt of the first run can win.
                spec = attrs.evolve(spec, data_set=new_data_set())
                plan = _run_map_stage(spark, spec, schema, bounded_by_bytes(tagged))
        assert plan is not None, "no row is too wide for batches whose bytes are counted"
        read = one_row_per_partition(spark, buckets).mapInArrow(ReduceTask(plan, schema).read, schema)
        return Exchanged(read.toDF(*df.columns), plan)
    except BaseException as error:
        _release_quietly(spec)
        sentence = exchange_error_in(str(error))
        if sentence is None:
            raise
        raise ExchangeError(sentence) from error


def _checked_keys(df: "AnyDataFrame", keys: "Key | Sequence[Key]", partitions: int | None) -> tuple[list[Key], int]:
    """Key columns and number of buckets. Raises ExchangeError and ValueError for unsupported keys or numbers."""
    if not isinstance(df, DataFrame):
        raise ExchangeError("An exchange needs a session of its own driver: Spark Connect has none.")
    if df.isStreaming:
        raise ExchangeError("A stream cannot be exchanged as a whole: do it for each batch, in foreachBatch.")
    columns: list[Key] = [keys] if isinstance(keys, str) or not isinstance(keys, Sequence) else list(keys)
    if not columns:
        raise ValueError("an exchange needs a key")
    default = df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200
    buckets = int(default) if partitions is None else partitions
    if not 1 <= buckets <= MAX_BUCKETS:
        raise ValueError(f"{buckets} partitions: 1 to {MAX_BUCKETS} are possible")
    for key in df.select(*columns).schema:
        if "string collate " in key.dataType.simpleString():  # Spark does not expose the hash of such a string
            raise ExchangeError(
                f"The key {key.name} has a collation: exchange by an expression of it, lower() for example."
            )
    return columns, buckets


def _run_map_stage(
    spark: SparkSession, spec: ExchangeSpec, schema: StructType, batches: Batches
) -> ExchangePlan | None:
    """Run the map stage. Returns None, with everything released, if a row was too wide for these batches."""
    tagged = in_cloned_session(batches.rows, {**_SETTINGS, **batches.settings})
    committed = tagged.mapInArrow(MapTask(spec, schema).write, COMMIT_SCHEMA)
    session = batches.rows._jdf.sparkSession()
    # With the tag, `interruptAll` of the user's session stops this job like its own jobs.
    tag = session.sessionJobTag()
    spark.sparkContext.addJobTag(tag)
    try:
        rows = committed.collect()
    finally:
        spark.sparkContext.removeJobTag(tag)
        # An Observation of the rows waits for a query of the session in which it was created. (Spark releases without
        # `tryComplete` use a listener, which the clone has, too.)
        with suppress(Py4JError):
            session.observationManager().tryComplete(committed._jdf.queryExecution())
    # Spark returns the result of each task's first successful attempt.
    winners = tuple(map(Winner.of, rows))
    if any(winner.too_wide for winner in winners):
        _release_quietly(spec)
        return None
    plan = ExchangePlan(spec, winners)
    release_losers(plan)
    return plan


def exchange_error_in(text: str) -> str | None:
    """The sentence of an ExchangeError in Spark's message about a task that failed with it, or None."""
    _, marker, rest = text.rpartition(f"{ExchangeError.__name__}: ")
    return rest.splitlines()[0] if marker else None


def _addresses(brokers: str | Sequence[str]) -> tuple[str, ...]:
    names = [brokers] if isinstance(brokers, str) else list(brokers)
    if not names:
        raise ValueError("an exchange needs a broker")
    return tuple("{}:{}".format(*parse_address(name.strip())) for name in names)


def _tagged(df: "AnyDataFrame", columns: "Sequence[Column | str]", buckets: int) -> "tuple[StructType, AnyDataFrame]":
    """The rows with the number of their bucket behind them, and their schema without it."""
    # Columns get their numbers as names, because a name may occur twice.
    fields = [StructField(str(n), f.dataType, f.nullable, f.metadata) for n, f in enumerate(df.schema.fields)]
    schema = StructType(fields)
    # Spark's own placement of rows, computed in the JVM.
    bucket = sf.pmod(sf.hash(*columns), sf.lit(buckets))
    return schema, df.select("*", bucket).toDF(*schema.names, "bucket")


def _require_codec(compression: str | None) -> None:
    if compression not in (None, "lz4", "zstd"):
        raise ValueError(f"compression is lz4, zstd or None, not {compression!r}")


def _require(spec: ExchangeSpec) -> None:
    """Raise ExchangeError, before any work is done, if a broker cannot be reached."""
    for address in spec.brokers:
        try:
            with ShuffleAdmin(address, security=spec.security) as admin:
                admin.partitions(spec.prefix)
        except ShuffleError as error:
            raise ExchangeError(
                f"The exchange needs a broker at {address}: {error}."
                f" Start one with `broker serve --listener shuffle{'+ssl' if spec.security else ''}://HOST:PORT`."
            ) from error


def _release(spec: ExchangeSpec) -> None:
    """Release the data of all attempts on the brokers, and refuse the data of attempts that are still running."""
    failed: list[tuple[str, ShuffleError]] = []
    for address in spec.brokers:
        try:
            with ShuffleAdmin(address, security=spec.security) as admin:
                admin.release_data_set(spec.data_set)
        except ShuffleError as error:
            failed.append((address, error))
    if failed:
        address, why = failed[0]
        raise ExchangeError(f"The exchange could not be released on {address}: {why}.") from why


def _release_quietly(spec: ExchangeSpec) -> None:
    """As ``_release``, without errors: a broker that cannot be reached deletes its share after the time to live."""
    with suppress(ExchangeError, RuntimeError):  # RuntimeError: an ending interpreter starts no threads
        _release(spec)


def release_losers(plan: ExchangePlan) -> None:
    """Release the data of losing attempts, finished or running. Data that they begin later is released with the
    exchange."""
    spec = plan.spec
    winners = {spec.partition(winner.map_number, winner.attempt) for winner in plan.winners}
    for address in spec.brokers:
        with suppress(ShuffleError), ShuffleAdmin(address, security=spec.security) as admin:
            for info in admin.partitions(spec.prefix):
                if info.partition not in winners:
                    admin.release(info.partition)


def in_cloned_session(df: "AnyDataFrame", settings: Mapping[str, str]) -> DataFrame:
    """The same rows, planned with ``settings``.

    The settings are made in a clone of the session. The user's session is not changed, not even temporarily, because
    other threads plan their queries with it, including other exchanges.
    """
    spark = df.sparkSession
    session = df._jdf.sparkSession().cloneSession()
    for name, value in settings.items():
        session.conf().set(name, value)
    assert spark._jvm is not None
    plan = df._jdf.queryExecution().analyzed()
    rows = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan)
    # No new SparkSession: creating it would make RDD.toDF, in the whole process, create its frames in that session.
    return DataFrame(rows, spark)


def _require_arrow(schema: StructType) -> None:
    """Raise ExchangeError for a column that Spark cannot give to Python as Arrow."""
    for field in schema.fields:
        try:
            arrow_schema(StructType([field]))
        except PySparkTypeError as error:
            raise ExchangeError(
                f"The column {field.name} cannot be exchanged, because Spark gives no Python worker the type"
                f" {field.dataType.simpleString()}: cast it to a string before, and back afterwards."
            ) from error
