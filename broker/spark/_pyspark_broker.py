"""Installed as the top-level module ``pyspark_broker``, where Spark looks for data sources.

At the first look-up of a Python data source, Spark registers the ``DefaultSource`` of every ``pyspark_*`` module on the
path. For the reasons see docs/decisions/0006-pyspark-broker.md.

Tests: tests/spark/test_data_source.py.
"""

from broker.spark.data_source import BrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
