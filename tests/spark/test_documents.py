"""The blocks of docs/SPARK.md and docs/PIPELINE.md in Python and SQL, in order, with the names that their text assumes.
(`make demo`, the other block of PIPELINE.md, is run by test_pipeline.py and test_exchange_pipeline.py.)"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broker.client import Broker
from tests.docs.blocks import Block, blocks
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with a topic of orders."""
    with Broker() as running:
        topics = Topics(running.bootstrap_servers)
        topics.make(1, "orders")
        topics.put("orders", 0, range(3))
        topics.make(1, "counts")
        yield running


@pytest.fixture
def names(spark: "SparkSession", broker: Broker, tmp_path: Path) -> Iterator[dict[str, Any]]:
    orders = spark.readStream.format("broker").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    orders = orders.option("subscribe", "orders").option("startingOffsets", "earliest")
    query = orders.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "seen")).start()
    query.processAllAvailable()
    counts = orders.load().groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    yield {"spark": spark, "query": query, "counts": counts, "df": words(spark), "count": count}
    for running in spark.streams.active:
        running.stop()


def words(spark: "SparkSession") -> Any:
    return spark.createDataFrame([("a",), ("b",), ("a",)], "word string")


def count(batches: Any) -> Any:
    table = pa.Table.from_batches(list(batches), pa.schema([("word", pa.string())]))
    counted = table.group_by("word").aggregate([([], "count_all")])
    yield from counted.rename_columns(["word", "count"]).to_batches()


def run(block: Block, names: dict[str, Any], broker: Broker, directory: Path) -> None:
    """Relative paths are the JVM's, so they are made absolute."""
    text = block.text.replace("localhost:9092", broker.bootstrap_servers)
    text = text.replace("10.0.0.7:9094", broker.shuffle_address).replace('parquet("', f'parquet("{directory}/')
    text = text.replace('"checkpointLocation", "', f'"checkpointLocation", "{directory}/')
    if block.language == "python":
        exec(compile(text, block.where, "exec"), names)
    else:
        for statement in filter(str.strip, text.split(";\n")):
            names["spark"].sql(statement).collect()


def test_every_block_about_spark_runs(names: dict[str, Any], broker: Broker, tmp_path: Path) -> None:
    documented = [block for block in blocks(DOCS / "SPARK.md") if block.language != "sh"]
    assert 4 <= len(documented)
    for block in documented:
        run(block, names, broker, tmp_path)
        for query in names["spark"].streams.active:
            query.processAllAvailable()


def test_the_exchange_of_the_pipeline_runs(names: dict[str, Any], broker: Broker, tmp_path: Path) -> None:
    (block,) = [block for block in blocks(DOCS / "PIPELINE.md") if block.language == "python"]
    run(block, names, broker, tmp_path)
    written = names["spark"].read.parquet(str(tmp_path / "counts")).collect()
    assert {"a": 2, "b": 1} == dict(map(tuple, written))
