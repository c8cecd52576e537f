"""The batch source: plans on the driver, at every run of a query, which records the tasks read.

``BatchReader`` is created in a planning process and copied to the tasks, so it holds options only. ``reading.py`` is
the tasks' side. ``narrow`` narrows the partitions and offsets by a query's filters (pure): filters on ``topic``,
``partition`` and ``offset`` are applied completely. Of ``timestamp`` only lower bounds are used, and Spark filters
again: producers set timestamps, so a record after the first late record may be early, but no record before it is late.

The columns have the names and types of Spark's Kafka connector. The types here are Spark's;
``broker.client.kafka.columns.columns`` has the same columns in Arrow's.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from broker.client.kafka.cluster import Cluster
from broker.errors import ConfigError
from broker.spark.sentences import sentences_only
from broker.spark.source import reading, resolve
from broker.spark.source.offsets import Offsets
from broker.spark.source.options import SourceOptions
from broker.spark.source.reading import OffsetRange, ReadSettings, Slice, cut

if TYPE_CHECKING:
    import pyarrow as pa

import datetime
from collections.abc import Sequence
from typing import Any

import attrs
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    TimestampType,
)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@attrs.frozen
class Narrowing:
    """The part of the records that must be read. ``topics`` and ``partitions``: None for all. ``end`` is exclusive."""

    topics: frozenset[Any] | None = None
    partitions: frozenset[Any] | None = None
    start: int = 0
    end: int | None = None
    since_ms: int | None = None

    def keeps(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def both(self, other: "Narrowing") -> "Narrowing":
        """The records that both keep."""
        return Narrowing(
            _common(self.topics, other.topics),
            _common(self.partitions, other.partitions),
            max(self.start, other.start),
            min((end for end in (self.end, other.end) if end is not None), default=None),
            max((since for since in (self.since_ms, other.since_ms) if since is not None), default=None),
        )


def narrow(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """The records that a conjunction of filters keeps, and the filters that Spark must apply again."""
    narrowing, rest = Narrowing(), []
    for item in filters:
        kept, is_exact = _of(item)
        narrowing = narrowing.both(kept)
        if not is_exact:
            rest.append(item)
    return narrowing, rest


def _of(item: Filter) -> tuple[Narrowing, bool]:
    """The records that a filter keeps, and whether the filter selects exactly those."""
    column = ".".join(getattr(item, "attribute", ()))
    value = getattr(item, "value", None)
    if isinstance(item, IsNotNull):
        return Narrowing(), column in ("topic", "partition", "offset", "timestamp")  # these columns are never null
    if isinstance(item, EqualTo | EqualNullSafe):
        values: tuple[Any, ...] = (value,)
    elif isinstance(item, In):
        values = tuple(value or ())
    else:
        return _of_bound(item, column, value)
    if column == "topic" and all(isinstance(element, str) for element in values):
        return Narrowing(topics=frozenset(values)), True
    if column == "partition" and all(type(element) is int for element in values):
        return Narrowing(partitions=frozenset(values)), True
    if column == "offset" and values and all(type(element) is int for element in values):
        return Narrowing(start=max(0, min(values)), end=max(0, max(values) + 1)), len(values) == 1
    if column == "timestamp" and values and all(_is_moment(element) for element in values):
        return Narrowing(since_ms=_milliseconds(min(values))), False
    return Narrowing(), False


def _of_bound(item: Filter, column: str, value: Any) -> tuple[Narrowing, bool]:
    lower = isinstance(item, GreaterThan | GreaterThanOrEqual)
    upper = isinstance(item, LessThan | LessThanOrEqual)
    if column == "offset" and type(value) is int:
        if lower:
            return Narrowing(start=max(0, value + isinstance(item, GreaterThan))), True
        if upper:
            return Narrowing(end=max(0, value + isinstance(item, LessThanOrEqual))), True
    if column == "timestamp" and lower and _is_moment(value):
        return Narrowing(since_ms=_milliseconds(value)), False
    return Narrowing(), False


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is not None


def _milliseconds(moment: datetime.datetime) -> int:
    """Rounded down, because a record of that ms may match. For times before 1970 it is 0: all records are later."""
    return max(0, (moment - _EPOCH) // datetime.timedelta(milliseconds=1))


def _common(left: frozenset[Any] | None, right: frozenset[Any] | None) -> frozenset[Any] | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in columns])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of the user's schema, which may lack some. Raises ConfigError for any other column or type."""
    for field in schema.fields:
        if TYPES.get(field.name) != field.dataType or not field.nullable:
            known = ", ".join(f"{name} {type_.simpleString()}" for name, type_ in TYPES.items())
            raise ConfigError(
                f"A topic has no column {field.name} {field.dataType.simpleString()}"
                f"{'' if field.nullable else ' not null'}: it has {known}."
            )
    return tuple(schema.names)


def settings_of(options: SourceOptions, schema: StructType) -> ReadSettings:
    return ReadSettings(options.client, columns_of(schema), options.fail_on_data_loss, options.poll_timeout_ms)


@sentences_only
class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = settings_of(options, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Cluster(options.client) as cluster:
            ranges = plan(cluster, options, self._narrowing)
        pieces = cut(ranges, options.min_partitions, options.max_records_per_partition)
        return [Slice(piece, self._settings) for piece in pieces]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return reading.read(partition)


@sentences_only
class NarrowingReader(BatchReader):
    """A reader that takes filters.

    It is a class of its own, because Spark does not plan with a reader that can take filters while
    ``spark.sql.python.filterPushdown.enabled`` is false.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:
        self._narrowing, rest = narrow(filters_)
        return rest


def plan(cluster: Cluster, options: SourceOptions, narrowing: Narrowing) -> list[OffsetRange]:
    """The offsets to read of each partition. Raises ConfigError, DataLossError."""
    discovered = resolve.discover(cluster, options.subscription)
    resolve.require_all(discovered, options)
    ends = resolve.Ends(cluster, discovered.partitions)
    now_ms = cluster.clock.time_ms()
    first = resolve.first_offsets(ends, discovered.partitions, options, now_ms)
    last = resolve.last_offsets(ends, discovered.partitions, options, now_ms)
    for where in discovered.partitions:
        # Times may cross in a partition without records between them; crossed offsets are the user's mistake.
        if first[where] > last[where] and isinstance(options.start, Offsets) and isinstance(options.end, Offsets):
            raise ConfigError(
                f"startingOffsets ({first[where]}) is after endingOffsets ({last[where]}) for {resolve.name(where)}."
            )
    kept = [where for where in discovered.partitions if narrowing.keeps(*where)]
    if narrowing.since_ms is not None:
        late = resolve.ask(cluster, dict.fromkeys(kept, narrowing.since_ms))
        for where, offset in late.items():
            first[where] = last[where] if offset is None else max(first[where], offset)
    return [
        OffsetRange(
            *where,
            max(first[where], narrowing.start),
            last[where] if narrowing.end is None else min(last[where], narrowing.end),
            discovered.topic_id(where[0]),
        )
        for where in kept
    ]
