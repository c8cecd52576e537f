"""The Spark session of all tests of this folder: its start takes longer than most of them together."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.client import Broker
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A JVM that runs for seconds spends more on compiling well, and on threads for its garbage, than it gains: without them the tests
# take two thirds of the CPU. Spark gives these to the JVMs that it starts, those of jobs in processes of their own included.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """local[2,3]: two tasks at a time, and three tries for each. It leaves nothing on the disk."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")
    from broker.errors import ConfigError
    from broker.spark import java

    try:
        java.provide()
    except ConfigError as error:
        pytest.skip(str(error))
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import SparkSession

    # By default Spark's workers run the first `python3` on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    directory = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # How long a worker may take to start; 15 s are too few if every core is busy.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={directory}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    # py4j waits for Spark's calls with select(), which takes no descriptor above 1023. The session's broker opens more than
    # that, so the server for these calls comes first. Started later, it would end at once, and foreachBatch would never return.
    ensure_callback_server_started(session.sparkContext._gateway)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def topics(session_broker: Broker) -> Topics:
    return Topics(session_broker.bootstrap_servers)


@pytest.fixture
def read(spark: "SparkSession", topics: Topics) -> "Callable[..., DataFrame]":
    """``read(subscribe=...)``: a batch read of the session's broker."""
    return lambda **options: _with_options(spark.read, topics, options).load()


@pytest.fixture
def stream(spark: "SparkSession", topics: Topics) -> "Callable[..., DataFrame]":
    """``stream(subscribe=...)``: the same as a stream."""
    return lambda **options: _with_options(spark.readStream, topics, options).load()


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[Broker]:
    """A broker that can be stopped and started again at the same address."""
    directory = str(tmp_path / "broker")
    with Broker(directory) as first:
        address = first.bootstrap_servers
    broker = Broker(directory, listeners=(f"kafka://{address}",))
    broker.start()
    yield broker
    broker.stop()


def _with_options(reader: Any, topics: Topics, options: dict[str, Any]) -> Any:
    return reader.format("broker").options(**{"kafka.bootstrap.servers": topics.bootstrap_servers} | options)
