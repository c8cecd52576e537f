"""A generation as the bytes that the catalogue stores."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.errors import StorageError
from broker.kafka.groups.kinds import StoredGroup, decode, encode
from broker.kafka.groups.values import GroupSnapshot, MemberSnapshot

names = st.text(max_size=20)
members = st.builds(
    MemberSnapshot,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    st.lists(st.tuples(names, st.binary(max_size=50)), max_size=3).map(tuple),
    st.binary(max_size=50),
)
snapshots = st.builds(
    GroupSnapshot,
    names,
    st.integers(0, 2**31 - 1),
    st.none() | names,
    st.none() | names,
    st.lists(members, max_size=3).map(tuple),
)


@given(snapshot=snapshots, since_ms=st.integers(0, 2**53))
def test_what_is_encoded_is_decoded_to_the_same(snapshot: GroupSnapshot, since_ms: int) -> None:
    assert decode("g", encode(snapshot, since_ms)) == StoredGroup(snapshot, since_ms)


GOOD = encode(GroupSnapshot("consumer", 1, "range", "a", (MemberSnapshot("a", None, "c", "/h", 1, 1, (), b""),)), 5)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        GOOD[:-1],
        GOOD.replace(b'"version":1', b'"version":2'),
        GOOD.replace(b'"a"', b"null,", 1),
    ],
)
def test_what_cannot_be_read_names_its_group(damaged: bytes) -> None:
    with pytest.raises(StorageError, match="'g'"):
        decode("g", damaged)
