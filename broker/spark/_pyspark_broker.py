"""Installed as the top-level module ``pyspark_broker``: at the first look-up of a Python data source, Spark registers the
``DefaultSource`` of every ``pyspark_*`` module on the path. Why so: docs/decisions/0006-pyspark-broker.md.
"""

from broker.spark.data_source import BrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
