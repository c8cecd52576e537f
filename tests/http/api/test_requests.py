"""Requests and their latency by API over HTTP."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.http.api.requests import added, percentile
from broker.metrics import names
from tests.http.api.harness import api_broker, differences, documented

BOUNDS = names.REQUEST_SECONDS.bounds
RANGES = len(BOUNDS) + 1


def spread(**counts: int) -> list[float]:
    """``b3=5``: five values in the third range."""
    found = [0.0] * RANGES
    for name, count in counts.items():
        found[int(name[1:])] = count
    return found


def test_requests_are_counted_and_measured_by_api() -> None:
    with api_broker() as api:
        api.kafka.logs.create_topic("orders", 1)
        api.produce("orders", *[b"x"] * 10)
        answer = api.get("/requests")
        assert [] == differences(documented("/api/v1/requests"), answer)
        found = {each["api"]: each for each in answer["apis"]}
        assert {"Produce", "ApiVersions", "Metadata"} <= found.keys()
        produce = found["Produce"]
        assert produce["count"] >= 1
        assert produce["rate"] > 0
        assert 0 < produce["p50"] <= produce["p95"] <= produce["p99"] < 30
        assert all(value is not None for value in produce["parts"].values())


def test_a_percentile_lies_in_its_range() -> None:
    assert pytest.approx(BOUNDS[0] / 2) == percentile(spread(b0=10), 0.5)
    assert BOUNDS[3] < percentile(spread(b0=50, b4=50), 0.99) <= BOUNDS[4]
    assert pytest.approx(2 * BOUNDS[-1], rel=0.1) == percentile([*[0.0] * (RANGES - 1), 5], 0.99)


def test_times_are_added() -> None:
    nothing = spread(b0=100)
    assert pytest.approx([0, 0, 0, 1, *[0] * (RANGES - 4)]) == added(nothing, spread(b3=7))
    both = added(spread(b9=1, b0=1), spread(b9=1, b0=1))
    assert pytest.approx(0.25) == both[0]
    assert pytest.approx(1.0) == sum(both)


@given(*[st.lists(st.integers(0, 1000), min_size=RANGES, max_size=RANGES).filter(any)] * 2)
def test_a_sum_is_never_shorter_than_its_parts(one: list[int], other: list[int]) -> None:
    both = added(one, other)
    assert pytest.approx(1.0) == sum(both)
    for each in (one, other):
        for within, own in zip(accumulate(both), accumulate(each), strict=True):
            assert within <= own / sum(each) + 1e-9
