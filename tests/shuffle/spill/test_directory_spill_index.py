"""The index of a finished partition is read back, and invalid bytes are refused."""

from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.shuffle.partition.budget import Budget
from broker.shuffle.spill.directory import SpillIndex
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionState

ID = ResultPartitionID.of(b"d" * 16, 3, attempt=2)
ENTRIES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 10), st.booleans(), st.integers(0, 1000), st.integers(0, 100))
)


@given(entries=ENTRIES, ttl_ms=st.integers(-1, 2**62), owner=st.text(max_size=20))
def test_what_is_encoded_is_parsed(entries: list[Any], ttl_ms: int, owner: str) -> None:
    index = SpillIndex(ID, ttl_ms, 1234, 3, owner, entries)
    parsed = SpillIndex.parse(index.encode())
    assert (parsed.id, parsed.ttl_ms, parsed.finished_ms, parsed.subpartitions, parsed.owner) == (
        (ID, ttl_ms, 1234, 3, owner)
    )
    assert list(parsed.entries) == entries


def test_entries_are_encoded_in_pieces_with_one_checksum() -> None:
    entries = [(0, 1, False, number * 10, 10) for number in range(10_000)]
    index = SpillIndex(ID, -1, 0, 1, "", entries)
    assert len(list(index.pieces())) == 3
    assert list(SpillIndex.parse(index.encode()).entries) == entries


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7), entries=ENTRIES)
def test_a_flipped_bit_is_damage(position: int, bit: int, entries: list[Any]) -> None:
    data = bytearray(SpillIndex(ID, -1, 0, 3, "owner", entries).encode())
    data[position % len(data)] ^= 1 << bit
    with pytest.raises(ValueError, match=r"damaged|another kind|entries"):
        SpillIndex.parse(bytes(data))


@pytest.mark.parametrize("size", [0, 10, 50, 103])
def test_an_index_that_was_cut_off_is_damage(size: int) -> None:
    with pytest.raises(ValueError, match="damaged"):
        SpillIndex.parse(SpillIndex(ID, -1, 0, 3, "owner", []).encode()[:size])


def test_partition_has_its_buffers_at_indexed_places() -> None:
    budget = Budget(1 << 30, -1, -1)
    entries = [(0, 8, True, 0, 40), (0, 10, False, 70, 4), (1, 8, False, 40, 30), (1, 10, False, 74, 4)]
    file = cast(Any, "a file")
    partition = SpillIndex(ID, 5000, 0, 2, "owner", cast(Any, entries)).partition(file, 78, budget)
    assert (partition.state, partition.ttl_ms, partition.owner) == (PartitionState.FINISHED, 5000, "owner")
    assert (partition.holdings.disk, partition.holdings.buffers, partition.holdings.file_end) == (78, 4, 78)
    compressed = partition.part(0).at(0)
    assert compressed is not None
    assert (compressed.compressed, compressed.payload, compressed.size) == (True, 0, 40)
    assert [partition.part(index).ended for index in range(2)] == [True, True]


def test_data_shorter_than_its_index_is_refused() -> None:
    index = SpillIndex(ID, -1, 0, 1, "", [(0, 8, False, 0, 40)])
    with pytest.raises(ValueError, match="shorter"):
        index.partition(cast(Any, None), 39, Budget(1 << 30, -1, -1))
