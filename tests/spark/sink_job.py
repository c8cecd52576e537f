"""A streaming query from topic to topic, in a process that kills itself at a given point: driver, JVM and all.

python -m tests.spark.sink_job SERVERS FROM TO CHECKPOINT, with KILL_AT=<point>:<batch> in the environment.

``broker`` kills the broker (BROKER_PID) while it decides, and lives on;
``broker+<point>`` kills both.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.client.kafka import Cluster
from broker.client.kafka.producer import Producer
from broker.spark.data_source import BrokerDataSource
from broker.spark.sink.batch_sink import StreamWriter, stream_writer, written
from broker.spark.sink.commit import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_A_BATCH = 40


def reached(point: str, batch_id: int) -> None:
    wanted, _, number = os.environ.get("KILL_AT", "").partition(":")
    if not wanted or batch_id != int(number):
        return
    if wanted in ("broker", f"broker+{point}") and point in ("number", wanted.removeprefix("broker+")):
        os.kill(int(os.environ["BROKER_PID"]), signal.SIGKILL)
    if wanted.removeprefix("broker+") == point:
        kill_all()


def kill_all() -> None:
    """All processes from the query's down to this one: the driver first, so that no process can react."""
    processes = [os.getpid()]
    while processes[-1] != int(os.environ["SINK_JOB_PID"]):
        with open(f"/proc/{processes[-1]}/stat", encoding="utf-8") as file:
            processes.append(int(file.read().rpartition(")")[2].split()[1]))
    for process in reversed(processes):
        os.kill(process, signal.SIGKILL)


class KilledBatch(MicroBatch):
    def abort_leftovers(self) -> None:
        super().abort_leftovers()
        reached("leftovers", self.batch_id)

    def last_committed(self) -> int:
        last = super().last_committed()
        reached("begun", self.batch_id)
        return last

    def add_number(self, leader: Producer) -> None:
        super().add_number(leader)
        reached("number", self.batch_id)

    def decide(self, leader: Producer) -> None:
        super().decide(leader)
        reached("decided", self.batch_id)


class KilledWriter(StreamWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        if context.partitionId() == 0:
            reached("before", batch_id)
        message = super().write(iterator)
        if context.partitionId() == 0:
            reached("produced", batch_id)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        reached("written", batchId)
        with Cluster(self.options.client) as cluster:
            KilledBatch(cluster, batchId, written(messages)).commit()


class KilledSource(BrokerDataSource):
    """``format("broker")`` in this process."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        made = stream_writer(self.options, schema)
        return KilledWriter(made.options, made.columns)


def start_session(checkpoint: str) -> "SparkSession":
    from pyspark.sql import SparkSession

    from broker.spark import java

    java.provide()
    os.environ["SINK_JOB_PID"] = str(os.getpid())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{checkpoint}-local")
        # How long a worker may take to start; 15 s are too few if every core is busy.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = start_session(checkpoint)
    spark.dataSource.register(KilledSource)
    broker = {"kafka.bootstrap.servers": servers}
    rows = (
        spark.readStream.format("broker")
        .options(**broker, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(ROWS_A_BATCH))
        .load()
        .select("key", "value")
    )
    query = (
        rows.writeStream.format("broker")
        .options(**broker, topic=target, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    from tests.spark import sink_job  # under its own name, which Spark's workers import

    sink_job.main(*sys.argv[1:])
