"""The first step of a task, in a real Python worker and nowhere else."""

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

import pyarrow as pa

from broker.spark.worker import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_collector_passes_over_what_a_worker_has_imported(spark: "SparkSession") -> None:
    def settled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        for _ in batches:
            yield pa.record_batch({"frozen": [gc.get_freeze_count()]})

    (row,) = spark.range(1).mapInArrow(settled, "frozen long").collect()
    assert row.frozen > 10_000


def test_outside_of_a_task_nothing_changes() -> None:
    before = gc.get_freeze_count()
    freeze_imports()
    assert before == gc.get_freeze_count()
