"""The first step of a task, in a real Python worker only."""

import ctypes
import gc
import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

import pyarrow as pa

from broker.spark.worker import freeze_imports, reuse_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_collector_skips_the_workers_imports(spark: "SparkSession") -> None:
    def settled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        for _ in batches:
            yield pa.record_batch({"frozen": [gc.get_freeze_count()]})

    (row,) = spark.range(1).mapInArrow(settled, "frozen long").collect()
    assert row.frozen > 10_000


def test_nothing_changes_outside_a_task() -> None:
    before = gc.get_freeze_count()
    freeze_imports()
    assert gc.get_freeze_count() <= before  # another thread may have freed some; to freeze would add thousands


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_worker_keeps_memory_freed_by_a_task(spark: "SparkSession") -> None:
    def faults(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reuse_memory()
        for _ in batches:
            pass
        before = 0
        for round_ in range(24):
            if round_ == 4:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            pieces = [b"x" * 1_000_000 for _ in range(8)]
            del pieces
        yield pa.record_batch({"faults": [resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]})

    tasks = spark.range(2).mapInArrow(faults, "faults long").collect()
    # 20 rounds of 8 MB are 39,000 pages.
    assert max(task.faults for task in tasks) < 4_000
