"""Names of segments in the object store."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.objects import check_key
from broker.storage.tier.keys import PREFIX, SegmentKey, parse

OFFSETS = st.integers(0, 2**63 - 1)
KEYS = st.builds(
    SegmentKey,
    st.uuids(),
    st.integers(0, 99_999),
    OFFSETS,
    OFFSETS,
    st.integers(-1, 2**63 - 1),
    OFFSETS,
    OFFSETS,
    st.uuids(),
)


@given(KEYS)
def test_name_says_everything(key: SegmentKey) -> None:
    assert key == parse(str(key))
    check_key(str(key))


@given(KEYS, OFFSETS)
def test_names_sort_as_offsets(key: SegmentKey, other: int) -> None:
    after = SegmentKey(key.topic_id, key.partition, other, 0, 0, 0, 0, uuid.UUID(int=0))
    if key.base != other:
        assert (key.base < other) == (str(key) < str(after))


@pytest.mark.parametrize("name", ["", PREFIX, f"{PREFIX}/x/0/0", "journal/1", f"{PREFIX}/{'0' * 32}/0/{'0' * 20}-x"])
def test_other_names_say_nothing(name: str) -> None:
    assert parse(name) is None
