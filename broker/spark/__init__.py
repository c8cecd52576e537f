"""Topics of a broker as sources and sinks of Spark, and a shuffle through the broker. Needs the extra ``spark``.

    spark.read.format("broker").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

Where this package is installed, Spark finds the format by itself. Importing ``broker.spark`` registers it with the active session
where the package is only on the path, and has ``write.save()`` of this format append without a mode.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from broker.spark.sink import save_hook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.spark.data_source import BrokerDataSource
    from broker.spark.exchanges.driver import exchange
    from broker.spark.source.progress import Lag, lag

__all__ = ["BrokerDataSource", "Lag", "exchange", "lag", "register"]

# Imported at first use: Spark's workers import this package for whatever is in it.
_WHERE = {
    "BrokerDataSource": "data_source",
    "exchange": "exchanges.driver",
    "Lag": "source.progress",
    "lag": "source.progress",
}


def register(spark: "SparkSession") -> None:
    """Make ``format("broker")`` known to this session."""
    from broker.spark.data_source import BrokerDataSource

    spark.dataSource.register(BrokerDataSource)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_with_the_active_session() -> None:
    """If there is one, on a JVM of this process or of Spark Connect. A process that has not imported them has none, and neither
    has a worker."""
    for module in ("pyspark.sql.session", "pyspark.sql.connect.session"):
        # It may be just being imported: save_mode is then, too.
        sessions = getattr(sys.modules.get(module), "SparkSession", None)
        session = sessions and sessions.getActiveSession()
        if session is not None:
            register(session)


save_hook.install()
_register_with_the_active_session()
