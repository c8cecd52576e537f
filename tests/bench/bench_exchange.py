"""What a shuffle costs through the broker and through Spark itself:
``python -m tests.bench.bench_exchange [--rows N] [--size BYTES] [--partitions N] [--repeat N] [--floors]``.

The same rows (a random long and SIZE random bytes, from Parquet files), the same placement, the same sink that does nothing.
The two take turns; the best wall time of each counts, and the CPU of the best run: of Spark with its Python workers, and of
the broker.

``--floors``: what both sides of any exchange through Python workers cost before a byte has gone to a broker: a map stage that
only counts the rows of its batches, and a reading whose batches are there already.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broker.spark.exchanges import driver as exchange_driver
from broker.spark.exchanges.batches import bounded_by_rows
from broker.spark.exchanges.driver import exchange
from broker.spark.exchanges.reduce_task import one_row_per_partition
from broker.spark.exchanges.split import BLOCK_BYTES
from broker.spark.worker import freeze_imports
from tests.bench.spark import session
from tests.bench.process import BrokerProcess

_TICK = os.sysconf("SC_CLK_TCK")
_FILES = 4


class Shuffle(BrokerProcess):
    listener = "shuffle://127.0.0.1:0"


class Run(NamedTuple):
    wall: float
    spark: float  # CPU, s
    broker: float

    def __str__(self) -> str:
        return f"{self.wall:6.2f} s, CPU {self.spark:5.2f} s Spark {self.broker:5.2f} s broker"


def write_rows(path: str, rows: int, size: int) -> None:
    random = np.random.default_rng(7)
    count = rows // _FILES
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    for number in range(_FILES):
        value = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(count * size))]
        )
        table = pa.table({"key": random.integers(0, 1 << 60, count), "value": value})
        pq.write_table(table, f"{path}/{number}.parquet", compression="none", use_dictionary=False)


def cpu_below(pid: int, without: int) -> float:
    """Of a process and all below it, those that have ended and were waited for included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
            used[int(entry)] = sum(map(int, fields[11:15])) / _TICK

    def below(one: int) -> bool:
        while one > 1 and one != without:
            if one == pid:
                return True
            one = parents.get(one, 0)
        return False

    return sum(seconds for one, seconds in used.items() if below(one))


def measured(broker: Shuffle, run: Callable[[], None]) -> Run:
    spark, served, began = cpu_below(os.getpid(), broker.pid), broker.cpu_s(), time.perf_counter()
    run()
    wall = time.perf_counter() - began
    return Run(wall, cpu_below(os.getpid(), broker.pid) - spark, broker.cpu_s() - served)


def consume(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def count_only(df: DataFrame, n: int) -> None:
    """The map side, as the exchange has Spark give it."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        yield pa.record_batch({"rows": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})

    tagged = df.select("*", sf.pmod(sf.hash("key"), sf.lit(n)).alias("bucket"))
    batches = bounded_by_rows(tagged)
    assert batches is not None
    rows = exchange_driver.in_cloned_session(batches.rows, batches.settings)
    rows.mapInArrow(count, "rows long").collect()


def give_only(df: DataFrame, rows: int, size: int, n: int) -> None:
    """The reduce side."""

    def give(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        for _ in numbers:
            count = BLOCK_BYTES // (size + 8)
            batch = pa.record_batch({"key": pa.array(range(count)), "value": pa.array([bytes(size)] * count)})
            for start in range(0, rows // n, count):
                yield batch.slice(0, min(count, rows // n - start))

    consume(one_row_per_partition(df.sparkSession, n).mapInArrow(give, df.schema))


def compare(
    spark: SparkSession, broker: Shuffle, directory: str, rows: int, size: int, n: int, repeat: int, floors: bool
) -> None:
    path = f"{directory}/{rows}-{size}"
    os.mkdir(path)
    write_rows(path, rows, size)
    df = spark.read.parquet(path)

    def native() -> None:
        consume(df.repartition(n, "key"))

    def through_broker() -> None:
        with exchange(df, "key", n, brokers=broker.address) as exchanged:
            consume(exchanged)

    measures: dict[str, Callable[[], None]] = {"native": native, "exchange": through_broker}
    if floors:
        measures |= {"count only": lambda: count_only(df, n), "give only": lambda: give_only(df, rows, size, n)}
    runs: dict[str, list[Run]] = {name: [] for name in measures}
    for turn in range(repeat + 1):
        for name, run in measures.items():
            result = measured(broker, run)
            if turn:  # the first is for the JVM to warm up
                runs[name].append(result)
    best = {name: min(results) for name, results in runs.items()}
    mb = rows * (size + 8) / 1e6
    print(f"{rows} rows of {size + 8} B, {n} partitions, best of {repeat}:")
    for name, result in best.items():
        print(f"  {name:10} {mb / result.wall:7.0f} MB/s {result}")
    native_s = best["native"].wall
    least = {name: min(run.spark + run.broker for run in results) for name, results in runs.items()}
    print(f"  exchange is {native_s / best['exchange'].wall:.2f}x native", end="")
    print(f"; least CPU {least['native']:.2f} and {least['exchange']:.2f} s", flush=True)
    if floors:
        floor = best["count only"].wall + best["give only"].wall
        print(f"  an exchange through Python workers that cost nothing itself: {native_s / floor:.2f}x", flush=True)
    shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=0, help="default: what makes 400 MB")
    parser.add_argument("--size", type=int, nargs="+", default=[100, 1000], help="bytes of a row's value")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--floors", action="store_true")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the broker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-exchange-") as directory, Shuffle(*options.set) as broker:
        spark = session(directory, options.conf)
        for size in options.size:
            rows = options.rows or 400_000_000 // (size + 8) // _FILES * _FILES
            compare(spark, broker, directory, rows, size, options.partitions, options.repeat, options.floors)
        spark.stop()


if __name__ == "__main__":
    main()
