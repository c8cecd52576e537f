"""The reduce side of an exchange: a Python data source with a partition for each bucket.

A data source and not ``mapInArrow`` over a range, because Spark takes the size of that for the size of the range and would
broadcast gigabytes in a join; of a data source it assumes nothing.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.client.blocks import BlockReader
from broker.client.errors import ConnectionFailedError, PartitionNotFoundError, ShuffleError
from broker.spark.exchange_map import arrow_schema
from broker.spark.exchange_plan import ExchangeError, ExchangePlan
from broker.spark.exchange_split import BLOCK_BYTES, Codec


class ExchangeSource(DataSource):
    """Made by ``exchange``, not by users. Its option ``plan`` is an ExchangePlan as JSON."""

    @classmethod
    def name(cls) -> str:
        return "broker_exchange"

    def schema(self) -> StructType:
        raise ExchangeError("broker_exchange is read by what broker.spark.exchange returns.")

    def reader(self, schema: StructType) -> DataSourceReader:
        return ExchangeReader(ExchangePlan.from_json(self.options["plan"]), schema)


class Bucket(InputPartition):
    """One subpartition of every winner."""


class ExchangeReader(DataSourceReader):
    def __init__(self, plan: ExchangePlan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema

    def partitions(self) -> list[InputPartition]:  # Spark takes nothing but a list
        return [Bucket(bucket) for bucket in range(self._plan.spec.buckets)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spec = self._plan.spec
        channels = self._plan.channels(partition.value)
        schema = arrow_schema(self._schema)
        try:
            yield from gathered(
                _batches(BlockReader(channels, patience=spec.patience), Codec(spec.compression), schema)
            )
        except PartitionNotFoundError as error:
            raise ExchangeError(
                "The exchange is not on its broker any more: it was released, or its time to live"
                f" ({spec.ttl_ms // 1000} s) is over: {error}"
            ) from error
        except ConnectionFailedError as error:
            raise ExchangeError(f"The exchange cannot reach its broker: {error}.") from error
        except ShuffleError as error:
            raise ExchangeError(f"The exchange could not be read: {error}.") from error


def _batches(blocks: BlockReader, codec: Codec, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, int]]:
    for _, block in blocks:
        yield codec.decode(block, schema), len(block)


def gathered(batches: Iterator[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about a megabyte: small ones are put together, large ones left alone."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch, bytes_ in batches:
        if bytes_ >= BLOCK_BYTES // 2:
            yield batch
            continue
        waiting.append(batch)
        size += bytes_
        if size >= BLOCK_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
