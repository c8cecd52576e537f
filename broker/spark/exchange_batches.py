"""How Spark cuts a map task's rows into batches for Python.

Spark can be told how many bytes a batch may have. Then it asks each column for its size after each row, and for rows of 100
bytes that takes more time than all else that the JVM does with them. So rows alone are counted, and they are looked at on
their way: one that is too wide to stand in a batch with so many others comes without its values and in the bucket
``WIDE_ROW``, and the map stage is run once more, with the batches' bytes counted.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from attrs import frozen
from pyspark.sql import functions as sf
from pyspark.sql import types as t

from broker.spark.exchange_plan import WIDE_ROW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Bytes of a row's strings and binaries; beyond that it is too wide.
_WIDTH_MAX = 64 * 1024
# Rows of a batch where their width is not known. So many of the widest are 128 MiB.
_ROWS = 2048
# What batches should have, and the most rows, where it is known.
_BATCH_BYTES = 1024 * 1024
_ROWS_MAX = 65536
# Of batches whose bytes are counted.
_COUNTED_BYTES = 4 * 1024 * 1024
_COUNTED_ROWS = 50000

_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
# With this one Spark counts no bytes.
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
    """``rows``: what goes to Python, the bucket last. ``settings``: of the session, while that is planned."""

    rows: "DataFrame"
    settings: Mapping[str, str]


def counted(tagged: "DataFrame") -> Batches:
    """Of a bounded size, whatever the rows are."""
    return Batches(tagged, {_RECORDS: str(_COUNTED_ROWS), _BYTES: str(_COUNTED_BYTES)})


def uncounted(tagged: "DataFrame") -> Batches | None:
    """``tagged``: columns of any kind, and last the bucket, an int. None for columns whose width is not soon found."""
    fields = tagged.schema.fields
    *columns, bucket = (sf.col(f"`{field.name}`") for field in fields)
    widths = [_width(column, field.dataType) for column, field in zip(columns, fields[:-1], strict=True)]
    row = _together([*widths, _width(bucket, fields[-1].dataType)])
    if row is None:
        return None
    rows = max(1, min(_ROWS_MAX, _BATCH_BYTES // max(1, row.fixed)))
    if not row.variable:
        return Batches(tagged, {_RECORDS: str(rows), _BYTES: str(_NO_BOUND)})
    fits = reduce(add, row.variable) <= _WIDTH_MAX
    guarded = [
        sf.when(fits, column).alias(field.name) if width is not None and width.variable else column
        for column, field, width in zip(columns, fields[:-1], widths, strict=True)
    ]
    last = sf.when(fits, bucket).otherwise(sf.lit(WIDE_ROW)).alias(fields[-1].name)
    return Batches(tagged.select(*guarded, last), {_RECORDS: str(min(rows, _ROWS)), _BYTES: str(_NO_BOUND)})


@frozen
class _Width:
    """Of a column: bytes that each row has, and expressions for what it has beyond."""

    fixed: int
    variable: "Sequence[Column]" = ()


def _width(column: "Column", kind: t.DataType) -> _Width | None:
    if isinstance(kind, t.StringType | t.BinaryType):
        return _Width(4, [_or_nothing(sf.octet_length(column))])
    if isinstance(kind, t.StructType):
        return _struct_width(column, kind)
    if isinstance(kind, t.ArrayType):
        element = _fixed_width(kind.elementType)
        return None if element is None else _Width(4, [_or_nothing(sf.size(column)) * max(1, element)])
    fixed = _fixed_width(kind)
    return None if fixed is None else _Width(fixed)


def _struct_width(column: "Column", kind: t.StructType) -> _Width | None:
    if len({name.lower() for name in kind.names}) < len(kind.names):
        return None  # which of them a name means, cannot be said
    return _together([_width(column.getField(field.name), field.dataType) for field in kind.fields])


def _together(widths: Sequence[_Width | None]) -> _Width | None:
    fixed, variable = 0, list["Column"]()
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


def _or_nothing(size: "Column") -> "Column":
    """A null has no bytes; by Spark's older rules the size of one is -1."""
    return sf.coalesce(size, sf.lit(0)).cast("bigint")
