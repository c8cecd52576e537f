"""Lag in records and in time."""

import pytest

from broker.kafka.groups.lag import PartitionLag, age_s, behind, longest_s, total_lag
from broker.kafka.groups.offsets import CommittedOffset

COMMITTED = CommittedOffset(4, 0, "", 0)


def lag(records: int | None, seconds: float | None = None) -> PartitionLag:
    return PartitionLag("t", 0, COMMITTED, None if records is None else 4 + records, records, seconds)


@pytest.mark.parametrize(("committed", "end", "expected"), [(4, 10, 6), (10, 10, 0), (11, 10, 0), (-1, 3, 4)])
def test_lag_is_the_distance_to_the_end(committed: int, end: int, expected: int) -> None:
    assert expected == behind(committed, end)


@pytest.mark.parametrize(("timestamp", "expected"), [(9_000, 1.0), (10_000, 0.0), (11_000, 0.0), (-1, None)])
def test_age_of_a_record(timestamp: int, expected: float | None) -> None:
    assert expected == age_s(timestamp, 10_000)


def test_partitions_that_are_not_known_do_not_count() -> None:
    lags = [lag(3, 1.5), lag(None), lag(2, None), lag(0, 0.0)]
    assert (5, 1.5) == (total_lag(lags), longest_s(lags))
    assert (0, None) == (total_lag([]), longest_s([]))
