"""The data source ``broker`` of Spark, which passes each kind of use to its module.

It imports nothing heavy, because Spark loads it whenever it looks for data sources, even for queries that use other formats.
"""

import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from broker.spark.sentences import sentences_only

# The module of the planning process for queries with filters. Spark starts that process only while
# spark.sql.python.filterPushdown.enabled is true, and a data source has no other way to learn of that setting.
_PUSHDOWN_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"


@sentences_only
class BrokerDataSource(DataSource):
    """Topics as tables and streams.

    >>> spark.read.format("broker").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

    Columns and options are those of Spark's Kafka connector; docs/SPARK.md lists them, and the additional options.
    """

    @classmethod
    def name(cls) -> str:
        return "broker"

    def schema(self) -> StructType:
        from broker.spark.source.batch_source import spark_schema
        from broker.spark.source.options import parse_columns

        return spark_schema(parse_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from broker.spark.source.batch_source import BatchReader, NarrowingReader
        from broker.spark.source.options import SourceOptions

        options = SourceOptions.parse(self.options, streaming=False)
        return (NarrowingReader if _is_filter_planner() else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from broker.errors import ConfigError
        from broker.spark.source.options import SourceOptions
        from broker.spark.source.stream_source import RefusedReader, StreamReader

        try:
            return StreamReader(SourceOptions.parse(self.options, streaming=True), schema)
        except ConfigError as error:
            # If it were raised here, Spark (4.3) would try to close the missing reader and report that error instead.
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from broker.spark.sink.batch_sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from broker.spark.sink.batch_sink import stream_writer

        return stream_writer(self.options, schema)


def _is_filter_planner() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_PLANNER in sys.modules or getattr(main, "name", None) == _PUSHDOWN_PLANNER
