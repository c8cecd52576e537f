"""docs/examples/exchange_pipeline.py: its counts equal a Counter's."""

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

from broker.client import Broker, ShuffleAdmin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "exchange_pipeline.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exchange_pipeline", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_are_counted_as_a_counter_would(example: ModuleType, spark: "SparkSession", broker: Broker) -> None:
    texts = example.sources()
    names_of = {module: re.findall(example.NAME, text, re.ASCII) for module, text in texts.items()}
    counts = Counter(name for names in names_of.values() for name in names)
    modules = Counter(name for names in names_of.values() for name in set(names))
    assert counts.total() > 100_000
    with Broker() as other:
        assert (counts, modules) == example.run(spark, [broker.shuffle_address, other.shuffle_address], texts)
    with ShuffleAdmin(broker.shuffle_address) as admin:
        assert () == admin.partitions()
