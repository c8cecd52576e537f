"""The accounts of a partition: whatever is kept, sent, spilled and dropped, the budget agrees."""

from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.runtime.threads import Lock
from broker.shuffle.partition.budget import IN_FILE_BYTES, IN_MEMORY_BYTES, Budget
from broker.shuffle.partition.holdings import BUFFER_OVERHEAD, Holdings, OverQuota
from broker.shuffle.partition.subpartition import Subpartition
from protocol.shuffle.data_type import DataType

DATA = DataType.DATA_BUFFER
FILE = cast(Any, "a file")


class Reader:
    def buffers_added(self, cursor: object, data: int) -> bool:
        return False

    def notify(self) -> None: ...


class Setup:
    def __init__(self, retains: bool = False, owner_max: int = -1) -> None:
        self.budget = Budget(1 << 30, -1, owner_max)
        self.holdings = Holdings(self.budget, "owner", Lock(), retains, 0)
        self.part = Subpartition()
        self.part.claim(Reader(), 0)

    def keep(self, *sizes: int) -> None:
        for size in sizes:
            self.holdings.keep(self.part, DATA, False, bytes(size))

    def spill(self, bytes_max: int = 1 << 30) -> None:
        start, payloads = self.part.oldest_in_memory(bytes_max)
        self.holdings.piece_written(FILE, self.holdings.file_end, [(self.part, start, payloads)])

    def send(self, count: int) -> None:
        """Take the first kept buffers."""
        part, start = self.part, self.part.dropped_before
        end = start + count
        in_file = min(count, max(0, part.memory_from - start))
        in_file_bytes = part.bytes_between(start, start + in_file)
        memory = part.bytes_between(start, end) - in_file_bytes
        self.holdings.sent(part, end, memory, count - in_file, in_file, in_file_bytes)

    @property
    def counted(self) -> tuple[int, int, int]:
        return self.budget.memory, self.budget.disk, self.budget.index

    @property
    def held(self) -> tuple[int, int, int]:
        return self.holdings.memory, self.holdings.disk, self.holdings.index_bytes


@given(st.lists(st.tuples(st.sampled_from(["keep", "spill", "send"]), st.integers(0, 300)), max_size=30))
def test_budget_matches_holdings_after_any_order_of_events(steps: list[tuple[str, int]]) -> None:
    setup = Setup()
    for action, size in steps:
        if action == "keep":
            setup.keep(size)
        elif action == "spill" and setup.part.oldest_in_memory(1)[1]:
            setup.spill(size + 1)
        elif action == "send" and setup.part.kept:
            setup.send(1 + size % len(setup.part.kept))
        setup.holdings.settle()
        assert setup.counted == setup.held
        assert setup.holdings.buffers == len(setup.part.kept)
        assert setup.holdings.live_bytes <= setup.holdings.disk
    setup.holdings.drop_all([setup.part])
    assert setup.counted == setup.held == (0, 0, 0)


def test_sent_buffers_are_given_back_on_settling() -> None:
    setup = Setup()
    setup.keep(100, 200)
    assert setup.holdings.unsent == 300 + 2 * BUFFER_OVERHEAD
    setup.send(1)
    assert (setup.holdings.memory, setup.budget.memory) == (200, 300)
    setup.holdings.settle()
    assert setup.counted == (200, 0, IN_MEMORY_BYTES)
    assert setup.holdings.unsent == 200 + BUFFER_OVERHEAD


def test_retention_keeps_sent_buffers_for_resending() -> None:
    setup = Setup(retains=True)
    setup.keep(100, 200)
    setup.send(2)
    setup.holdings.settle()
    assert setup.counted == (300, 0, 2 * IN_MEMORY_BYTES)
    assert setup.holdings.unsent == 0
    setup.holdings.unsend(setup.part, 2)
    assert setup.holdings.unsent == 300 + 2 * BUFFER_OVERHEAD


def test_file_closes_with_last_buffer_next_begins_empty() -> None:
    setup = Setup()
    setup.keep(100, 200)
    setup.spill()
    assert setup.counted == (0, 300, 2 * IN_FILE_BYTES)
    setup.send(2)
    assert setup.counted == (0, 0, 0)
    assert (setup.holdings.file, setup.holdings.file_end) == (None, 0)


def test_garbage_is_announced_until_the_file_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.shuffle.partition.holdings._GARBAGE_BYTES", 100)
    setup = Setup()
    announced: list[int] = []
    setup.holdings.on_garbage = lambda: announced.append(setup.holdings.live_bytes)
    setup.keep(*[100] * 6)
    setup.spill()
    for _ in range(5):
        setup.send(1)
    assert announced == [200, 100]  # not at 300 of 600: that is not more than half and 100 bytes
    kept = setup.part.kept_in_file()
    assert kept is not None
    setup.holdings.file_rewritten(FILE, 100, [(setup.part, *kept)], [kept[1][:0] + type(kept[1])("q", [0])])
    assert setup.counted == (0, 100, IN_FILE_BYTES)
    assert setup.part.offsets[-1] == 0


def test_an_owner_gets_no_more_than_its_share() -> None:
    setup = Setup(owner_max=300)
    setup.keep(100)
    with pytest.raises(OverQuota, match="owner has 164 bytes"):
        setup.keep(100)
    setup.holdings.keep(setup.part, DataType.END_OF_PARTITION, False, bytes(100), obliged=True)
    assert setup.holdings.buffers == 2
