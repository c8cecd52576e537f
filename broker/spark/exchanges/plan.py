"""The values that the stages of an exchange and the driver share, and the division of a map task's rows into batches
for Python.

An exchange is a data set with an id of 16 random bytes. The attempt ``a`` of map task ``m`` writes the result partition
``<data set>#m`` of attempt ``a``, with a subpartition for each bucket, so attempts do not interfere. The driver decides
which attempts count. An attempt cannot know that itself: if the stage before it fails, its rows simply end, and it
finishes as usual.

Spark can bound the bytes of a batch. It then asks each column for its size after each row, which for rows of 100 bytes
takes more time than all other work of the JVM on them. So the first run bounds only the number of rows, and SQL checks
each row: a row too wide for a batch of that many rows arrives without its values and in the bucket
``WIDE_ROW``, and then the map stage runs again, with a bound on the bytes.

Tests: tests/spark/test_exchange.py.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from pyspark.sql import types as t

from broker.client import ResultPartitionID
from broker.client.security_settings import SecuritySettings
from broker.errors import BrokerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Attempt numbers on the wire have 31 bits. Spark's task attempt ids are unique in an application and longer.
_ATTEMPT_BITS = 31

# The row that a map task returns, in Spark's DDL.
COMMIT_SCHEMA = "map int, attempt int, broker int, rows bigint, bytes bigint, buckets binary"


class ExchangeError(BrokerError):
    """An exchange cannot continue. One sentence says why, and what to do."""


@frozen
class ExchangeSpec:
    """The values that are the same for all tasks."""

    data_set: bytes  # 16, random
    brokers: tuple[str, ...]  # shuffle addresses, host:port
    buckets: int
    ttl_ms: int
    owner: str
    compression: str | None  # of Arrow: lz4 or zstd
    patience: float  # a task gives up after this many s without a connection
    security: SecuritySettings | None = None

    def partition(self, map_number: int, attempt: int) -> ResultPartitionID:
        # To the broker each attempt is another producer; otherwise the first attempt to finish would win.
        attempt %= 2**_ATTEMPT_BITS
        vertex = attempt.to_bytes(16, "big")
        return ResultPartitionID.of(self.data_set, map_number, self.data_set, vertex, map_number, attempt)

    @property
    def prefix(self) -> str:
        """The hex digits with which the ids of all partitions of the exchange begin."""
        return self.data_set.hex()


# The bucket of a row without its values.
WIDE_ROW = -1

# Values in place of a broker's index.
NO_ROWS = -1
TOO_WIDE = -2  # a row was too wide for its batches, and nothing was written


@frozen
class Winner:
    """The attempt of a map task that counts. ``broker``: the index of its address, or NO_ROWS, or TOO_WIDE."""

    map_number: int
    attempt: int
    broker: int
    rows: int
    size: int  # bytes
    buckets: bytes  # a bit for each bucket, set if it has rows; the first bucket's is the highest

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Winner":
        """The winner in a commit row."""
        map_number, attempt, broker, rows, size, buckets = row
        return cls(map_number, attempt, broker, rows, size, bytes(buckets))

    @property
    def too_wide(self) -> bool:
        return self.broker == TOO_WIDE

    def has(self, bucket: int) -> bool:
        return self.broker >= 0 and bool(self.buckets[bucket >> 3] >> (7 - (bucket & 7)) & 1)


def bits(counts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> bytes:
    """``Winner.buckets`` for the numbers of rows in the buckets."""
    return np.packbits(counts > 0).tobytes()


@frozen
class ExchangePlan:
    """The values that a reduce task needs."""

    spec: ExchangeSpec
    winners: tuple[Winner, ...]

    def channels(self, bucket: int) -> list[tuple[str, ResultPartitionID, int]]:
        """(address, partition, subpartition) of all data of a bucket."""
        spec = self.spec
        return [
            (spec.brokers[winner.broker], spec.partition(winner.map_number, winner.attempt), bucket)
            for winner in self.winners
            if winner.has(bucket)
        ]

    @property
    def rows(self) -> int:
        """The number of rows of all map tasks."""
        return sum(winner.rows for winner in self.winners)

    @property
    def size(self) -> int:
        """The size of all map tasks' blocks in bytes."""
        return sum(winner.size for winner in self.winners)


