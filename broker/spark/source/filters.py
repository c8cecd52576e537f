"""Narrows the partitions and offsets to read by a query's filters. Pure.

Filters on ``topic``, ``partition`` and ``offset`` are applied completely. Of ``timestamp`` only lower bounds are used, and Spark
filters again: producers set timestamps, so a record after the first late one may be early, but no record before it is late.
"""

import datetime
from collections.abc import Iterable
from typing import Any

import attrs
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
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
    """What a conjunction of filters keeps, and the filters that Spark must apply again."""
    narrowing, rest = Narrowing(), []
    for item in filters:
        kept, is_exact = _of(item)
        narrowing = narrowing.both(kept)
        if not is_exact:
            rest.append(item)
    return narrowing, rest


def _of(item: Filter) -> tuple[Narrowing, bool]:
    """What one filter keeps, and whether that is exactly what the filter selects."""
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


def _common(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
