"""Buffers by their numbers, in memory or file, against a plain list: any order of adding, spilling and dropping."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.shuffle.partition.subpartition import Stored, Subpartition
from protocol.shuffle.data_type import IS_BUFFER, DataType

TYPES = [kind for kind in DataType if kind is not DataType.NONE]


class SubpartitionModel(RuleBasedStateMachine):
    """``all``: every buffer ever added, with its offset in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Subpartition()
        self.all: list[tuple[DataType, bool, bytes, int]] = []  # -1: in memory
        self.dropped = 0  # earlier buffers were dropped
        self.file = b""
        self.writing: tuple[int, list[bytes]] | None = None

    @rule(
        buffers=st.lists(st.tuples(st.sampled_from(TYPES), st.booleans(), st.binary(max_size=9)), max_size=70),
    )
    def come(self, buffers: list[tuple[DataType, bool, bytes]]) -> None:
        for data_type, compressed, payload in buffers:
            self.part.append(data_type, compressed, payload)
            self.all.append((data_type, compressed, payload, -1))

    @precondition(lambda self: self.writing is None)
    @rule(most=st.integers(1, 300))
    def begin_to_spill(self, most: int) -> None:
        start, payloads = self.part.oldest_in_memory(most)
        in_memory = [n for n, buffer in enumerate(self.all) if n >= self.dropped and buffer[3] < 0]
        if in_memory:
            assert (start, payloads[0]) == (in_memory[0], self.all[in_memory[0]][2])
            assert sum(map(len, payloads[:-1])) < most
            self.writing = start, payloads
        else:
            assert payloads == []

    @precondition(lambda self: self.writing is not None)
    @rule()
    def are_spilled(self) -> None:
        assert self.writing is not None
        (start, payloads), self.writing = self.writing, None
        offset = len(self.file)
        kept = [payload for number, payload in enumerate(payloads, start) if number >= self.dropped]
        assert (len(kept), sum(map(len, kept))) == self.part.spilled(start, payloads, offset)
        for number, payload in enumerate(payloads, start):
            self.all[number] = (*self.all[number][:3], offset + len(b"".join(payloads[: number - start])))
            assert payload == self.all[number][2]
        self.file += b"".join(payloads)

    @precondition(lambda self: self.dropped < len(self.all))
    @rule(data=st.data())
    def are_dropped(self, data: st.DataObject) -> None:
        self.dropped = data.draw(st.integers(self.dropped + 1, len(self.all)))
        self.part.drop_before(self.dropped)

    @rule()
    def are_forgotten(self) -> None:
        self.part.clear()
        self.dropped = len(self.all)

    @precondition(lambda self: self.dropped == len(self.all))
    @rule(data_type=st.sampled_from(TYPES))
    def is_not_kept(self, data_type: DataType) -> None:
        self.part.clear()
        self.part.pass_over(data_type)
        self.all.append((data_type, False, b"", -1))
        self.dropped = len(self.all)

    @invariant()
    def all_that_was_not_dropped_is_there(self) -> None:
        part = self.part
        assert range(self.dropped, len(self.all)) == part.kept
        assert part.next_sequence == len(self.all)
        for number in range(self.dropped, len(self.all)):
            data_type, compressed, payload, offset = self.all[number]
            expected = Stored(data_type, compressed, payload if offset < 0 else offset, len(payload))
            assert expected == part.at(number)
        assert part.at(len(self.all)) is None
        middle = (self.dropped + len(self.all)) // 2
        for start, end in ((self.dropped, middle), (middle, len(self.all)), (self.dropped, len(self.all))):
            assert sum(len(buffer[2]) for buffer in self.all[start:end]) == part.bytes_between(start, end)

    @invariant()
    def it_knows_what_has_come(self) -> None:
        types = [buffer[0] for buffer in self.all]
        assert sum(IS_BUFFER[data_type] for data_type in types) == self.part.data_total
        assert (DataType.END_OF_DATA in types, DataType.END_OF_PARTITION in types) == (
            self.part.data_ended,
            self.part.ended,
        )

    @invariant()
    def what_was_dropped_takes_no_room_for_long(self) -> None:
        kept = len(self.all) - self.dropped
        assert len(self.part.kinds) <= max(64 + kept, 2 * kept)
        assert sum(payload is not None for payload in self.part.payloads) <= kept


TestSubpartition = SubpartitionModel.TestCase


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_a_spilled_buffer_leaves_no_object_behind(count: int) -> None:
    part = Subpartition()
    for _ in range(count):
        part.append(DataType.DATA_BUFFER, False, b"payload")
    part.spilled(*part.oldest_in_memory(1 << 30), 0)
    assert part.payloads == []
    assert (
        len(part.kinds) + part.offsets.itemsize * len(part.offsets) + part.sizes.itemsize * len(part.sizes)
        == 13 * count
    )
