"""Sorted offsets, against a sorted list."""

import random
from bisect import bisect_left, bisect_right, insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.delivery import sorted_offsets
from broker.delivery.sorted_offsets import SortedOffsets


def check(offsets: SortedOffsets, model: list[int], probe: int) -> None:
    assert model == list(offsets)
    assert len(model) == len(offsets)
    assert (model[0] if model else None, model[-1] if model else None) == (offsets.first, offsets.last)
    before, after = bisect_right(model, probe), bisect_left(model, probe)
    assert (model[before - 1] if before else None) == offsets.at_or_before(probe)
    assert (model[after] if after < len(model) else None) == offsets.at_or_after(probe)


@given(st.lists(st.integers(0, 40), max_size=80), st.integers(-1, 41))
def test_sorted_offsets_behave_like_sorted_list(changes: list[int], probe: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_offsets, "_BLOCK_MAX", 3)
        offsets, model = SortedOffsets(), []
        for offset in changes:
            if offset in model:
                model.remove(offset)
                offsets.remove(offset)
            else:
                insort(model, offset)
                offsets.add(offset)
            check(offsets, model, probe)
        filled = SortedOffsets()
        filled.fill(model)
        check(filled, model, probe)
        offsets.clear()
        check(offsets, [], probe)
    assert sorted_offsets._NO_BLOCKS == sorted_offsets._NO_FIRSTS == []  # shared by all empty sets


@given(st.lists(st.integers(0, 40), max_size=40, unique=True), st.lists(st.integers(-1, 41), max_size=4))
def test_offsets_up_to_cut_are_taken_at_once(wanted: list[int], cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_offsets, "_BLOCK_MAX", 3)
        offsets, model = SortedOffsets(), sorted(wanted)
        for offset in wanted:
            offsets.add(offset)
        for cut in cuts:
            gone = bisect_right(model, cut)
            assert model[:gone] == offsets.take_until(cut)
            del model[:gone]
            check(offsets, model, cut)
        for offset in cuts:
            if offset >= 0 and offset not in model:
                insort(model, offset)
                offsets.add(offset)
                check(offsets, model, offset)


def test_unordered_offsets_lie_in_blocks_of_bounded_size() -> None:
    wanted = list(range(0, 100_000, 2))
    shuffled = wanted[:]
    random.Random(1).shuffle(shuffled)
    offsets = SortedOffsets()
    for offset in shuffled:
        offsets.add(offset)
    assert wanted == list(offsets)
    assert max(map(len, offsets._blocks)) <= 1024
    for offset in shuffled[:-1]:
        offsets.remove(offset)
    assert [shuffled[-1]] == list(offsets)
