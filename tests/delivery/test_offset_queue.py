"""Offsets that wait."""

from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.offset_queue import OffsetQueue


@given(st.lists(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 10))
def test_the_smallest_that_wait_come_out_once(put: list[int], waiting: set[int], most: int) -> None:
    queue = OffsetQueue()
    for offset in put:
        queue.put(offset)
    expected = sorted(waiting.intersection(put))
    taken: list[int] = []
    while queue:
        some = queue.take(most, waiting.__contains__)
        assert len(some) <= most
        taken += some
    assert expected == sorted(set(taken))
    assert expected[:most] == taken[:most]


def test_what_no_longer_waits_is_dropped_when_there_is_much_of_it() -> None:
    queue = OffsetQueue()
    for offset in range(10_000):
        queue.put(offset)
    queue.shrink({17, 5}.__contains__, 2)
    assert 2 == len(queue)
    assert [5, 17] == queue.take(10, {17, 5}.__contains__)
