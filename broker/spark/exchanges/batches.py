"""How Spark cuts a map task's rows into batches for Python.

Spark can bound the bytes of a batch. It then asks each column for its size after each row, which for rows of 100 bytes takes more
time than everything else that the JVM does with them. So the first run bounds only the number of rows, and SQL looks at each row:
a row that is too wide for a batch with so many others arrives without its values and in the bucket ``WIDE_ROW``, and then the map
stage runs once more, with a bound on the bytes.

Tests: tests/spark/test_exchange.py.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import frozen
from pyspark.sql import types as t

from broker.spark.exchanges.plan import WIDE_ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A row with more bytes than this in strings and binaries is too wide.
_WIDTH_MAX = 16 * 1024
# Rows of a batch if their width is not known: 4 MB of rows of 1 KB, 64 MiB of the widest. The JVM fills, encodes and copies each
# batch, and does not find larger ones in the processor's cache. With 8,192 rows of 1 KB an exchange takes a seventh more CPU,
# with 2,048 rows of 100 bytes a little more.
_ROWS = 4096
# The size of a batch, and its most rows, if the width of the rows is known.
_BATCH_BYTES = 1024 * 1024
_ROWS_MAX = 65536
# The bounds of batches whose bytes are counted.
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
    """``rows``: the columns for Python, the bucket last. ``settings``: those of the session that plans them."""

    rows: "DataFrame"
    settings: Mapping[str, str]


def bounded_by_bytes(tagged: "DataFrame") -> Batches:
    """Batches of bounded size, whatever the rows are."""
    return Batches(tagged, {_RECORDS: str(_COUNTED_ROWS), _BYTES: str(_COUNTED_BYTES)})


def bounded_by_rows(tagged: "DataFrame") -> Batches | None:
    """Batches with a bounded number of rows, or None for columns whose width takes long to compute.

    ``tagged``: columns of any type, and last the bucket, an int.
    """
    # As SQL text, which Spark parses in one call instead of one for each function of each column.
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
    """A null has no bytes; by Spark's older rules the size of one is -1."""
    return f"cast(coalesce({size}, 0) as bigint)"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
