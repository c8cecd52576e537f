"""A streaming query with batches to two topics and one txnVersion, in a process that kills itself at a given point.

python -m tests.spark.foreach_job SERVERS FROM TO1 TO2 CHECKPOINT, with KILL_AT=<point>:<batch> in the environment: ``between``
the two writes, or a point of ``sink_job.py`` in the commit of the second write.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.client.kafka import Cluster
from broker.spark.data_source import BrokerDataSource
from broker.spark.sink.batch_sink import BatchWriter, batch_writer, written
from broker.spark.sink.commit import write_marks
from tests.spark.sink_job import ROWS_A_BATCH, KilledBatch, reached, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class KilledBatchWriter(BatchWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        assert self._options.version is not None
        app, number = self._options.version
        done = written(messages)
        with Cluster(self._options.client) as cluster:
            KilledBatch(cluster, number, done, write_marks(cluster, app, self._options.topic, done)).commit()


class KilledSource(BrokerDataSource):
    """``format("broker")`` in this process."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        made = batch_writer(self.options, schema, overwrite)
        if self.options["second"] != "true":
            return made
        return KilledBatchWriter(made._options, made._columns)


def main(servers: str, source: str, first: str, second: str, checkpoint: str) -> None:
    spark = start_session(checkpoint)
    spark.dataSource.register(KilledSource)
    broker = {"kafka.bootstrap.servers": servers}

    def write(batch: "DataFrame", batch_id: int) -> None:
        for topic in (first, second):
            numbered = {"txnAppId": "job", "txnVersion": str(batch_id), "second": str(topic == second).lower()}
            batch.write.format("broker").options(**broker, **numbered, topic=topic).mode("append").save()
            if topic == first:
                reached("between", batch_id)

    rows = (
        spark.readStream.format("broker")
        .options(**broker, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(ROWS_A_BATCH))
        .load()
        .select("key", "value")
    )
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    from tests.spark import foreach_job  # under its own name, which Spark's workers import

    foreach_job.main(*sys.argv[1:])
