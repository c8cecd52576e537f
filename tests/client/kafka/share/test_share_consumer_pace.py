"""How many records a loop locks at a time."""

from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.share.share_consumer import Pace


def test_a_fast_loop_soon_asks_for_all_it_may_have() -> None:
    pace = Pace(500)
    sizes = []
    for _ in range(11):
        sizes.append(pace.size)
        pace.finished(pace.size, pace.size * 0.0001)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]


def test_a_loop_that_takes_seconds_for_a_record_has_one_at_a_time() -> None:
    pace = Pace(500)
    for _ in range(5):
        pace.finished(1, 3.0)
        assert pace.size == 1


def test_a_loop_that_becomes_slow_falls_to_what_it_does_in_a_second() -> None:
    pace = Pace(500)
    for _ in range(10):
        pace.finished(pace.size, 0.0)
    pace.finished(500, 50.0)
    assert pace.size == 10


def test_batches_that_are_not_full_do_not_make_it_ask_for_more() -> None:
    pace = Pace(500)
    pace.finished(1, 0.0)
    pace.finished(1, 0.0)
    assert pace.size == 2


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1e6))))
def test_it_is_never_less_than_one_nor_more_than_allowed(most: int, batches: list[tuple[int, float]]) -> None:
    pace = Pace(most)
    for count, seconds in batches:
        pace.finished(count, seconds)
        assert 1 <= pace.size <= most
