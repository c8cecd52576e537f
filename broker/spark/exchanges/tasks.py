"""The tasks of an exchange, in Python workers of executors: map tasks write buckets to a broker, reduce tasks read
them.

A map task's only output is one row, which it returns when its data is durable on the broker. So a task that Spark
counts as done stays done, even if its executor is lost.

``Splitter`` splits a map task's Arrow batches into blocks of a single bucket. Pure; no Python object for each row.
Batches are collected until they are enough for blocks of a good size, sorted by bucket with one stable sort and one
``take``, and cut. A block is one Arrow IPC record batch message without a schema, because both ends know the schema. A
compressed block begins with its uncompressed size: an int64, little-endian.

The reduce side is ``mapInArrow`` over the numbers of the buckets, with one partition for each. It is not a Python data
source, because to plan such a source Spark starts Python processes on the driver, half a second for each reading.

Tests: tests/spark/test_exchange.py.
"""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from broker.client import ShuffleWriter
from broker.client.shuffle.blocks import BlockReader, push_block
from broker.client.shuffle.errors import (
    ConnectionFailedError,
    NoCreditError,
    PartitionNotFoundError,
    QuotaExceededError,
    ShuffleError,
    ShuffleTimeoutError,
)
from broker.errors import ConfigError
from broker.spark.exchanges.plan import NO_ROWS, TOO_WIDE, WIDE_ROW, ExchangeError, ExchangePlan, ExchangeSpec, bits
from broker.spark.worker import freeze_imports, reuse_memory

# The size of a block. Spark reads blocks of a megabyte fastest: smaller ones cost calls, larger ones exceed the caches.
BLOCK_BYTES = 1024 * 1024
# Blocks have at least this size, as long as that fits into _COLLECTED_MAX for all buckets together.
_COLLECTED_PER_BUCKET = 512 * 1024
_COLLECTED_MIN = 4 * 1024 * 1024
_COLLECTED_MAX = 32 * 1024 * 1024

# A larger block was not made by a Splitter.
_BLOCK_MAX = 2**31 - 1
_SIZE = struct.Struct("<q")

# The C library's pool, which keeps freed memory (``worker.reuse_memory``). Arrow's own pool returns it to the kernel.
POOL = pa.system_memory_pool()


