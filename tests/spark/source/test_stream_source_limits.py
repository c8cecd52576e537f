"""How a micro-batch is distributed over partitions."""

from hypothesis import assume, given
from hypothesis import strategies as st

from broker.spark.source.stream_source import must_wait, share_bytes, share_records

LAGS = st.dictionaries(st.tuples(st.just("t"), st.integers(0, 30)), st.integers(0, 10**12), max_size=12)


@given(LAGS, st.integers(1, 10**12))
def test_share_is_proportional_and_within_the_lag(lags: dict[tuple[str, int], int], most: int) -> None:
    shares = share_records(lags, most)
    waiting = {where: lag for where, lag in lags.items() if lag}
    total = sum(waiting.values())
    assert waiting.keys() == shares.keys()
    for where, share in shares.items():
        assert 1 <= share <= waiting[where]
        if total > most:
            assert abs(share - most * waiting[where] / total) <= 1
    assert min(most, total) == sum(shares.values()) or (sum(shares.values()) > most and 1 in shares.values())


@given(LAGS, st.integers(1, 10**9))
def test_shares_exceed_the_limit_by_minimal_records(lags: dict[tuple[str, int], int], most: int) -> None:
    assert sum(share_records(lags, most).values()) <= most + sum(1 for lag in lags.values() if lag)


@given(LAGS, st.integers(1, 1000))
def test_all_is_read_in_the_end(lags: dict[tuple[str, int], int], most: int) -> None:
    assume(sum(lags.values()) <= 200 * most)
    batches = 0
    while any(lags.values()):
        shares = share_records(lags, most)
        lags = {where: lag - shares.get(where, 0) for where, lag in lags.items()}
        batches += 1
        assert batches <= 201


def test_share_of_a_long_partition_is_long() -> None:
    assert {("t", 0): 90, ("t", 1): 9, ("t", 2): 1} == share_records(
        {("t", 0): 9000, ("t", 1): 900, ("t", 2): 100}, 100
    )


@given(LAGS, st.floats(1, 10**6), st.integers(1, 10**12))
def test_bytes_are_shared_by_the_mean_size(lags: dict[tuple[str, int], int], mean: float, most: int) -> None:
    sizes = {where: mean * (1 + where[1] % 3) for where in lags}
    shares = share_bytes(lags, sizes, most)
    assert {where for where, lag in lags.items() if lag} == shares.keys()
    assert all(1 <= share <= lags[where] for where, share in shares.items())
    # A record of each partition is read, however large.
    more_than_one = sum(share * sizes[where] for where, share in shares.items() if share > 1)
    assert more_than_one <= most * (1 + 1e-9)


def test_batch_waits_for_its_minimum_only_so_long() -> None:
    lags = {("t", 0): 3, ("t", 1): 4}
    assert must_wait(lags, 8, waited_ms=0, longest_ms=100)
    assert not must_wait(lags, 7, waited_ms=0, longest_ms=100)
    assert not must_wait(lags, 8, waited_ms=100, longest_ms=100)
