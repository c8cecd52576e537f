"""What a query's filters leave of the partitions and offsets to read. Pure.

Filters on ``topic``, ``partition`` and ``offset`` are carried out wholly. Of ``timestamp`` only lower bounds are used, and Spark
filters again: producers set timestamps, so a record behind the first late one may be early, but none before it is late.
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
    """What may be left out. ``topics`` and ``partitions``: None is all. ``end`` is exclusive."""

    topics: frozenset[Any] | None = None
    partitions: frozenset[Any] | None = None
    start: int = 0
    end: int | None = None
    since_ms: int | None = None

    def wants(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def both(self, other: "Narrowing") -> "Narrowing":
        """What both leave."""
        return Narrowing(
            _common(self.topics, other.topics),
            _common(self.partitions, other.partitions),
            max(self.start, other.start),
            min((end for end in (self.end, other.end) if end is not None), default=None),
            max((since for since in (self.since_ms, other.since_ms) if since is not None), default=None),
        )


def narrow(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """Of filters that must all hold: what they leave, and those that Spark has to apply as well."""
    narrowing, rest = Narrowing(), []
    for one in filters:
        found, wholly = _of(one)
        narrowing = narrowing.both(found)
        if not wholly:
            rest.append(one)
    return narrowing, rest


def _of(one: Filter) -> tuple[Narrowing, bool]:
    """What one filter leaves, and whether it is thereby carried out."""
    column = ".".join(getattr(one, "attribute", ()))
    value = getattr(one, "value", None)
    if isinstance(one, IsNotNull):
        return Narrowing(), column in ("topic", "partition", "offset", "timestamp")  # they never are
    if isinstance(one, EqualTo | EqualNullSafe):
        values: tuple[Any, ...] = (value,)
    elif isinstance(one, In):
        values = tuple(value or ())
    else:
        return _of_bound(one, column, value)
    if column == "topic" and all(isinstance(item, str) for item in values):
        return Narrowing(topics=frozenset(values)), True
    if column == "partition" and all(type(item) is int for item in values):
        return Narrowing(partitions=frozenset(values)), True
    if column == "offset" and values and all(type(item) is int for item in values):
        return Narrowing(start=max(0, min(values)), end=max(0, max(values) + 1)), len(values) == 1
    if column == "timestamp" and values and all(_is_moment(item) for item in values):
        return Narrowing(since_ms=_milliseconds(min(values))), False
    return Narrowing(), False


def _of_bound(one: Filter, column: str, value: Any) -> tuple[Narrowing, bool]:
    lower = isinstance(one, GreaterThan | GreaterThanOrEqual)
    upper = isinstance(one, LessThan | LessThanOrEqual)
    if column == "offset" and type(value) is int:
        if lower:
            return Narrowing(start=max(0, value + isinstance(one, GreaterThan))), True
        if upper:
            return Narrowing(end=max(0, value + isinstance(one, LessThanOrEqual))), True
    if column == "timestamp" and lower and _is_moment(value):
        return Narrowing(since_ms=_milliseconds(value)), False
    return Narrowing(), False


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is not None


def _milliseconds(moment: datetime.datetime) -> int:
    """Rounded down: a record of that ms may be the one. Before 1970 all records are later."""
    return max(0, (moment - _EPOCH) // datetime.timedelta(milliseconds=1))


def _common(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
