"""Two results from one shuffle through the broker: which names Python's standard library uses most, and in how many modules.

    python docs/examples/exchange_pipeline.py [--brokers HOST:PORT ...]

The input is the library's source code. Each occurrence of a name is a row. The exchange puts all rows of a name into one
partition, so that ``mapInArrow`` can count them there. The result of the exchange is read twice, for two results, and the
stages before it run only once.
"""

import argparse
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from broker.client import Broker
from broker.spark import exchange, java

NAME = r"[A-Za-z_]\w{2,}"
PARTITIONS = 4


def sources() -> dict[str, str]:
    """Module -> text, of the modules that are a file in the standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def occurrences(spark: SparkSession, texts: dict[str, str]) -> DataFrame:
    """A row for each: ``name`` and ``module``."""
    modules = spark.createDataFrame(list(texts.items()), "module string, text string").repartition(PARTITIONS)
    return modules.select("module", F.explode(F.regexp_extract_all("text", F.lit(f"({NAME})"))).alias("name"))


def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How often each name of this partition occurs. It occurs in no other partition."""
    names = pa.table({"name": pa.chunked_array([batch.column("name") for batch in batches], pa.string())})
    yield from names.group_by("name").aggregate([([], "count_all")]).to_batches()


def spread(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In how many modules each name of this partition occurs."""
    rows = pa.Table.from_batches(list(batches), pa.schema([("module", pa.string()), ("name", pa.string())]))
    different = rows.group_by(["name", "module"]).aggregate([])
    yield from different.group_by("name").aggregate([([], "count_all")]).to_batches()


def run(spark: SparkSession, brokers: list[str], texts: dict[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Both results."""
    with exchange(occurrences(spark, texts), "name", PARTITIONS, brokers=brokers) as names:
        print(f"{names.exchange.rows} rows, {names.exchange.size} bytes are on the broker")
        counts = names.mapInArrow(count, "name string, count long")
        modules = names.mapInArrow(spread, "name string, count long")
        return dict(map(tuple, counts.collect())), dict(map(tuple, modules.collect()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", nargs="*", help="shuffle listeners; without them a broker is started for the run")
    options = parser.parse_args()
    java.provide()
    # The tasks' Python is this one, not whichever `python3` is first on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with ExitStack() as stack:
        brokers = options.brokers or [stack.enter_context(Broker()).shuffle_address]
        builder = SparkSession.builder.appName("names").master(os.environ.get("SPARK_MASTER", "local[2]"))
        spark = builder.config("spark.ui.enabled", "false").getOrCreate()
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        counts, modules = run(spark, brokers, sources())
    for name in sorted(counts, key=lambda name: (-counts[name], name))[:10]:
        print(f"  {name:10} {counts[name]:6} times in {modules[name]:3} modules")


if __name__ == "__main__":
    main()
