"""The map side of an exchange: a task that writes its buckets to a broker, in a Python worker of an executor.

Its only output is one row, which it returns when its data is durable on the broker. So a task that Spark counts as done stays
done, even if its executor is lost.

Tests: tests/spark/test_exchange.py.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from attrs import frozen
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from broker.client import ShuffleWriter
from broker.client.shuffle.blocks import push_block
from broker.client.shuffle.errors import (
    ConnectionFailedError,
    NoCreditError,
    QuotaExceededError,
    ShuffleError,
    ShuffleTimeoutError,
)
from broker.errors import ConfigError
from broker.spark.exchanges.plan import NO_ROWS, TOO_WIDE, WIDE_ROW, ExchangeError, ExchangeSpec, bits
from broker.spark.exchanges.split import Splitter
from broker.spark.worker import freeze_imports, reuse_memory

# The most bytes in flight to the broker.
_WINDOW_BYTES = 16 * 1024 * 1024
# How long a task waits for a broker whose memory and disk are full before it fails.
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
        except ConnectionFailedError as error:
            raise ExchangeError(f"The exchange cannot reach its broker: {error}.") from error
        except ConfigError as error:
            raise ExchangeError(f"An executor cannot use the security settings: {error}") from error
        except ShuffleError as error:
            raise ExchangeError(f"The exchange could not write to the broker at {address}: {error}.") from error
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
                        # Not copied: nothing else refers to it.
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
        """Raise ExchangeError unless the rows are laid out like the schema with which the reduce side reads them."""
        expected = arrow_schema(self.schema)
        types = [layout(field.type) for field in given][:-1]
        if types != [layout(field.type) for field in expected]:
            raise ExchangeError(f"Spark gives these rows as {given}, but would take them as {expected}.")


class _WideRow(Exception):
    """A row has arrived without its values, see ``batches.py``."""


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
    """How the values of a type lie in buffers, without names, time zones and nullability."""
    if pa.types.is_timestamp(kind):
        return "timestamp", kind.unit
    if kind.num_fields:
        return str(kind.id), [layout(kind.field(index).type) for index in range(kind.num_fields)]
    return kind
