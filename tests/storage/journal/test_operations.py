"""The index of a flush as bytes."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.journal.operations import (
    CorruptIndex,
    Create,
    Index,
    Operation,
    Remove,
    Rename,
    Truncate,
    Write,
    decode,
    encode,
)

paths = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300)
sizes = st.integers(0, 2**64 - 1)
operations = st.one_of(
    st.builds(Create, paths),
    st.builds(Write, paths, sizes, st.integers(0, 2**40)),
    st.builds(Truncate, paths, sizes),
    st.builds(Rename, paths, paths),
    st.builds(Remove, paths),
)


def index_of(listed: list[Operation], crc: int = 0) -> Index:
    return Index(listed, sum(each.size for each in listed if isinstance(each, Write)), crc)


@given(st.lists(operations, max_size=30), st.integers(0, 2**32 - 1))
def test_what_is_encoded_is_decoded(listed: list[Operation], crc: int) -> None:
    index = index_of(listed, crc)
    assert index == decode(encode(index))


@given(st.lists(operations, max_size=30), st.data())
def test_a_cut_index_is_refused(listed: list[Operation], data: st.DataObject) -> None:
    whole = encode(index_of([*listed, Create("a")]))
    with pytest.raises(CorruptIndex):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_read(garbage: bytes) -> None:
    for data in (garbage, b"\0" + garbage, b"\1" + zlib.compress(garbage)):
        try:
            decode(data)
        except CorruptIndex:
            pass


def test_a_thousand_partitions_take_few_bytes() -> None:
    listed: list[Operation] = [Write(f"topic-{n}/{0:020d}.log", n * 100, 100) for n in range(1_000)]
    assert len(encode(index_of(listed))) < 16_000


def test_a_bomb_is_refused() -> None:
    with pytest.raises(CorruptIndex):
        decode(b"\1" + zlib.compress(bytes(65 * 1024 * 1024)))
