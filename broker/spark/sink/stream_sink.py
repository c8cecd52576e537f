"""``df.writeStream.format("broker")``: micro-batches to topics, by default each exactly once.

Spark (4.1 to 4.3) does not tell ``write`` the batch nor ``commit`` the query, and keeps no writer between batches. Tasks learn
the query's id from a local property (``sql.streaming.queryId``), which is undocumented but as old as Structured Streaming, and
pass it to the commit in their messages. A batch without rows has nothing to commit.

The guarantee depends on Spark's own: a replayed batch has the same number and reads the same rows, which is true for sources that
can replay and for deterministic queries. It lasts as long as the checkpoint and the group's offsets: if a query is killed between
the broker's decision and Spark's entry in the commit log, and is restarted later than the broker's ``offsets.retention.minutes``
(7 days), it writes its last batch twice.

Tests: tests/spark/sink/test_commit.py, tests/spark/test_sink_kill.py, tests/spark/test_pipeline.py.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.client.kafka.cluster import Cluster
from broker.errors import ConfigError
from broker.spark.sentences import sentences_only
from broker.spark.sink import commit as sink_commit
from broker.spark.sink.batch_sink import Task, write_task, written
from broker.spark.sink.commit import MicroBatch
from broker.spark.sink.marks import query_name
from broker.spark.sink.options import EXACTLY_ONCE, SinkColumns, SinkOptions

_log = logging.getLogger(__name__)


@sentences_only
class StreamWriter(DataSourceStreamArrowWriter):
    """A value: Spark creates a new one for every commit."""

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
        # Spark also calls this after a failed commit. What the broker has decided by then does not change.
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
