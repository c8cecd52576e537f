"""The offset to which a group is reset in a partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.admin.positions import Facts, To, new_offset

FACTS = Facts(start=10, end=50, committed=30, at_time=20)


@pytest.mark.parametrize(
    ("to", "number", "offset"),
    [
        (To.EARLIEST, 0, 10),
        (To.LATEST, 0, 50),
        (To.CURRENT, 0, 30),
        (To.OFFSET, 12, 12),
        (To.OFFSET, 3, 10),
        (To.OFFSET, 99, 50),
        (To.TIME, 123456, 20),
        (To.SHIFT, -5, 25),
        (To.SHIFT, 5, 35),
        (To.SHIFT, -50, 10),
    ],
)
def test_each_way(to: To, number: int, offset: int) -> None:
    assert offset == new_offset(to, number, FACTS)


def test_time_after_last_record_is_the_end() -> None:
    assert 50 == new_offset(To.TIME, 123456, Facts(10, 50))


def test_missing_commit_leaves_nothing_to_keep_or_shift() -> None:
    assert 50 == new_offset(To.CURRENT, 0, Facts(10, 50))
    assert 45 == new_offset(To.SHIFT, -5, Facts(10, 50))


offsets = st.integers(0, 2**62)


@given(st.sampled_from(To), st.integers(-(2**62), 2**62), offsets, offsets, st.none() | offsets, st.none() | offsets)
def test_result_is_always_in_the_partition(
    to: To, number: int, start: int, length: int, committed: int | None, at_time: int | None
) -> None:
    assert start <= new_offset(to, number, Facts(start, start + length, committed, at_time)) <= start + length
