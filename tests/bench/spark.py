"""Topics in Spark, end to end: ``python -m tests.bench.spark --rows 2000000 --size 100``.

A broker process beside a session of local[2]; rows of random bytes. Times are wall times, the best of ``--repeat``, and include
everything from the action on (planning processes, scan or sink). CPU is the median of the same rounds: of the JVM, of Spark's
Python processes, and of the broker; on a machine that does other things as well it says more. Reading goes to Spark's noop sink,
writing comes from uncompressed Parquet files. ``floor`` measures what Spark's machinery costs without topics
(``spark_floor.py``).
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.columns.batch_builder import build
from tests.bench.process import BrokerProcess
from tests.bench.spark_floor import FloorSource

PIECE = 100_000  # rows at a time in this process
ALL = "key,value,topic,partition,offset,timestamp,timestampType"


def values(rows: int, size: int) -> pa.Array:
    ends = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(os.urandom(rows * size))])


def keys(rows: int, first: int) -> pa.Array:
    return pa.array([b"key-%d" % i for i in range(first, first + rows)], pa.binary())


class Bench:
    def __init__(self, options: argparse.Namespace, broker: BrokerProcess, directory: str) -> None:
        self.options = options
        self.broker = broker
        self.parquet = f"{directory}/rows"
        self.spark = session(directory, options.conf)
        self.client = ClientConfig.from_properties({"bootstrap.servers": broker.address})

    def fill(self, topic: str) -> None:
        """``rows`` into ``topic``, and as Parquet files, of which Spark makes about as many partitions."""
        options = self.options
        os.makedirs(self.parquet)
        per_file = -(-options.rows // options.partitions)
        with Cluster(self.client) as cluster, cluster.producer() as producer:
            create(cluster, topic, options.partitions)
            for partition in range(options.partitions):
                left = min(per_file, options.rows - partition * per_file)
                schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
                where = f"{self.parquet}/{partition}.parquet"
                with pq.ParquetWriter(where, schema, compression="none", use_dictionary=False) as writer:
                    for first in range(0, left, PIECE):
                        rows = min(PIECE, left - first)
                        table = pa.table([keys(rows, first), values(rows, options.size)], schema=schema)
                        writer.write_table(table)
                        column = table.column("value")
                        for one in build(column, now_ms=0, max_batch_bytes=options.batch):
                            producer.send(topic, partition, one.data, one.count)
            producer.flush()

    def measure(self, name: str, run: Callable[[], object]) -> float:
        took: list[float] = []
        used: list[Any] = []  # JVM, Python, broker
        for _ in range(self.options.repeat):
            broker, spark, start = self.broker.cpu_s(), cpu_of_tree(self.broker.pid), time.perf_counter()
            run()
            took.append(time.perf_counter() - start)
            used.append([*(cpu_of_tree(self.broker.pid) - spark), self.broker.cpu_s() - broker])
        best, middle = min(took), sorted(took)[len(took) // 2]
        jvm, python, broker = np.median(used, axis=0)
        rows, size = self.options.rows, self.options.rows * self.options.size
        print(
            f"{name:32} best {best:6.2f} s {rows / best / 1e3:6.0f} k rows/s {size / best / 1e6:5.0f} MB/s median {middle:6.2f} s"
            f"  CPU: JVM {jvm:5.2f} s, Python {python:5.2f} s, broker {broker:5.2f} s"
            f" ({(jvm + python + broker) / rows * 1e9:5.0f} ns a row)",
            flush=True,
        )
        return best

    def read(self, topic: str, **more: object) -> Any:
        reader = self.spark.read.format("broker").option("kafka.bootstrap.servers", self.broker.address)
        return reader.options(subscribe=topic, **more).load()

    def write(self, topic: str, columns: list[str], **more: object) -> None:
        writer = self.spark.read.parquet(self.parquet).select(*columns).write.format("broker").mode("append")
        writer.option("kafka.bootstrap.servers", self.broker.address).options(topic=topic, **more).save()

    def floor(self, columns: str) -> Any:
        options = self.options
        # As many rows in a batch as the source has.
        rows = {"rows": options.rows, "batchRows": max(1, 1_000_000 // (options.size + 8))}
        reader = self.spark.read.format("floor").options(size=options.size, partitions=options.partitions, **rows)
        return reader.option("columns", columns).load()

    def drop(self, columns: list[str]) -> None:
        self.spark.read.parquet(self.parquet).select(*columns).write.format("floor").mode("append").save()


def cpu_of_tree(without: int) -> np.ndarray[Any, Any]:
    """Seconds of the JVM below this process and of all Pythons there, also of children that have ended; not of ``without``."""
    parents: dict[int, int] = {}
    ticks: dict[int, Any] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                name, fields = Path(f"/proc/{entry}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
            except OSError:
                continue
            parents[int(entry)] = int(fields.split()[1])
            # Its own, and of children that it has waited for: the JVM's are the Pythons that plan.
            own, ended = (sum(map(int, fields.split()[place : place + 2])) for place in (11, 13))
            ticks[int(entry)] = np.array([own, ended] if name == "java" else [0, own + ended])
    total, tree = np.zeros(2), [os.getpid()]
    while tree:
        one = tree.pop()
        total += ticks.get(one, 0)
        tree += [child for child, parent in parents.items() if parent == one and child != without]
    return total / os.sysconf("SC_CLK_TCK")


def session(directory: str, settings: list[str]) -> Any:
    from pyspark.sql import SparkSession

    from broker.spark import java, register

    java.provide()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{directory}/local")
    )
    for setting in settings:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(FloorSource)
    return spark


def create(cluster: Cluster, topic: str, partitions: int) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    host, port = cluster.config.bootstrap[0]
    admin = KafkaAdminClient(bootstrap_servers=f"{host}:{port}")
    admin.create_topics([NewTopic(topic, partitions, 1)])
    admin.close()
    cluster.topics([topic])


def noop(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


def run(bench: Bench, options: argparse.Namespace) -> None:
    print(
        f"{options.rows} rows of {options.size} B, {options.partitions} partitions, batches of {options.batch} B, local[2]"
    )
    bench.fill("source")
    wanted = set(options.what)
    noop(bench.read("source"))  # the first query starts the workers
    if "floor" in wanted:
        bench.measure("parquet to noop", lambda: noop(bench.spark.read.parquet(bench.parquet)))
        bench.measure("batches from memory to noop", lambda: noop(bench.floor(ALL)))
        bench.measure("of them value only", lambda: noop(bench.floor("value")))
        bench.measure("parquet to nothing, value only", lambda: bench.drop(["value"]))
    if "read" in wanted:
        bench.measure("read", lambda: noop(bench.read("source")))
        bench.measure("read, value only", lambda: noop(bench.read("source", columns="value")))
        if options.headers:
            bench.measure("read with headers", lambda: noop(bench.read("source", includeHeaders=True)))
    with Cluster(bench.client) as cluster:
        create(cluster, "sink", options.partitions)
    if "write" in wanted:
        bench.measure("write values", lambda: bench.write("sink", ["value"]))
        bench.measure("write keys and values", lambda: bench.write("sink", ["key", "value"]))
        bench.measure("write exactly once", lambda: bench.write("sink", ["value"], deliveryGuarantee="exactly-once"))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=2_000_000)
    arguments.add_argument("--size", type=int, default=100)
    arguments.add_argument("--partitions", type=int, default=2)
    arguments.add_argument(
        "--batch", type=int, default=1_000_000, help="bytes of a record batch in the topic that is read"
    )
    arguments.add_argument("--repeat", type=int, default=4)
    arguments.add_argument("--dir", help="where to work (a temporary directory)")
    arguments.add_argument("--headers", action="store_true")
    arguments.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark")
    arguments.add_argument("--what", nargs="*", default=["floor", "read", "write"])
    options = arguments.parse_args()
    directory = tempfile.mkdtemp(dir=options.dir)
    try:
        with BrokerProcess(directory=directory) as broker:
            run(Bench(options, broker, directory), options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
