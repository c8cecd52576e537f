"""Word count as a Spark stream: reads a topic of lines and writes a topic of counts. Each line is counted exactly once.

    python docs/examples/pipeline.py --bootstrap-servers localhost:9092 --checkpoint ./checkpoint --feed

The job reads the topic ``lines`` from its beginning, splits the lines into words, and counts each word. After each batch it
writes a record for each word to the topic ``counts``, with the word as key. You can kill it at any time and start it again
with the same checkpoint: for a consumer with ``isolation.level=read_committed``, the last record of each word is its count.

``--feed`` first writes the reference text that comes with Python to ``lines``, if the topic is empty.
"""

import argparse
import os
import sys
from collections import Counter
from pydoc_data.topics import topics

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from broker.spark import java

PARTITIONS = 2


def word_counts(spark: SparkSession, servers: str, lines_per_batch: int) -> DataFrame:
    """The job without its sink: columns ``key`` (a word) and ``value`` (its count as text)."""
    lines = (
        spark.readStream.format("broker")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "lines")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", lines_per_batch)
        .load()
    )
    words = lines.select(F.explode(F.split(F.lower(F.col("value").cast("string")), r"\W+")).alias("word"))
    counts = words.where(F.col("word") != "").groupBy("word").count()
    return counts.select(F.col("word").alias("key"), F.col("count").cast("string").alias("value"))


def run(servers: str, checkpoint: str, lines_per_batch: int, forever: bool) -> None:
    java.provide()
    # The tasks run this Python, not the first `python3` on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("word count")
        .master(os.environ.get("SPARK_MASTER", "local[2]"))
        .config("spark.sql.shuffle.partitions", PARTITIONS)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        word_counts(spark, servers, lines_per_batch)
        .writeStream.format("broker")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", "counts")
        .option("checkpointLocation", checkpoint)
        .outputMode("complete")
    )
    query = query.trigger(processingTime="1 second") if forever else query.trigger(availableNow=True)
    query.start().awaitTermination()
    spark.stop()


def text() -> list[str]:
    """The lines that ``--feed`` writes."""
    return [line for _, topic in sorted(topics.items()) for line in topic.splitlines() if line.strip()]


def feed(servers: str) -> None:
    """Create the topics, and write the text to ``lines`` if it is empty."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    for name in ("lines", "counts"):
        try:
            admin.create_topics([NewTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)])
        except TopicAlreadyExistsError:
            pass
    admin.close()
    if not any(_ends(servers, "lines").values()):
        producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20)
        for number, line in enumerate(text()):
            producer.send("lines", line.encode(), partition=number % PARTITIONS)
        producer.flush()
        producer.close()


def result(servers: str) -> Counter[str]:
    """The last committed count of each word in the topic ``counts``."""
    counts: Counter[str] = Counter()
    ends = _ends(servers, "counts")
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        isolation_level="read_committed",
        consumer_timeout_ms=10_000,
        enable_auto_commit=False,
    )
    consumer.assign(list(ends))
    consumer.seek_to_beginning()
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                counts[record.key.decode()] = int(record.value)
    consumer.close()
    return counts


def _ends(servers: str, topic: str) -> dict[TopicPartition, int]:
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
    ends: dict[TopicPartition, int] = consumer.end_offsets([TopicPartition(topic, n) for n in range(PARTITIONS)])
    consumer.close()
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--checkpoint", required=True, help="a directory that is kept when the job ends")
    parser.add_argument("--lines-per-batch", type=int, default=4000)
    parser.add_argument("--feed", action="store_true", help="first create the topics and write Python's reference text")
    parser.add_argument(
        "--forever", action="store_true", help="wait for new lines; by default the job ends when it has read all lines"
    )
    arguments = parser.parse_args()
    if arguments.feed:
        feed(arguments.bootstrap_servers)
    run(arguments.bootstrap_servers, arguments.checkpoint, arguments.lines_per_batch, arguments.forever)
    counts = result(arguments.bootstrap_servers)
    print(f"{counts.total()} words, {len(counts)} different ones")
    for word, count in counts.most_common(10):
        print(f"{word} {count}")


if __name__ == "__main__":
    main()
