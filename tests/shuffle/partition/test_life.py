"""The table of a partition's life against the facts: pushed, stored, failed, and how it was released."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.shuffle.partition.life import TABLE, WIRE_STATE, LifeEvent, LifeState, next_state
from protocol.shuffle.writer_frames import PartitionState
from tests.transitions import check_pairs

S, E = LifeState, LifeEvent

ENDINGS = {E.RELEASE_REQUESTED: S.RELEASED, E.READERS_LEFT: S.CANCELLED, E.READ_TO_END: S.CONSUMED}


def expected(state: LifeState, event: LifeEvent) -> LifeState | None:
    """None where the event cannot happen."""
    if state in ENDINGS.values():
        return None  # released once, and for good
    if event in ENDINGS:
        return ENDINGS[event]
    if event is E.PRODUCER_FAILED:
        return None if state is S.FAILED else S.FAILED
    if event is E.STORED:
        return S.FINISHED if state in (S.OPEN, S.FINISHING) else None
    return S.FINISHING if state is S.OPEN else None


def test_every_pair_does_what_the_event_means() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


def test_every_state_has_a_writer_protocol_name() -> None:
    assert [PartitionState.OPEN, PartitionState.OPEN, PartitionState.FINISHED, PartitionState.FAILED] == WIRE_STATE[:4]
    assert [PartitionState.RELEASED] * 3 == WIRE_STATE[4:]
    assert len(LifeState) == len(WIRE_STATE)


class LifeMachine(RuleBasedStateMachine):
    """Any order of actions of a writer, the disk and the readers, against the facts that follow."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.OPEN
        self.finish_requested = self.stored = self.failed = False
        self.ended: LifeState | None = None

    def note(self, event: LifeEvent) -> None:
        self.state = next_state(self.state, event)

    @precondition(lambda self: not (self.finish_requested or self.stored or self.failed or self.ended))
    @rule()
    def a_writer_asks_to_finish(self) -> None:
        self.note(E.FINISH_REQUESTED)
        self.finish_requested = True

    @precondition(lambda self: not (self.stored or self.failed or self.ended))
    @rule()
    def it_is_stored(self) -> None:
        self.note(E.STORED)
        self.stored = True

    @precondition(lambda self: not (self.failed or self.ended))
    @rule()
    def its_producer_fails(self) -> None:
        self.note(E.PRODUCER_FAILED)
        self.failed = True

    @precondition(lambda self: self.ended is None)
    @rule()
    def it_is_released(self) -> None:
        self.note(E.RELEASE_REQUESTED)
        self.ended = S.RELEASED

    @precondition(lambda self: self.ended is None)
    @rule()
    def its_readers_leave(self) -> None:
        self.note(E.READERS_LEFT)
        self.ended = S.CANCELLED

    @precondition(lambda self: self.ended is None)
    @rule()
    def it_is_read_to_the_end(self) -> None:
        self.note(E.READ_TO_END)
        self.ended = S.CONSUMED

    @precondition(lambda self: self.ended is not None)
    @rule(event=st.sampled_from(LifeEvent))
    def nothing_else_can_happen(self, event: LifeEvent) -> None:
        with pytest.raises(AssertionError, match=event.name):
            self.note(event)

    @invariant()
    def the_state_says_all_of_it(self) -> None:
        if self.ended is not None:
            assert self.state is self.ended
        elif self.failed:
            assert self.state is S.FAILED
        elif self.stored:
            assert self.state is S.FINISHED
        else:
            assert self.state is (S.FINISHING if self.finish_requested else S.OPEN)


TestLifeMachine = LifeMachine.TestCase
TestLifeMachine.settings = settings(max_examples=50, stateful_step_count=10)
