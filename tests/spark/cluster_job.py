"""Reads a topic on a cluster of two executors, each a process of its own. ``test_cluster`` starts it.

Arguments: the broker's address, the topic, a directory. Prints JSON: the records read, and the number of executors.
"""

import json
import os
import sys
from typing import Any


def main(bootstrap_servers: str, topic: str, directory: str) -> None:
    from broker.spark import java

    java.provide()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The executors' directory would be made among pyspark's own files.
    from tests.spark.spark_home import home

    os.environ["SPARK_HOME"] = home(directory)
    from pyspark.sql import SparkSession

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
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "columns": "value"}
    batch = spark.read.format("broker").options(minPartitions="4", **options).load()
    executors = set(batch.rdd.mapPartitions(who).collect())
    seen: list[str] = []

    def take(rows: Any, _: int) -> None:
        seen.extend(row.value.decode() for row in rows.collect())

    stream = spark.readStream.format("broker").options(startingOffsets="earliest", **options).load().writeStream
    query = (
        stream.foreachBatch(take)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = sorted(row.value.decode() for row in batch.collect())
    print(json.dumps({"batch": rows, "stream": sorted(seen), "executors": len(executors)}))
    spark.stop()


def who(_rows: Any) -> Any:
    """The executor that runs this task."""
    yield os.environ.get("SPARK_EXECUTOR_DIRS", "")


if __name__ == "__main__":
    main(*sys.argv[1:])
