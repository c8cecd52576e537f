"""Writes rows to topics: the tasks' side, and batch writes. Streams are ``stream_sink.py``'s, commits ``sink_commit.py``'s.

Spark plans a write in one process, writes in tasks, and commits or aborts in yet another, so a writer is a value: options and
columns. Connections are made in ``write`` and ``commit``. A batch write is *at least once* unless it is told otherwise: a task
that is run again writes again. With ``deliveryGuarantee=exactly-once`` it is all or nothing, however many tasks, topics and
partitions; whoever reads ``read_committed`` never sees a part of it.

With ``txnAppId`` and ``txnVersion`` (Delta's names) a batch write is also recognised when it comes again to the same target
(``sink_marks.py``). That is how the result of a query in update mode gets into a topic exactly once, for Spark refuses update
mode to every Python sink:

    def write(changed, batch_id):
        changed.write.format("broker").options(txnAppId="counts", txnVersion=batch_id, ...).mode("append").save()

    counts.writeStream.outputMode("update").foreachBatch(write).start()
"""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import KafkaClientError
from broker.client.kafka.transaction import new_name
from broker.errors import ConfigError
from broker.spark.sink import commit as sink_commit
from broker.spark.sink.commit import MicroBatch, Written
from broker.spark.sink.marks import write_name
from broker.spark.sink.options import AT_LEAST_ONCE, SinkColumns, SinkOptions
from broker.spark.worker import settle

# How a streaming query tells its tasks what they run for. Undocumented, and the only way: ``write`` is not given the batch.
_QUERY_ID = "sql.streaming.queryId"
# The streaming query's run, a UUID that is new after each start; outside of one it is whatever the user has called the job.
_JOB_GROUP = "spark.jobGroup.id"


@attrs.frozen
class Task:
    """Where in a job we are. ``query_id``: of the streaming query, if it is one, and ``run``: which of its runs."""

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
    """Write all rows. ``job``: the name of all tasks' transactions; None: without one (at least once)."""
    # Only tasks need Arrow and numpy; planning and committing, each in a process of its own, are quicker without.
    from broker.spark.sink.row_writer import RowWriter

    settle()
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
                    pass  # the driver aborts it, or its next attempt, or its time is over
            raise
    return Written(writer.rows, tuple(sorted(writer.topics)), identity, task.query_id, task.run)


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("broker")``."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        # Made where the write is planned, so that all tasks and the commit have the same.
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
            members = [one.identity for one in written(messages) if one.identity is not None]
            with Cluster(self._options.client) as cluster:
                sink_commit.abort_job(cluster, self._job, members)


def written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Without those of tasks that failed."""
    return [one for one in messages if isinstance(one, Written)]


def batch_writer(given: Any, schema: StructType, overwrite: bool) -> BatchWriter:
    """Raises ConfigError, or why the broker cannot be asked."""
    if overwrite:
        raise ConfigError('A topic cannot be overwritten, only appended to: write with mode("append").')
    options = SinkOptions.parse(given, default_guarantee=AT_LEAST_ONCE)
    writer = BatchWriter(options, SinkColumns.of(schema, options.topic))
    with Cluster(options.client) as cluster:
        cluster.topics(())  # a wrong address or password is found here, once, and not by every task
    return writer
