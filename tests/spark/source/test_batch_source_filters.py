"""The records that a query's filters keep."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    Not,
    StringContains,
)

from broker.spark.source.batch_source import Narrowing, narrow

NOON = datetime.datetime(1970, 1, 1, 0, 0, 1, 500_999, tzinfo=datetime.UTC)
NUMBERS = st.integers(-3, 12)
COMPARISONS = st.one_of(
    *(
        st.builds(kind, st.sampled_from([("offset",), ("partition",)]), NUMBERS)
        for kind in (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ),
    st.builds(In, st.sampled_from([("offset",), ("partition",)]), st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
)


def holds(one: Filter, partition: int, offset: int) -> bool:
    value = partition if one.attribute == ("partition",) else offset  # type: ignore[attr-defined]
    wanted = one.value  # type: ignore[attr-defined]
    if isinstance(one, In):
        return value in wanted
    if isinstance(one, EqualTo | EqualNullSafe):
        return bool(value == wanted)
    if isinstance(one, GreaterThan):
        return bool(value > wanted)
    if isinstance(one, GreaterThanOrEqual):
        return bool(value >= wanted)
    return bool(value < wanted) if isinstance(one, LessThan) else bool(value <= wanted)


@given(st.lists(COMPARISONS, max_size=4))
def test_pushed_and_remaining_filters_are_the_filters(filters: list[Filter]) -> None:
    narrowing, rest = narrow(filters)
    for partition in range(4):
        for offset in range(14):
            left = (
                narrowing.keeps("t", partition)
                and narrowing.start <= offset
                and (narrowing.end is None or offset < narrowing.end)
                and all(holds(one, partition, offset) for one in rest)
            )
            assert left == all(holds(one, partition, offset) for one in filters)


@pytest.mark.parametrize(
    ("one", "narrowing", "left_to_spark"),
    [
        (EqualTo(("topic",), "orders"), Narrowing(topics=frozenset({"orders"})), False),
        (In(("topic",), ("a", "b")), Narrowing(topics=frozenset({"a", "b"})), False),
        (In(("partition",), (0, 2)), Narrowing(partitions=frozenset({0, 2})), False),
        (IsNotNull(("offset",)), Narrowing(), False),
        (IsNotNull(("key",)), Narrowing(), True),
        (EqualTo(("key",), b"k"), Narrowing(), True),
        (EqualNullSafe(("offset",), None), Narrowing(), True),
        (Not(EqualTo(("offset",), 3)), Narrowing(), True),
        (StringContains(("topic",), "or"), Narrowing(), True),
        (GreaterThanOrEqual(("timestamp",), NOON), Narrowing(since_ms=1500), True),
        (GreaterThan(("timestamp",), NOON), Narrowing(since_ms=1500), True),
        (EqualTo(("timestamp",), NOON), Narrowing(since_ms=1500), True),
        (LessThan(("timestamp",), NOON), Narrowing(), True),
        (GreaterThan(("timestamp",), NOON.replace(tzinfo=None)), Narrowing(), True),
    ],
)
def test_each_filter(one: Filter, narrowing: Narrowing, left_to_spark: bool) -> None:
    assert (narrowing, [one] if left_to_spark else []) == narrow([one])


def test_filters_that_exclude_each_other_leave_no_partition() -> None:
    narrowing, _ = narrow([EqualTo(("partition",), 0), EqualTo(("partition",), 1)])
    assert not any(narrowing.keeps("t", partition) for partition in range(3))
