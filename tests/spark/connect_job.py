"""All that docs/SPARK.md says of Spark Connect, in a process of its own: a process has the session of a JVM or of a server.

python -m tests.spark.connect_job SERVERS SHUFFLE DIRECTORY: starts a Spark Connect server, prints a JSON object.
"""

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(servers: str, shuffle: str, directory: str) -> None:
    from broker.errors import BrokerError
    from broker.spark import exchange, java, lag

    java.provide()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{directory}/local")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .getOrCreate()
    )
    broker = {"kafka.bootstrap.servers": servers}
    told: dict[str, Any] = {}

    def read(topics: str) -> list[str]:
        options = broker | {"subscribe": topics, "kafka.isolation.level": "read_committed"}
        rows = spark.read.format("broker").options(**options).load().selectExpr("topic", "cast(value AS string) v")
        return sorted(f"{row.topic} {row.v}" for row in rows.collect())

    rows = spark.sql("SELECT cast(id AS string) AS value FROM range(3)")
    rows.write.format("broker").options(**broker, topic="batch").save()
    told["batch"] = read("batch")

    source = spark.readStream.format("broker").options(**broker, subscribe="batch", startingOffsets="earliest").load()
    query = (
        source.select("value")
        .writeStream.format("broker")
        .options(**broker, topic="stream", checkpointLocation=f"{directory}/stream")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(240)
    told["lag"] = lag(query.lastProgress)[0].total
    told["stream"] = read("stream")

    def write(batch: "DataFrame", batch_id: int) -> None:
        for topic in ("left", "right", "left"):
            numbered = {"txnAppId": "both", "txnVersion": str(batch_id)}
            batch.write.format("broker").options(**broker, **numbered, topic=topic).mode("append").save()

    each = source.select("value").writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/each")
    each.trigger(availableNow=True).start().awaitTermination(240)
    told["foreachBatch"] = read("left,right")

    try:
        rows.write.format("broker").options(**broker, topic="batch").mode("overwrite").save()
    except Exception as error:
        told["overwrite"] = str(error)
    try:
        exchange(rows, "value", partitions=2, brokers=[shuffle])
    except BrokerError as error:
        told["exchange"] = str(error)
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