class Codec:
    """Encodes a block to bytes and decodes it. ``compression``: lz4, zstd or None."""

    def __init__(self, compression: str | None) -> None:
        self._codec = None if compression is None else pa.Codec(compression)

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        message = batch.serialize(POOL)
        if self._codec is None:
            return message
        return pa.py_buffer(_SIZE.pack(message.size) + self._codec.compress(message, asbytes=True))

    def decode(self, block: bytes | bytearray | memoryview, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of an uncompressed block point into ``block``. Raises ValueError, or Arrow's OSError or
        EOFError, for bytes that are not a block."""
        message = pa.py_buffer(block)
        if self._codec is not None:
            size = _SIZE.unpack_from(block)[0] if len(block) >= _SIZE.size else -1
            if not 0 <= size <= _BLOCK_MAX:
                raise ValueError(f"a compressed block of {size} bytes")
            message = self._codec.decompress(message.slice(_SIZE.size), size)
        # Otherwise offsets could point beyond the block. The check takes a few microseconds for a megabyte.
        pa.ipc.read_record_batch(message, _with_bytes_for_texts(schema)).validate(full=True)
        return pa.ipc.read_record_batch(message, schema)


@lru_cache
def _with_bytes_for_texts(schema: pa.Schema) -> pa.Schema:
    """A schema with the same layout that accepts texts in other encodings than UTF-8, as Spark does."""
    return pa.schema([_as_bytes(field) for field in schema])


def _as_bytes(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_string(kind):
        kind = pa.binary()
    elif pa.types.is_large_string(kind):
        kind = pa.large_binary()
    elif pa.types.is_list(kind):
        kind = pa.list_(_as_bytes(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_as_bytes(kind.key_field), _as_bytes(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_as_bytes(kind.field(number)) for number in range(kind.num_fields)])
    return field.with_type(kind)


class Splitter:
    """``add`` batches with the bucket as last column, an int32 below ``buckets``, and call ``finish`` at the end.

    Both return (bucket, block) pairs. ``counts`` has the number of rows of each bucket so far.
    """

    def __init__(self, buckets: int, compression: str | None = None, collect_bytes: int | None = None) -> None:
        self.counts = np.zeros(buckets, np.int64)
        self._buckets = buckets
        # The narrowest type sorts fastest: from 16 bits down it is a radix sort.
        self._sorted_as = np.uint8 if buckets <= 1 << 8 else np.uint16 if buckets <= 1 << 16 else np.uint32
        self._codec = Codec(compression)
        self._enough = collect_bytes or min(_COLLECTED_MAX, max(_COLLECTED_MIN, buckets * _COLLECTED_PER_BUCKET))
        self._collected: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Buffer]]:
        if not batch.num_rows:
            return
        self._collected.append(batch)
        self._bytes += batch.get_total_buffer_size()
        if self._bytes >= self._enough:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[int, pa.Buffer]]:
        """The blocks of the collected batches."""
        if not self._collected:
            return
        collected, self._collected = self._collected, []
        size, self._bytes = self._bytes, 0
        batch = collected[0] if len(collected) == 1 else pa.concat_batches(collected, POOL)
        last = batch.num_columns - 1
        buckets = batch.column(last).to_numpy().astype(self._sorted_as)
        counts = np.bincount(buckets, minlength=self._buckets)
        self.counts += counts
        batch = batch.select(list(range(last)))
        if self._buckets > 1:
            order = pa.array(np.argsort(buckets, kind="stable"))
            batch = pc.take(batch, order, boundscheck=False, memory_pool=POOL)
        rows = max(1, batch.num_rows * BLOCK_BYTES // max(size, 1))
        ends = np.cumsum(counts)
        for bucket in np.flatnonzero(counts).tolist():
            start, end = int(ends[bucket] - counts[bucket]), int(ends[bucket])
            # Pieces of equal size, instead of full ones and a small rest.
            pieces = -(-(end - start) // rows)
            for piece in range(pieces):
                first = start + (end - start) * piece // pieces
                beyond = start + (end - start) * (piece + 1) // pieces
                yield bucket, self._codec.encode(batch.slice(first, beyond - first))


# The most bytes in flight to the broker.
_WINDOW_BYTES = 16 * 1024 * 1024
# How long a task waits for a broker with full memory and disk before it fails.
_FULL_BROKER_TIMEOUT_S = 600.0


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark expects batches from Python."""
    return to_arrow_schema(schema, timezone="UTC")


@frozen
class MapTask:
    """``mapInArrow`` runs ``write``. ``schema``: that of the rows, without the bucket in the last column."""

    spec: ExchangeSpec
    schema: StructType

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        reuse_memory()
        context = TaskContext.get()
        assert context is not None
        # Another attempt uses another broker, with which it may succeed.
        broker = (context.partitionId() + context.attemptNumber()) % len(self.spec.brokers)
        yield self.run(batches, context.partitionId(), context.taskAttemptId() % 2**31, broker)

    def run(self, batches: Iterable[pa.RecordBatch], map_number: int, attempt: int, broker: int) -> pa.RecordBatch:
        """Write all rows, or nothing if a row is too wide, and return the commit row. Raises ExchangeError."""
        try:
            non_empty = _require_narrow(batches)
            first = next(non_empty, None)
            if first is None:
                return _commit(map_number, attempt, NO_ROWS, 0, 0, b"")
            return self._run(first, non_empty, map_number, attempt, broker)
        except _WideRow:
            return _commit(map_number, attempt, TOO_WIDE, 0, 0, b"")

    def _run(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], map_number: int, attempt: int, broker: int
    ) -> pa.RecordBatch:
        self._check(first.schema)
        address = self.spec.brokers[broker]
        try:
            rows, size, buckets = self._write(first, rest, map_number, attempt, address)
        except QuotaExceededError as error:
            raise ExchangeError(
                f"The broker at {address} has no room for more of the owner {self.spec.owner!r} (shuffle_quota_bytes):"
                f" {error}. Release other exchanges, or raise the quota."
            ) from error
        except NoCreditError as error:
            raise ExchangeError(
                f"The broker at {address} has no room (shuffle_memory_bytes, shuffle_disk_bytes): {error}. Release other"
                " exchanges, or raise the bounds."
            ) from error
        except ShuffleTimeoutError as error:
            raise ExchangeError(
                f"The broker at {address} is there and does not keep up: {error}. Look at its load and its log."
            ) from error
        except (ConfigError, ShuffleError) as error:
            raise _explained(error, f"could not write to the broker at {address}") from error
        return _commit(map_number, attempt, broker, rows, size, buckets)

    def _write(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], map_number: int, attempt: int, address: str
    ) -> tuple[int, int, bytes]:
        spec = self.spec
        splitter = Splitter(spec.buckets, spec.compression)
        size = 0
        writer = ShuffleWriter(
            address,
            spec.partition(map_number, attempt),
            spec.buckets,
            "blocking",
            ttl_ms=spec.ttl_ms,
            owner=spec.owner,
            window_bytes=_WINDOW_BYTES,
            reconnect_timeout=spec.patience,
            security=spec.security,
        )
        try:
            writer.open()
            try:
                for blocks in _steps(splitter, first, rest):
                    for bucket, block in blocks:
                        # Not copied, because nothing else refers to it.
                        push_block(writer, bucket, memoryview(block), copy=False, timeout=_FULL_BROKER_TIMEOUT_S)
                        size += block.size
                # Not `finish`: the broker ends each subpartition itself, which saves sending thousands of events.
                writer.commit()
            except BaseException as error:
                writer.fail(f"{type(error).__name__}: {error}")
                raise
        finally:
            writer.close()
        return int(splitter.counts.sum()), size, bits(splitter.counts)

    def _check(self, given: pa.Schema) -> None:
        """Raise ExchangeError unless the rows have the layout with which the reduce side reads them."""
        expected = arrow_schema(self.schema)
        types = [layout(field.type) for field in given][:-1]
        if types != [layout(field.type) for field in expected]:
            raise ExchangeError(f"Spark gives these rows as {given}, but would take them as {expected}.")


