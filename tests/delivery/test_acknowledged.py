"""Acknowledged offsets, against a set of offsets."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.delivery.acknowledged import Acknowledged, TooManyHoles

RANGES_MAX = 4
PARTS_MAX = 3
LAST = 60
# Batches of 1 to 6 records, always the same.
BATCHES = [(first, size) for first, size in zip([0, 1, 4, 9, 10, 16, 20, 21, 22, 28, 30, 36, 40, 45, 50, 51, 57],
                                                [1, 3, 5, 1, 6, 4, 1, 1, 6, 2, 6, 4, 5, 5, 1, 6, 3], strict=True)]  # fmt: skip


class AcknowledgedMachine(RuleBasedStateMachine):
    """The model is the set of acknowledged offsets and, for each batch, the unacknowledged records."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged = Acknowledged(ranges_max=RANGES_MAX, parts_max=PARTS_MAX)
        self.left = {first: set(range(size)) for first, size in BATCHES}

    def is_done(self, offset: int) -> bool:
        return any(not self.left[first] for first, size in BATCHES if first <= offset < first + size)

    def runs(self) -> list[tuple[int, int]]:
        """The ranges of the model, including those at the start."""
        ranges: list[tuple[int, int]] = []
        for offset in range(LAST):
            if self.is_done(offset):
                if ranges and ranges[-1][1] == offset:
                    ranges[-1] = (ranges[-1][0], offset + 1)
                else:
                    ranges.append((offset, offset + 1))
        return ranges

    def would_be(self, first: int, left: set[int]) -> tuple[int, int]:
        """The number of ranges and parts in the model."""
        kept = self.left[first]
        self.left[first] = left
        runs = self.runs()
        ranges = len(runs) - (1 if runs and runs[0][0] == 0 else 0)
        parts = sum(0 < len(self.left[other]) < size for other, size in BATCHES)
        self.left[first] = kept
        return ranges, parts

    def counts(self) -> tuple[int, int]:
        return self.acknowledged.range_count, len(self.acknowledged.parts)

    @rule(batch=st.sampled_from(BATCHES))
    def add(self, batch: tuple[int, int]) -> None:
        first, size = batch
        before = self.counts()
        ranges, _ = self.would_be(first, set())
        if ranges > RANGES_MAX and ranges > before[0]:
            version = self.acknowledged.version
            with pytest.raises(TooManyHoles):
                self.acknowledged.add(first, first + size)
            assert version == self.acknowledged.version
            return
        assert len(self.left[first]) == self.acknowledged.add(first, first + size)
        self.left[first] = set()

    @rule(batch=st.sampled_from(BATCHES), data=st.data())
    def add_part(self, batch: tuple[int, int], data: st.DataObject) -> None:
        first, size = batch
        # More bits than the batch has records: a client may send them.
        given = data.draw(st.integers(0, (1 << (size + 3)) - 1))
        left = {record for record in self.left[first] if given >> record & 1}
        before = self.counts()
        ranges, parts = self.would_be(first, left)
        if (ranges > RANGES_MAX and ranges > before[0]) or (parts > PARTS_MAX and parts > before[1]):
            version = self.acknowledged.version
            with pytest.raises(TooManyHoles):
                self.acknowledged.add_part(first, size, given)
            assert version == self.acknowledged.version
            return
        assert len(self.left[first]) - len(left) == self.acknowledged.add_part(first, size, given)
        self.left[first] = left

    @rule(batch=st.sampled_from(BATCHES))
    def until(self, batch: tuple[int, int]) -> None:
        moves = any(self.left[first] for first, _ in BATCHES if first < batch[0])
        assert moves == self.acknowledged.until(batch[0])
        for first, _ in BATCHES:
            if first < batch[0]:
                self.left[first] = set()

    @precondition(lambda self: self.acknowledged.range_count < 2 * RANGES_MAX)
    @rule(batch=st.sampled_from(BATCHES))
    def add_absent(self, batch: tuple[int, int]) -> None:
        self.acknowledged.add_absent(batch[0], sum(batch))
        self.left[batch[0]] = set()

    @rule(batch=st.sampled_from(BATCHES))
    def reset(self, batch: tuple[int, int]) -> None:
        self.acknowledged.reset(batch[0])
        self.left = {first: set() if first < batch[0] else set(range(size)) for first, size in BATCHES}

    @rule()
    def restore(self) -> None:
        copy = Acknowledged(self.acknowledged.before, ranges_max=RANGES_MAX, parts_max=PARTS_MAX)
        copy.restore(
            list(self.acknowledged.ranges),
            [(first, *part) for first, part in sorted(self.acknowledged.parts.items())],
        )
        self.acknowledged = copy

    @invariant()
    def it_says_what_the_set_says(self) -> None:
        runs = self.runs()
        before = runs.pop(0)[1] if runs and runs[0][0] == 0 else 0
        assert (before, runs) == (self.acknowledged.before, list(self.acknowledged.ranges))
        parts = {first: sum(1 << bit for bit in self.left[first]) for first, size in BATCHES
                 if 0 < len(self.left[first]) < size}  # fmt: skip
        assert parts == {first: part.remaining for first, part in self.acknowledged.parts.items()}
        for offset in range(LAST):
            assert self.is_done(offset) == self.acknowledged.covers(offset)
            hole = next((o for o in range(offset, LAST) if not self.is_done(o)), LAST)
            assert hole == self.acknowledged.next_hole(offset)
        assert sum(end - first for first, end in runs) == self.acknowledged.beyond
        assert (runs[-1][1] if runs else before) == self.acknowledged.end


