"""What Spark's own machinery costs: a source whose Arrow batches lie in memory, and a sink that drops them.

A read and a write through Python workers cannot cost less than these, whatever they read or write.
"""

import os
from collections.abc import Iterator
from typing import Any

import attrs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


class FloorSource(DataSource):
    """``format("floor")``. Options: ``rows``, ``size`` (of a value), ``partitions``, ``columns``, ``batchRows``."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> StructType:
        from broker.spark.source.batch_source import spark_schema

        return spark_schema(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:
        numbers = {name: int(self.options[name]) for name in ("rows", "size", "partitions", "batchRows")}
        return _Reader(tuple(schema.names), numbers)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _Writer()


@attrs.frozen
class _Reader(DataSourceReader):
    columns: tuple[str, ...]
    numbers: dict[str, int]

    def partitions(self) -> list[InputPartition]:
        count = self.numbers["partitions"]
        return [InputPartition(self.numbers["rows"] // count) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        from broker.client.kafka.columns.batch_builder import build
        from broker.client.kafka.columns.columns import Decoder

        size, in_batch = self.numbers["size"], self.numbers["batchRows"]
        values = pa.array([os.urandom(size) for _ in range(in_batch)], pa.binary())
        built = build(values, now_ms=0, max_batch_bytes=1 << 30)
        (batch,) = Decoder("topic", 0, 0, columns=self.columns, max_batch_bytes=1 << 30).decode(built[0].data)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, in_batch))
            left -= in_batch


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
