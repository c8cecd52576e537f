"""Writes rows to topics: the tasks' side, batch writes and streams (``df.writeStream``). Commits are in ``commit.py``.

Spark plans a write in one process, writes in tasks, and commits or aborts in yet another process, so a writer is a
value with options and columns. It connects in ``write`` and ``commit``. By default a batch write is *at least once*: a
task that runs again writes again. With ``deliveryGuarantee=exactly-once`` it is all or nothing, for any number of
tasks, topics and partitions: a reader with ``read_committed`` never sees a part of it.

With ``txnAppId`` and ``txnVersion`` (Delta's names) a batch write is also recognised when it is repeated to the same
target (``marks.py``). In this way the result of a query in update mode can be written to a topic exactly once, although
Spark does not allow update mode for Python sinks:

    def write(changed, batch_id):
        changed.write.format("broker").options(txnAppId="counts", txnVersion=batch_id, ...).mode("append").save()

    counts.writeStream.outputMode("update").foreachBatch(write).start()

A stream writes micro-batches, by default each exactly once. Spark (4.1 to 4.3) does not tell ``write`` the batch nor
``commit`` the query, and keeps no writer between batches. Tasks learn the query's id from a local property
(``sql.streaming.queryId``), which is undocumented but as old as Structured Streaming, and pass it to the commit in
their messages. A batch without rows has nothing to commit.

The guarantee depends on Spark's own: a replayed batch has the same number and reads the same rows, which is true for
sources that can replay and for deterministic queries. It lasts as long as the checkpoint and the group's offsets: if a
query is killed between the broker's decision and Spark's entry in the commit log, and is restarted later than the
broker's ``offsets.retention.minutes`` (7 days), it writes its last batch twice.

Tests: tests/spark/sink/test_commit.py,
tests/spark/test_sink_kill.py,
tests/spark/test_pipeline.py.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import KafkaClientError
from broker.client.kafka.transaction import new_name
from broker.errors import ConfigError
from broker.spark.sentences import sentences_only
from broker.spark.sink import commit as sink_commit
from broker.spark.sink.commit import MicroBatch, Written
from broker.spark.sink.marks import query_name, write_name
from broker.spark.sink.options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkColumns, SinkOptions
from broker.spark.worker import freeze_imports

# The local property from which a task learns its streaming query. It is undocumented, and there is no other way.
_QUERY_ID = "sql.streaming.queryId"
# In a streaming query, the id of its run, a new UUID after each start; otherwise the user's name for the job.
_JOB_GROUP = "spark.jobGroup.id"


@attrs.frozen
class Task:
    """A task's place in its job. ``query_id``: the streaming query, if the job belongs to a query; ``run``: the query's
    run."""

    partition: int
    attempt: int
    query_id: str | None = None
    run: str | None = None

    @classmethod
    def current(cls) -> "Task":
        context = TaskContext.get()
        assert context is not None, "this runs in a task"
        query_id = context.getLocalProperty(_QUERY_ID)
        run = None if query_id is None else _uuid(context.getLocalProperty(_JOB_GROUP))
        return cls(context.partitionId(), context.attemptNumber(), query_id, run)


def _uuid(text: str | None) -> str | None:
    try:
        return str(UUID(text or ""))
    except ValueError:
        return None


def write_task(
    options: SinkOptions, columns: SinkColumns, task: Task, job: str | None, batches: Iterator[Any]
) -> Written:
    """Write all rows. ``job``: the name with which all tasks' transactions begin; None: no transactions (at least once)."""
    # Only tasks need Arrow and numpy; the processes that plan and commit start faster without them.
    from broker.spark.sink.row_writer import RowWriter

    freeze_imports()
    name = None if job is None else sink_commit.task_name(job, task.partition, task.attempt)
    with Cluster(options.client, patient=True) as cluster, cluster.producer(transactional_id=name) as producer:
        writer = RowWriter(cluster, producer, columns, options.topic, first=task.partition)
        began = False
        try:
            for batch in batches:
                if name is not None and not began and batch.num_rows:
                    producer.begin()
                    began = True
                writer.add(batch)
            writer.finish()
            producer.flush()
            identity = producer.hand_over() if began else None
        except BaseException:
            if began:
                try:
                    producer.abort()
                except KafkaClientError:
                    pass  # the driver or the next attempt aborts it, or it times out
            raise
    return Written(writer.rows, tuple(sorted(writer.topics)), identity, task.query_id, task.run)


@sentences_only
class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("broker")``."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        # Chosen when the write is planned, so that all tasks and the commit use the same name.
        self._job: str | None = None
        if options.version is not None:
            self._job = write_name(options.version[0], options.topic)
        elif options.exactly_once:
            self._job = f"spark-batch-{new_name()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_task(self._options, self._columns, Task.current(), self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.version is not None:
            app, number = self._options.version
            with Cluster(self._options.client, patient=True) as cluster:
                marks = sink_commit.write_marks(cluster, app, self._options.topic, written(messages))
                MicroBatch(cluster, number, written(messages), marks).commit()
        elif self._job is not None:
            with Cluster(self._options.client, patient=True) as cluster:
                sink_commit.commit_job(cluster, self._job, written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._job is not None:
            members = [message.identity for message in written(messages) if message.identity is not None]
            with Cluster(self._options.client) as cluster:
                sink_commit.abort_job(cluster, self._job, members)


def written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The messages of tasks that did not fail."""
    return [message for message in messages if isinstance(message, Written)]


def batch_writer(given: Any, schema: StructType, overwrite: bool) -> BatchWriter:
    """Raises ConfigError, or the error that prevents the broker from answering."""
    if overwrite:
        raise ConfigError('A topic cannot be overwritten, only appended to: write with mode("append").')
    options = SinkOptions.parse(given, default_guarantee=AT_LEAST_ONCE)
    writer = BatchWriter(options, SinkColumns.of(schema, options.topic))
    with Cluster(options.client) as cluster:
        cluster.topics(())  # reports a wrong address or password here, once, instead of in every task
    return writer


_log = logging.getLogger(__name__)


@sentences_only
class StreamWriter(DataSourceStreamArrowWriter):
    """A value: Spark creates a new writer for every commit."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self.options = options
        self.columns = columns

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = Task.current()
        if not self.options.exactly_once:
            return write_task(self.options, self.columns, task, None, iterator)
        if task.query_id is None:
            raise ConfigError(
                "This Spark does not tell its tasks which query they run for, so that a batch cannot be recognised:"
                " set deliveryGuarantee=at-least-once."
            )
        return write_task(self.options, self.columns, task, query_name(task.query_id), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self.options.exactly_once:
            with Cluster(self.options.client, patient=True) as cluster:
                MicroBatch(cluster, batchId, written(messages)).commit()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Spark also calls this after a failed commit. A decision that the broker has made does not change.
        members = [message.identity for message in written(messages) if message.identity is not None]
        if members:
            with Cluster(self.options.client) as cluster:
                sink_commit.abort(cluster, members)


def stream_writer(given: Any, schema: StructType) -> StreamWriter:
    """Raises ConfigError. In Spark's complete mode every batch appends the whole result, as with Spark's own Kafka sink."""
    options = SinkOptions.parse(given, default_guarantee=EXACTLY_ONCE)
    if options.version is not None:
        _log.warning("txnAppId and txnVersion have no effect here: a stream counts its batches by itself")
    return StreamWriter(options, SinkColumns.of(schema, options.topic))
