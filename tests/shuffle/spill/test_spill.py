"""The table of a spill against the spiller's requests and actions."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.shuffle.spill.spill import TABLE, SpillEvent, SpillState, next_state
from tests.transitions import check_pairs

S, E = SpillState, SpillEvent

# Events that happen once, in one state, and their next state.
_ONLY = {
    E.GARBAGE_FOUND: (S.IDLE, S.UNTIDY),
    E.FILE_REWRITTEN: (S.UNTIDY, S.IDLE),
    E.REWRITE_FAILED: (S.UNTIDY, S.LEFT_UNTIDY),
    E.PIECE_WRITTEN: (S.LEFT_UNTIDY, S.IDLE),
    E.FINISH_ASKED: (S.IDLE, S.FINISHING),
    E.STORE_DONE: (S.FINISHING, S.STORED),
    E.STORE_FAILED: (S.FINISHING, S.NOT_STORED),
    E.FILES_REMOVED: (S.RELEASED, S.REMOVED),
}


def expected(state: SpillState, event: SpillEvent) -> SpillState | None:
    """None where the event cannot happen."""
    if event is E.REMOVE_ASKED:  # at any moment, and once
        return None if state in (S.RELEASED, S.REMOVED) else S.RELEASED
    before, after = _ONLY[event]
    return after if state is before else None


def test_every_pair_does_what_the_event_means() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


class SpillMachine(RuleBasedStateMachine):
    """Any order of requests and of the spiller's actions, for a pipelined or blocking partition."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.IDLE
        self.untidy = self.refused = False  # queued to be rewritten; the disk has refused that
        self.finish: bool | None = None  # asked for (False), and answered (True)
        self.removal: bool | None = None

    def note(self, event: SpillEvent) -> None:
        self.state = next_state(self.state, event)

    @property
    def pipelined(self) -> bool:
        return self.finish is None and self.removal is None

    @precondition(lambda self: self.pipelined and not self.untidy and not self.refused)
    @rule()
    def garbage_is_found(self) -> None:
        self.note(E.GARBAGE_FOUND)
        self.untidy = True

    @precondition(lambda self: self.untidy and self.removal is None)
    @rule()
    def the_file_is_rewritten(self) -> None:
        self.note(E.FILE_REWRITTEN)
        self.untidy = False

    @precondition(lambda self: self.untidy and self.removal is None)
    @rule()
    def the_disk_refuses_to_rewrite_it(self) -> None:
        self.note(E.REWRITE_FAILED)
        self.untidy, self.refused = False, True

    @precondition(lambda self: self.refused and self.removal is None)
    @rule()
    def a_piece_is_written(self) -> None:
        self.note(E.PIECE_WRITTEN)
        self.refused = False

    @precondition(lambda self: self.pipelined and not self.untidy and not self.refused)
    @rule()
    def it_is_to_be_finished(self) -> None:
        self.note(E.FINISH_ASKED)
        self.finish = False

    @precondition(lambda self: self.finish is False and self.removal is None)
    @rule()
    def it_is_stored(self) -> None:
        self.note(E.STORE_DONE)
        self.finish = True

    @precondition(lambda self: self.finish is False and self.removal is None)
    @rule()
    def the_disk_refuses_to_store_it(self) -> None:
        self.note(E.STORE_FAILED)
        self.finish = True

    @precondition(lambda self: self.removal is None)
    @rule()
    def it_is_released(self) -> None:
        self.note(E.REMOVE_ASKED)
        self.removal = False

    @precondition(lambda self: self.removal is False)
    @rule()
    def its_files_are_removed(self) -> None:
        self.note(E.FILES_REMOVED)
        self.removal = True

    @precondition(lambda self: self.removal)
    @rule(event=st.sampled_from(SpillEvent))
    def nothing_else_can_happen(self, event: SpillEvent) -> None:
        with pytest.raises(AssertionError, match=event.name):
            self.note(event)

    @invariant()
    def the_state_says_all_of_it(self) -> None:
        if self.removal is not None:
            assert self.state is (S.REMOVED if self.removal else S.RELEASED)
        elif self.finish is not None:
            assert self.state in ((S.STORED, S.NOT_STORED) if self.finish else (S.FINISHING,))
        else:
            assert (self.state is S.UNTIDY, self.state is S.LEFT_UNTIDY) == (self.untidy, self.refused)


TestSpillMachine = SpillMachine.TestCase
TestSpillMachine.settings = settings(max_examples=60, stateful_step_count=12)