class _WideRow(Exception):
    """A row has arrived without its values, see ``plan.py``."""


def _require_narrow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that have rows. Raises _WideRow."""
    for batch in batches:
        if batch.num_rows:
            if batch.column(batch.num_columns - 1).to_numpy().min() <= WIDE_ROW:
                raise _WideRow
            yield batch


def _steps(
    splitter: Splitter, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
) -> Iterator[Iterator[tuple[int, pa.Buffer]]]:
    yield splitter.add(first)
    for batch in rest:
        yield splitter.add(batch)
    yield splitter.finish()


def _commit(map_number: int, attempt: int, broker: int, rows: int, size: int, buckets: bytes) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "map": pa.array([map_number], pa.int32()),
            "attempt": pa.array([attempt], pa.int32()),
            "broker": pa.array([broker], pa.int32()),
            "rows": pa.array([rows], pa.int64()),
            "bytes": pa.array([size], pa.int64()),
            "buckets": pa.array([buckets], pa.binary()),
        }
    )


def layout(kind: pa.DataType) -> object:
    """The layout of a type's values in buffers, without names, time zones and nullability."""
    if pa.types.is_timestamp(kind):
        return "timestamp", kind.unit
    if kind.num_fields:
        return str(kind.id), [layout(kind.field(index).type) for index in range(kind.num_fields)]
    return kind


def one_row_per_partition(spark: SparkSession, count: int) -> DataFrame:
    """The numbers below ``count``, each in a partition of its own.

    They are the rows of an RDD, so Spark assumes nothing about their size. The size of a range is known to Spark, which
    would take it for the size of the result and broadcast gigabytes in a join.
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
        """The rows of a bucket: a subpartition of every winner. Raises ExchangeError."""
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
        except (ConfigError, ShuffleError) as error:
            raise _explained(error, "could not be read") from error


def _explained(error: ConfigError | ShuffleError, failed: str) -> ExchangeError:
    if isinstance(error, ConnectionFailedError):
        return ExchangeError(f"The exchange cannot reach its broker: {error}.")
    if isinstance(error, ConfigError):
        return ExchangeError(f"An executor cannot use the security settings: {error}")
    return ExchangeError(f"The exchange {failed}: {error}.")


def decoded(
    blocks: Iterable[tuple[object, bytes | bytearray | memoryview]], codec: Codec, schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Each batch with its size in memory. Raises ExchangeError for bytes that a Splitter did not make."""
    for _, block in blocks:
        try:
            batch = codec.decode(block, schema)
        except (pa.ArrowException, ValueError, OSError, EOFError) as error:
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
