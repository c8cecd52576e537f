"""Topics and exchanges in Spark, end to end: a broker process beside a session of local[2], and rows of random bytes.

Times are wall times, the best of the rounds, and include everything from the action on (planning processes, scan or sink). CPU is
the median of the same rounds: of the JVM, of Spark's Python processes, and of the broker; on a machine that does other things as
well it says more. ``read`` goes to Spark's noop sink, ``write`` comes from uncompressed Parquet files, and ``floor`` goes from
these to the noop sink, without topics. ``exchange`` takes turns with Spark's own ``repartition``: the same rows, the same
placement, the same sink. ``trigger``: a streaming query without a sink, into another topic, and exactly once, while a producer
writes all the time; medians of Spark's own ``durationMs`` over all micro-batches with rows, the first five left out.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.columns.batch_builder import build
from tests.bench.frame import CPU, Figures, Options, Row, Section, in_turns, medians, ratios
from tests.bench.process import BrokerProcess

_FILE_ROWS = 100_000  # at a time in this process
_SOURCE_BATCH_BYTES = 1_000_000
_WARM_BATCHES = 5
_EVERY_S = 0.02


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=2, help="of a topic (an exchange has four times as many)")
    parser.add_argument("--rate", type=int, default=10_000, help="records/s of the source of triggers")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark")


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
    own = ("ui.enabled=false", "ui.showConsoleProgress=false", "driver.memory=1g", "driver.host=127.0.0.1")
    builder = SparkSession.builder.master("local[2]")
    local = ("driver.bindAddress=127.0.0.1", f"local.dir={directory}/local")
    for setting in (*(f"spark.{each}" for each in own + local), *settings):
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def noop(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


class Bench:
    def __init__(self, options: Options, broker: BrokerProcess, directory: str) -> None:
        self.options, self.broker, self.directory = options, broker, directory
        self.rows = options.count(options.rows, options.partitions)
        self.parquet = f"{directory}/rows"
        self.spark = session(directory, options.conf)
        self.server = {"kafka.bootstrap.servers": broker.listeners["kafka"]}

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": self.broker.listeners["kafka"]})) as cluster:
            yield cluster

    def create(self, topic: str, partitions: int) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=self.broker.listeners["kafka"])
        admin.create_topics([NewTopic(topic, partitions, 1)])
        admin.close()

    def fill(self) -> None:
        """The rows into the topic ``source``, and as Parquet files, of which Spark makes about as many partitions."""
        size, chance = self.options.size, np.random.default_rng(7)
        os.makedirs(self.parquet)
        partitions = self.options.partitions
        self.create("source", partitions)
        schema = pa.schema([("key", pa.binary()), ("number", pa.int64()), ("value", pa.binary())])
        with self.cluster() as cluster, cluster.producer() as producer:
            for partition in range(partitions):
                where, left = f"{self.parquet}/{partition}.parquet", self.rows // partitions
                with pq.ParquetWriter(where, schema, compression="none", use_dictionary=False) as writer:
                    for first in range(0, left, _FILE_ROWS):
                        rows = min(_FILE_ROWS, left - first)
                        ends = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
                        data = [None, pa.py_buffer(ends), pa.py_buffer(os.urandom(rows * size))]
                        values = pa.Array.from_buffers(pa.binary(), rows, data)
                        keys = pa.array([b"key-%d" % n for n in range(first, first + rows)], pa.binary())
                        numbers = pa.array(chance.integers(0, 1 << 60, rows))
                        writer.write_table(pa.table([keys, numbers, values], schema=schema))
                        for one in build(values, now_ms=0, max_batch_bytes=_SOURCE_BATCH_BYTES):
                            producer.send("source", partition, one.data, one.count)
            producer.flush()

    def once(self, work: Callable[[], object]) -> Figures:
        broker, others, began = self.broker.cpu_s(), cpu_of_tree(self.broker.pid), time.perf_counter()
        work()
        took = time.perf_counter() - began
        jvm, python = cpu_of_tree(self.broker.pid) - others
        served = self.broker.cpu_s() - broker
        rows, size = self.rows, self.rows * self.options.size
        figures = {
            "s": took,
            "k rows/s": rows / took / 1e3,
            "MB/s": size / took / 1e6,
            "JVM s": jvm,
            "Python s": python,
        }
        return figures | {"broker s": served, CPU: (jvm + python + served) / rows * 1e6}

    def compare(self, works: Mapping[str, Callable[[], object]], *, in_rounds: bool) -> Iterator[Row]:
        """Each by itself, or in turns and beside the first."""
        groups: list[Mapping[str, Callable[[], object]]] = [works]
        if not in_rounds:
            groups = [{name: work} for name, work in works.items()]
        for group in groups:
            named = {name: partial(self.once, work) for name, work in group.items()}
            runs = in_turns(self.options.rounds, named)
            first = runs[next(iter(runs))]
            for name, figures in runs.items():
                best = min(figures, key=lambda run: run["s"])
                beside = ratios(figures, first) if figures is not first else {}
                yield Row(name, medians(figures) | {key: best[key] for key in ("s", "k rows/s", "MB/s")} | beside)

    def read(self, **more: object) -> Any:
        return self.spark.read.format("broker").options(subscribe="source", **self.server, **more).load()

    def write(self, *columns: str, **more: object) -> None:
        writer = self.spark.read.parquet(self.parquet).select(*columns).write.format("broker").mode("append")
        writer.options(topic="sink", **self.server, **more).save()

    def exchanged(self) -> None:
        from broker.spark.exchanges.driver import exchange

        df, partitions = self.spark.read.parquet(self.parquet), 4 * self.options.partitions
        with exchange(df, "number", partitions, brokers=self.broker.listeners["shuffle"]) as after:
            noop(after)

    def repartitioned(self) -> None:
        noop(self.spark.read.parquet(self.parquet).repartition(4 * self.options.partitions, "number"))


def floor(bench: Bench) -> Iterator[Row]:
    works = {"parquet to noop": lambda: noop(bench.spark.read.parquet(bench.parquet))}
    return bench.compare(works, in_rounds=False)


def read(bench: Bench) -> Iterator[Row]:
    works = {"read": lambda: noop(bench.read()), "read, value only": lambda: noop(bench.read(columns="value"))}
    return bench.compare(works, in_rounds=False)


def write(bench: Bench) -> Iterator[Row]:
    bench.create("sink", bench.options.partitions)
    works = {
        "write values": lambda: bench.write("value"),
        "write keys and values": lambda: bench.write("key", "value"),
        "write exactly once": lambda: bench.write("value", deliveryGuarantee="exactly-once"),
    }
    return bench.compare(works, in_rounds=False)


def exchange(bench: Bench) -> Iterator[Row]:
    works = {"repartition": bench.repartitioned, "exchange": bench.exchanged}
    for work in works.values():
        work()  # for the JVM to warm up
    return bench.compare(works, in_rounds=True)


@contextmanager
def _written(bench: Bench, topic: str) -> Iterator[None]:
    """Writes records to the topic, while the context lasts."""
    values = pa.array([b"x" * 100] * max(1, int(bench.options.rate * _EVERY_S)))
    stopped = threading.Event()

    def run() -> None:
        with bench.cluster() as cluster, cluster.producer() as producer:
            while not stopped.wait(_EVERY_S):
                for one in build(values, now_ms=int(time.time() * 1000)):
                    producer.send(topic, 0, one.data, one.count)
                producer.flush()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stopped.set()
    thread.join()


def trigger(bench: Bench) -> Iterator[Row]:
    for topic in ("stream", "stream-sink"):
        bench.create(topic, 1)
    df = bench.spark.readStream.format("broker").options(subscribe="stream", **bench.server).load()
    to = {"topic": "stream-sink", **bench.server}
    cases = {"no sink": {}, "at least once": {**to, "deliveryGuarantee": "at-least-once"}, "exactly once": to}
    with _written(bench, "stream"):
        for name, settings in cases.items():
            writer = df.select("value").writeStream.options(**settings)
            where = f"{bench.directory}/{name.replace(' ', '-')}"
            query = writer.option("checkpointLocation", where).format("broker" if settings else "noop").start()
            durations: dict[int, Figures] = {}
            end = time.monotonic() + bench.options.seconds
            while time.monotonic() < end or len(durations) <= _WARM_BATCHES:
                query.awaitTermination(1)
                done = [each for each in query.recentProgress if each.numInputRows]
                durations |= {each.batchId: dict(each.durationMs) for each in done}
            query.stop()
            measured = [durations[batch] for batch in sorted(durations)[_WARM_BATCHES:]]
            steps = sorted({step for one in measured for step in one})
            figures = {f"{step} ms": statistics.median(one.get(step, 0) for one in measured) for step in steps}
            yield Row(f"micro-batch, {name}", {"batches": len(measured), **figures})


def _section(work: Callable[[Bench], Iterator[Row]]) -> Section:
    def section(options: Options) -> Iterator[Row]:
        with (
            tempfile.TemporaryDirectory(prefix="broker-bench-", dir=options.directory) as directory,
            BrokerProcess(listener="kafka,shuffle", directory=directory) as broker,
        ):
            bench = Bench(options, broker, directory)
            bench.fill()
            noop(bench.read())  # the first query starts the workers
            yield from work(bench)
            bench.spark.stop()

    return section


SECTIONS = {work.__name__: _section(work) for work in (floor, read, write, exchange, trigger)}
