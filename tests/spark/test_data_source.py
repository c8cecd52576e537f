"""How Spark finds the format, and that it costs other formats nothing."""

import subprocess
import sys

import pyspark_broker
from pyspark.sql import SparkSession

import broker.spark
from broker.spark.data_source import BrokerDataSource

HEAVY = ("numpy", "pandas", "pyarrow", "kio", "broker.client", "protocol")


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def test_installed_module_has_the_source_for_spark() -> None:
    assert pyspark_broker.DefaultSource is BrokerDataSource
    assert "broker" == BrokerDataSource.name()


def test_source_lookup_costs_little() -> None:
    """Spark imports every ``pyspark_*`` module at its first look-up."""
    program = f"import pyspark_broker, sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    assert "" == run(program)


def test_importing_the_package_does_not_import_spark() -> None:
    assert "False" == run("import broker.spark, sys; print('pyspark' in sys.modules)")


def test_source_may_be_registered_again(spark: SparkSession) -> None:
    broker.spark.register(spark)
    assert ["key", "value"] == spark.read.format("broker").option("columns", "key,value").load().columns
