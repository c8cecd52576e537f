"""The reduce side of an exchange: ``mapInArrow`` over the numbers of the buckets, with one partition for each.

It is not a Python data source, because to plan one Spark starts Python processes on the driver, half a second for each reading.

Tests: tests/spark/test_exchange.py, tests/spark/exchanges/test_map_task.py.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from attrs import frozen
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.types import StructType

from broker.client.shuffle.blocks import BlockReader
from broker.client.shuffle.errors import ConnectionFailedError, PartitionNotFoundError, ShuffleError
from broker.errors import ConfigError
from broker.spark.exchanges.map_task import BLOCK_BYTES, POOL, Codec, arrow_schema
from broker.spark.exchanges.plan import ExchangeError, ExchangePlan
from broker.spark.worker import freeze_imports, reuse_memory


def one_row_per_partition(spark: SparkSession, count: int) -> DataFrame:
    """The numbers below ``count``, each in a partition of its own.

    They are the rows of an RDD, about whose size Spark assumes nothing. It knows the size of a range, would take it for the size
    of the result, and would broadcast gigabytes in a join.
    """
    numbers = spark.range(0, count, 1, count).toDF("bucket")._jdf
    return DataFrame(spark._jsparkSession.createDataFrame(numbers.javaRDD(), numbers.schema()), spark)


@frozen
class ReduceTask:
    """``mapInArrow`` runs ``read``. ``schema``: that of the rows."""

    plan: ExchangePlan
    schema: StructType

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        reuse_memory()
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                yield from self.bucket(bucket)

    def bucket(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """The rows of one bucket: one subpartition of every winner. Raises ExchangeError."""
        spec = self.plan.spec
        channels = self.plan.channels(bucket)
        schema = arrow_schema(self.schema)
        try:
            yield from merge_small(
                decoded(
                    BlockReader(channels, patience=spec.patience, security=spec.security),
                    Codec(spec.compression),
                    schema,
                )
            )
        except PartitionNotFoundError as error:
            raise ExchangeError(
                "The exchange is not on its broker any more: it was released, or its time to live"
                f" ({spec.ttl_ms // 1000} s) is over: {error}"
            ) from error
        except ConnectionFailedError as error:
            raise ExchangeError(f"The exchange cannot reach its broker: {error}.") from error
        except ConfigError as error:
            raise ExchangeError(f"An executor cannot use the security settings: {error}") from error
        except ShuffleError as error:
            raise ExchangeError(f"The exchange could not be read: {error}.") from error


def decoded(
    blocks: Iterable[tuple[object, bytes | bytearray | memoryview]], codec: Codec, schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Each batch with the bytes that it takes in memory. Raises ExchangeError for other bytes than a Splitter's."""
    for _, block in blocks:
        try:
            batch = codec.decode(block, schema)
        except (ValueError, OSError) as error:  # which Arrow raises, too
            raise ExchangeError(f"A block of the exchange is not one that an exchange writes: {error}") from error
        # A compressed block may hold hundreds of times its size.
        yield batch, max(len(block), batch.get_total_buffer_size())


def merge_small(batches: Iterator[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about a megabyte: small batches are merged, large ones passed on."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch, bytes_ in batches:
        if bytes_ >= BLOCK_BYTES // 2:
            yield batch
            continue
        waiting.append(batch)
        size += bytes_
        if size >= BLOCK_BYTES:
            yield pa.concat_batches(waiting, POOL)
            waiting, size = [], 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting, POOL)
