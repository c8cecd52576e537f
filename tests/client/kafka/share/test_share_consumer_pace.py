"""How many records a loop locks at a time."""

from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.share.share_consumer import Pace


def test_fast_loop_soon_asks_for_the_maximum() -> None:
    pace = Pace(500)
    sizes = []
    for _ in range(11):
        sizes.append(pace.size)
        pace.finished(pace.size, pace.size * 0.0001)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]


def test_slow_loop_has_one_record_at_a_time() -> None:
    pace = Pace(500)
    for _ in range(5):
        pace.finished(1, 3.0)
        assert pace.size == 1


def test_slowing_loop_falls_to_records_per_second() -> None:
    pace = Pace(500)
    for _ in range(10):
        pace.finished(pace.size, 0.0)
    pace.finished(500, 50.0)
    assert pace.size == 10


def test_partial_batches_do_not_raise_the_size() -> None:
    pace = Pace(500)
    pace.finished(1, 0.0)
    pace.finished(1, 0.0)
    assert pace.size == 2


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1e6))))
def test_size_stays_between_one_and_the_maximum(most: int, batches: list[tuple[int, float]]) -> None:
    pace = Pace(most)
    for count, seconds in batches:
        pace.finished(count, seconds)
        assert 1 <= pace.size <= most
