"""The table of a subpartition's reader against four facts: whether it has one, lost one, has dropped buffers, can be read."""

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.shuffle.partition.reading_state import TABLE, ReadingEvent, ReadingState, next_state
from broker.shuffle.partition.subpartition import Subpartition
from protocol.shuffle.data_type import DataType
from tests.transitions import check_pairs

S, E = ReadingState, ReadingEvent

HAS_READER = {S.READING, S.CONSUMING}
CLAIMABLE = {S.UNREAD, S.LOST, S.LOST_AT_END}
WAITING = {S.LOST, S.LOST_AT_END}


def expected(state: ReadingState, event: ReadingEvent) -> ReadingState | None:
    """None where the event cannot happen."""
    match event:
        case E.READER_CAME:
            return S.READING if state in CLAIMABLE else None
        case E.BUFFERS_DROPPED:
            return S.CONSUMING if state is S.READING else None
        case E.READER_LEFT:
            return None if state is S.ABANDONED else S.ABANDONED
        case E.READER_LOST:  # nothing is dropped where readers may start over
            return None if state in (S.CONSUMING, S.ABANDONED) else S.LOST
        case E.READER_LOST_AT_END:
            return S.LOST_AT_END if state is S.READING else None
        case E.WAIT_ENDED:
            return S.ABANDONED if state in WAITING else None


def test_every_pair_does_what_the_event_means() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


class Reader:
    def buffers_added(self, cursor: object, data: int) -> bool:
        return False

    def notify(self) -> None:
        pass


class ReadingMachine(RuleBasedStateMachine):
    """A subpartition of a pipelined partition, with a retention (nothing is dropped before it is read) or without."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Subpartition()
        self.retains: bool | None = None  # known when the first reader has come
        self.has_reader = self.lost = self.dropped = self.abandoned = False

    @rule()
    def a_reader_comes(self) -> None:
        if not self.part.claimable:
            assert self.has_reader or self.abandoned
            return
        self.part.claim(Reader(), 0)
        self.has_reader, self.lost = True, False

    @precondition(lambda self: self.has_reader and not self.dropped and self.retains is not True)
    @rule()
    def what_was_sent_is_dropped(self) -> None:
        self.part.note(E.BUFFERS_DROPPED)
        self.dropped, self.retains = True, False

    @precondition(lambda self: not self.abandoned)
    @rule()
    def the_reader_leaves(self) -> None:
        """It has claimed it, or was going to."""
        self.part.note(E.READER_LEFT)
        self.has_reader, self.lost, self.abandoned = False, False, True

    @precondition(lambda self: not self.abandoned and self.retains is not False)
    @rule()
    def the_reader_is_lost(self) -> None:
        self.part.note(E.READER_LOST)
        self.has_reader, self.lost, self.retains = False, True, True

    @precondition(lambda self: self.has_reader and self.retains is not False)
    @rule()
    def the_reader_is_lost_when_it_had_everything(self) -> None:
        self.part.note(E.READER_LOST_AT_END)
        assert self.part.sent_all
        self.has_reader, self.lost, self.retains = False, True, True

    @precondition(lambda self: self.lost)
    @rule()
    def nobody_comes_in_its_place(self) -> None:
        self.part.note(E.WAIT_ENDED)
        self.lost, self.abandoned = False, True

    @precondition(lambda self: self.abandoned)
    @rule()
    def a_buffer_is_pushed_to_nobody(self) -> None:
        before = self.part.next_sequence
        self.part.pass_over(DataType.DATA_BUFFER)
        assert self.part.next_sequence == before + 1
        assert list(self.part.kept) == []

    @invariant()
    def the_state_says_all_of_it(self) -> None:
        part = self.part
        assert (part.cursor is not None) == self.has_reader == (part.reading in HAS_READER)
        assert part.waits_for_reader == self.lost
        assert part.abandoned == self.abandoned
        assert part.claimable == (not self.has_reader and not self.abandoned)
        assert (part.reading is S.CONSUMING) == (self.has_reader and self.dropped)


TestReadingMachine = ReadingMachine.TestCase
TestReadingMachine.settings = settings(max_examples=60, stateful_step_count=20)
