"""The values that an exchange's tasks receive, and the partitions that they find with them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker.spark.exchanges.plan import ExchangePlan, ExchangeSpec, Winner, bits

specs = st.builds(
    ExchangeSpec,
    data_set=st.binary(min_size=16, max_size=16),
    brokers=st.lists(st.text(), min_size=1, max_size=3).map(tuple),
    buckets=st.integers(1, 100),
    ttl_ms=st.integers(1, 2**40),
    owner=st.text(),
    compression=st.sampled_from([None, "lz4"]),
    patience=st.floats(0, 100),
)


@st.composite
def plans(draw: st.DrawFn) -> ExchangePlan:
    spec = draw(specs)
    counts = st.lists(st.integers(0, 2), min_size=spec.buckets, max_size=spec.buckets)
    winner = st.builds(
        Winner,
        map_number=st.integers(0, 2**31 - 1),
        attempt=st.integers(0, 2**31 - 1),
        broker=st.integers(-2, len(spec.brokers) - 1),
        rows=st.integers(0, 2**40),
        size=st.integers(0, 2**40),
        buckets=counts.map(lambda numbers: bits(np.array(numbers))),
    )
    return ExchangePlan(spec, tuple(draw(st.lists(winner, max_size=5))))


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_winner_knows_which_buckets_have_rows(counts: list[int]) -> None:
    winner = Winner(0, 0, 0, sum(counts), 0, bits(np.array(counts)))
    assert [bool(count) for count in counts] == [winner.has(bucket) for bucket in range(len(counts))]


@given(plan=plans(), data=st.data())
def test_bucket_is_read_from_winners_with_rows(plan: ExchangePlan, data: st.DataObject) -> None:
    bucket = data.draw(st.integers(0, plan.spec.buckets - 1))
    expected = [
        (plan.spec.brokers[winner.broker], winner.map_number, winner.attempt, bucket)
        for winner in plan.winners
        if winner.broker >= 0 and winner.has(bucket)
    ]
    actual = [
        (address, partition.number, partition.attempt, subpartition)
        for address, partition, subpartition in plan.channels(bucket)
    ]
    assert expected == actual


@given(
    spec=specs, map_number=st.integers(0, 2**31 - 1), attempts=st.sets(st.integers(0, 2**40), min_size=2, max_size=2)
)
def test_attempts_of_a_map_are_distinct(spec: ExchangeSpec, map_number: int, attempts: set[int]) -> None:
    first, other = (spec.partition(map_number, attempt) for attempt in attempts)
    same = len({attempt % 2**31 for attempt in attempts}) == 1
    assert (first == other) is same
    assert (first.producer_key == other.producer_key) is same
    assert first.hex().startswith(spec.prefix)
