"""Offsets that wait."""

from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.sorted_offsets import OffsetQueue


@given(st.lists(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 10))
def test_smallest_waiting_offsets_come_out_once(put: list[int], waiting: set[int], most: int) -> None:
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
