"""``df.writeStream.format("broker")``: micro-batches to topics, each exactly once unless told otherwise.

What Spark gives and does not give (4.1 to 4.3): ``write`` is not told the batch, ``commit`` is not told the query, and neither is
kept between batches. The query's id comes to tasks by a local property (``sql.streaming.queryId``), which is not documented but
set since streaming began, and from them to the commit in their messages. A batch without rows has nothing to commit.

The guarantee rests on Spark's own: a batch that is replayed has the same number and reads the same rows, which is so for sources
that can replay and queries that are deterministic. It holds for as long as the checkpoint and the group's offsets live: a query
that was killed between the broker's decision and Spark's commit log and is restarted after more than the broker's
``offsets.retention.minutes`` (7 days) writes its last batch twice.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.client.kafka.cluster import Cluster
from broker.errors import ConfigError
from broker.spark.sink import commit as sink_commit
from broker.spark.sink.batch_sink import Task, write_task, written
from broker.spark.sink.commit import MicroBatch
from broker.spark.sink.marks import query_name
from broker.spark.sink.options import EXACTLY_ONCE, SinkColumns, SinkOptions

_log = logging.getLogger(__name__)


class StreamWriter(DataSourceStreamArrowWriter):
    """A value: Spark makes it anew for every commit."""

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
        # Also after a commit that has failed: what the broker has decided then stays so.
        members = [one.identity for one in written(messages) if one.identity is not None]
        if members:
            with Cluster(self.options.client) as cluster:
                sink_commit.abort(cluster, members)


def stream_writer(given: Any, schema: StructType) -> StreamWriter:
    """Raises ConfigError. In Spark's complete mode every batch appends the whole result, as with Spark's own Kafka sink."""
    options = SinkOptions.parse(given, default_guarantee=EXACTLY_ONCE)
    if options.version is not None:
        _log.warning("txnAppId and txnVersion have no effect here: a stream counts its batches by itself")
    return StreamWriter(options, SinkColumns.of(schema, options.topic))
