"""An exchange on a cluster of two executors, where an executor is killed. ``test_exchange_cluster`` starts it.

Arguments: the shuffle address, a directory, and when: in the map ``stage``, or ``after`` it. Prints JSON: whether rows and
placement are those of a repartition, both times they are read; for each map task, which attempts wrote to the broker; how many
were finished when the executor was killed; and how many partitions are left, at the end of the reading and after the release.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def main(address: str, directory: str, when: str) -> None:
    from broker.spark import java

    java.provide()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The executors' directory would be made among pyspark's own files.
    from tests.spark.spark_home import home

    os.environ["SPARK_HOME"] = home(directory)
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf

    from broker.spark import exchange
    from broker.spark.exchanges import plan as exchange_batches

    # So small that a map task begins to write long before it ends; and rows so large that a batch is not held back in a buffer.
    exchange_batches._ROWS = 50
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.locality.wait", "0")
        .getOrCreate()
    )
    ids = spark.range(0, 4000, 1, 4)
    rows = ids.select("id", (sf.col("id") % 97).cast("string").alias("key"), sf.repeat(sf.lit("x"), 3000).alias("text"))
    df = rows.mapInArrow(slowly, rows.schema) if when == "stage" else rows
    executors = sorted(set(spark.range(0, 8, 1, 8).mapInArrow(executor, "pid int").toPandas()["pid"]))
    assert len(executors) == 2, executors
    watch = Watch(address, executors[0] if when == "stage" else None)
    exchanged = exchange(df, "key", 5, brokers=address)
    watch.stop()
    if when == "after":
        os.kill(executors[0], signal.SIGKILL)
    expected = placed(rows.repartition(5, "key"))
    same = [expected == placed(exchanged) for _ in range(2)]
    winners = sorted((winner.map_number, winner.attempt) for winner in exchanged.exchange.winners)
    left = watch.look()
    exchanged.release()
    result = {
        "same": same,
        "attempts": {number: len(attempts) for number, attempts in sorted(watch.attempts.items())},
        "finished_at_the_kill": sorted(watch.finished),
        "winners_left": left == winners,
        "left": len(watch.look()),
    }
    print(json.dumps(result))
    spark.stop()


class Watch:
    """Polls the broker's partitions, and kills an executor in the second wave of map tasks."""

    def __init__(self, address: str, victim: int | None) -> None:
        from broker.client import ShuffleAdmin

        self.attempts: dict[int, set[int]] = {}
        self.finished: list[int] = []
        self._admin = ShuffleAdmin(address)
        self._victim = victim
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            self.look()
            time.sleep(0.02)

    def look(self) -> list[tuple[int, int]]:
        partitions = self._admin.partitions()
        for info in partitions:
            self.attempts.setdefault(info.partition.number, set()).add(info.partition.attempt)
        states = [(info.partition.number, info.state.name) for info in partitions]
        finished = [number for number, state in states if state == "FINISHED"]
        if self._victim is not None and len(finished) == 2 and len(states) == 4:
            os.kill(self._victim, signal.SIGKILL)
            self._victim, self.finished = None, finished
        return sorted((info.partition.number, info.partition.attempt) for info in partitions)

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        assert self._victim is None, "the executor was never killed"


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.1)
        yield batch


def executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The JVM above this worker and its daemon."""
    for _ in batches:
        time.sleep(0.2)  # so that both executors get tasks
        pid = os.getppid()
        with open(f"/proc/{pid}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        yield pa.record_batch({"pid": pa.array([parent], pa.int32())})


def placed(df: Any) -> list[str]:
    from pyspark.sql import functions as sf

    return sorted(map(repr, df.select("*", sf.spark_partition_id().alias("partition")).collect()))


if __name__ == "__main__":
    main(*sys.argv[1:])
