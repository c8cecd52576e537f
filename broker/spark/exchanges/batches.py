"""How Spark cuts a map task's rows into batches for Python.

Spark can be told how many bytes a batch may have. Then it asks each column for its size after each row, and for rows of 100
bytes that takes more time than all else that the JVM does with them. So rows alone are counted, and they are looked at on
their way: one that is too wide to stand in a batch with so many others comes without its values and in the bucket
``WIDE_ROW``, and the map stage is run once more, with the batches' bytes counted.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import frozen
from pyspark.sql import types as t

from broker.spark.exchanges.plan import WIDE_ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Bytes of a row's strings and binaries; beyond that it is too wide.
_WIDTH_MAX = 16 * 1024
# Rows of a batch where their width is not known. So many of the widest are 128 MiB; of rows of 100 bytes, they are what a batch
# should have.
_ROWS = 8192
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
    # As text, which Spark takes in one call, not in one for each function of each column.
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
    """Of a column: bytes that each row has, and SQL for what it has beyond."""

    fixed: int
    variable: Sequence[str] = ()


def _width(column: str, kind: t.DataType) -> _Width | None:
    if isinstance(kind, t.StringType | t.BinaryType):
        return _Width(4, [_or_nothing(f"octet_length({column})")])
    if isinstance(kind, t.StructType):
        return _struct_width(column, kind)
    if isinstance(kind, t.ArrayType):
        element = _fixed_width(kind.elementType)
        return None if element is None else _Width(4, [f"{_or_nothing(f'size({column})')} * {max(1, element)}"])
    fixed = _fixed_width(kind)
    return None if fixed is None else _Width(fixed)


def _struct_width(column: str, kind: t.StructType) -> _Width | None:
    if len({name.lower() for name in kind.names}) < len(kind.names):
        return None  # which of them a name means, cannot be said
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


def _or_nothing(size: str) -> str:
    """A null has no bytes; by Spark's older rules the size of one is -1."""
    return f"cast(coalesce({size}, 0) as bigint)"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