# A row with more bytes than this in strings and binaries is too wide.
_WIDTH_MAX = 16 * 1024
# Rows of a batch if their width is unknown: 4 MB of rows of 1 KB, 64 MiB of the widest. The JVM fills, encodes and
# copies each batch, and larger batches do not fit into the processor's cache. With 8,192 rows of 1 KB an exchange takes
# a seventh more CPU, with 2,048 rows of 100 bytes a little more.
_ROWS = 4096
# The size of a batch, and its most rows, if the width of the rows is known.
_BATCH_BYTES = 1024 * 1024
_ROWS_MAX = 65536
# The bounds of batches with counted bytes.
_COUNTED_BYTES = 4 * 1024 * 1024
_COUNTED_ROWS = 50000

_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
# With this bound Spark does not count bytes.
_NO_BOUND = 2**31 - 1

_WIDTHS: dict[str, int] = {
    "void": 0,
    "boolean": 1,
    "tinyint": 1,
    "smallint": 2,
    "int": 4,
    "float": 4,
    "date": 4,
    "bigint": 8,
    "double": 8,
    "timestamp": 8,
    "timestamp_ntz": 8,
}


@frozen
class Batches:
    """``rows``: the columns for Python, the bucket last. ``settings``: those of the session that plans the rows."""

    rows: "DataFrame"
    settings: Mapping[str, str]


def bounded_by_bytes(tagged: "DataFrame") -> Batches:
    """Batches of bounded size for any rows."""
    return Batches(tagged, {_RECORDS: str(_COUNTED_ROWS), _BYTES: str(_COUNTED_BYTES)})


def bounded_by_rows(tagged: "DataFrame") -> Batches | None:
    """Batches with a bounded number of rows, or None for columns with widths that take long to compute.

    ``tagged``: columns of any type, and last the bucket, an int.
    """
    # As SQL text, which Spark parses in a single call instead of a call for each function of each column.
    fields = tagged.schema.fields
    columns = [_quoted(field.name) for field in fields]
    widths = [_width(column, field.dataType) for column, field in zip(columns, fields, strict=True)]
    row = _together(widths)
    if row is None:
        return None
    rows = max(1, min(_ROWS_MAX, _BATCH_BYTES // max(1, row.fixed)))
    if not row.variable:
        return Batches(tagged, {_RECORDS: str(rows), _BYTES: str(_NO_BOUND)})
    fits = f"{' + '.join(row.variable)} <= {_WIDTH_MAX}"
    guarded = [
        f"if({fits}, {column}, null) as {column}" if width is not None and width.variable else column
        for column, width in zip(columns[:-1], widths[:-1], strict=True)
    ]
    rows_of = tagged.selectExpr(*guarded, f"if({fits}, {columns[-1]}, {WIDE_ROW}) as {columns[-1]}")
    return Batches(rows_of, {_RECORDS: str(min(rows, _ROWS)), _BYTES: str(_NO_BOUND)})


@frozen
class _Width:
    """The width of a column: the bytes that each row has, and SQL expressions for the further bytes of a row."""

    fixed: int
    variable: Sequence[str] = ()


def _width(column: str, kind: t.DataType) -> _Width | None:
    if isinstance(kind, t.StringType | t.BinaryType):
        return _Width(4, [_or_zero(f"octet_length({column})")])
    if isinstance(kind, t.StructType):
        return _struct_width(column, kind)
    if isinstance(kind, t.ArrayType):
        element = _fixed_width(kind.elementType)
        return None if element is None else _Width(4, [f"{_or_zero(f'size({column})')} * {max(1, element)}"])
    fixed = _fixed_width(kind)
    return None if fixed is None else _Width(fixed)


def _struct_width(column: str, kind: t.StructType) -> _Width | None:
    if len({name.lower() for name in kind.names}) < len(kind.names):
        return None  # a name would be ambiguous
    return _together([_width(f"{column}.{_quoted(field.name)}", field.dataType) for field in kind.fields])


def _together(widths: Sequence[_Width | None]) -> _Width | None:
    fixed, variable = 0, list[str]()
    for width in widths:
        if width is None:
            return None
        fixed += width.fixed
        variable += width.variable
    return _Width(fixed, variable)


def _fixed_width(kind: t.DataType) -> int | None:
    if isinstance(kind, t.DecimalType):
        return 16
    if isinstance(kind, t.AnsiIntervalType):
        return 8
    return _WIDTHS.get(kind.simpleString())


def _or_zero(size: str) -> str:
    """A null has no bytes; by Spark's older rules its size is -1."""
    return f"cast(coalesce({size}, 0) as bigint)"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