TestAcknowledgedMachine = AcknowledgedMachine.TestCase
TestAcknowledgedMachine.settings = settings(max_examples=150, stateful_step_count=40)


def test_at_bound_only_further_holes_are_refused() -> None:
    acknowledged = Acknowledged(ranges_max=2)
    acknowledged.add(10, 11)
    acknowledged.add(20, 21)
    with pytest.raises(TooManyHoles, match="2 ranges"):
        acknowledged.add(30, 31)
    assert not acknowledged.covers(30)
    assert 9 == acknowledged.add(11, 20)  # fills a hole
    assert 1 == acknowledged.add(30, 31)
    assert 1 == acknowledged.add(0, 1)  # moves the start


def test_million_holes_are_refused_without_forgetting_any() -> None:
    # Pulsar's issue 25540: offsets above the limit were acknowledged for the consumer, and delivered again after a restart.
    acknowledged = Acknowledged(ranges_max=1000)
    kept = []
    for offset in range(1, 20_000, 2):
        try:
            acknowledged.add(offset, offset + 1)
            kept.append(offset)
        except TooManyHoles:
            pass
    assert 1000 == len(kept) == acknowledged.range_count
    assert all(acknowledged.covers(offset) for offset in kept)


def test_bit_set_takes_no_more_memory_than_batch() -> None:
    acknowledged = Acknowledged()
    assert 1 == acknowledged.add_part(0, 3, (1 << 40_000_000) - 2)
    assert 0b110 == acknowledged.part(0)


def test_batch_claiming_two_billion_records_costs_its_bits() -> None:
    acknowledged = Acknowledged()
    assert 2**31 - 2 == acknowledged.add_part(0, 2**31 - 1, 1)
    assert 1 == acknowledged.part(0)


def test_bits_of_all_parts_are_bounded() -> None:
    acknowledged = Acknowledged()
    large = (1 << 80_000_000) - 2
    acknowledged.add_part(0, 100_000_000, large)
    with pytest.raises(TooManyHoles):
        acknowledged.add_part(100_000_000, 100_000_000, large)
    acknowledged.until(100_000_000)
    acknowledged.add_part(100_000_000, 100_000_000, large)


def test_absent_offsets_are_accepted_but_stop_the_reader() -> None:
    acknowledged = Acknowledged(ranges_max=2)
    for offset in (10, 20, 30):
        assert not acknowledged.crowded
        acknowledged.add_absent(offset, offset + 1)
    assert not acknowledged.crowded
    acknowledged.add_absent(40, 41)
    assert acknowledged.crowded


@pytest.mark.parametrize(
    ("ranges", "parts"),
    [
        ([(5, 6)], []),
        ([(7, 7)], []),
        ([(7, 9), (9, 10)], []),
        ([(7, 9), (8, 10)], []),
        ([], [(3, 2, 1)]),
        ([(7, 9)], [(8, 2, 1)]),
        ([], [(7, 2, 0)]),
        ([], [(7, 2, 3)]),
        ([], [(7, 2, 4)]),
        ([], [(9, 2, 1), (7, 2, 1)]),
    ],
)
def test_impossible_state_is_not_restored(ranges: list[tuple[int, int]], parts: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError):
        Acknowledged(5).restore(ranges, parts)
