"""PySpark: a streaming query reads each order once, although the broker resets connections under it.

pip install 'reactor-broker[spark]' pytest
pytest test_pyspark.py
"""

import os
import sys

import pytest
from pyspark.sql import SparkSession

from broker.spark import java


@pytest.fixture(scope="module")
def spark():
    java.provide()  # a machine without Java has the one of the extra
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def test_query_reads_each_order_once(broker, spark, tmp_path):
    broker.produce("orders", [f"order {number}" for number in range(10)])
    broker.create_topic("invoices")
    faults = [broker.faults.add("reset", api=api, topic="orders") for api in ("LIST_OFFSETS", "FETCH")]
    orders = spark.readStream.format("broker").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    orders = orders.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    query = (
        orders.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("broker")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", "invoices")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert [fault.hits for fault in faults] == [1, 1]
    assert sorted(record.value.decode() for record in broker.records("invoices")) == [
        f"order {number}" for number in range(10)
    ]
