"""Spark sources and sinks for a broker's topics, and a shuffle through the broker. Needs the extra ``spark``.

    spark.read.format("broker").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

If this package is installed, Spark finds the format by itself. If it is only on the path, importing ``broker.spark``
registers the format with the active session. The import also makes ``write.save()`` of this format append if no mode is
given.

Tests: tests/spark/test_data_source.py, tests/spark/sink/test_save_hook.py.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from broker.spark.sink import save_hook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.spark.data_source import BrokerDataSource
    from broker.spark.exchanges.driver import exchange
    from broker.spark.source.offsets import Lag, lag

__all__ = ["BrokerDataSource", "Lag", "exchange", "lag", "register"]

# Imported at first use, because Spark's workers import this package for each of its modules.
_WHERE = {
    "BrokerDataSource": "data_source",
    "exchange": "exchanges.driver",
    "Lag": "source.offsets",
    "lag": "source.offsets",
}


def register(spark: "SparkSession") -> None:
    """Register ``format("broker")`` with this session."""
    from broker.spark.data_source import BrokerDataSource

    spark.dataSource.register(BrokerDataSource)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_with_the_active_session() -> None:
    """Register with the active session, on a JVM of this process or of Spark Connect, if there is one.

    A process that has not imported these modules has no session; a worker has none either.
    """
    for module in ("pyspark.sql.session", "pyspark.sql.connect.session"):
        # The module may be in the middle of its import, when it has no SparkSession yet.
        sessions = getattr(sys.modules.get(module), "SparkSession", None)
        session = sessions and sessions.getActiveSession()
        if session is not None:
            register(session)


save_hook.install()
_register_with_the_active_session()
