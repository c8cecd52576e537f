"""The table of a classic group's states allows what Kafka's own states allow."""

import re

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kafka.groups import classic_states
from broker.kafka.groups.classic_states import TABLE, ClassicGroupEvent, ClassicGroupState, next_state
from tests.transitions import check_pairs

S, E = ClassicGroupState, ClassicGroupEvent

# The valid previous states in Kafka's ClassicGroupState, and how each is reached here.
PREVIOUS = {
    S.EMPTY: {S.PREPARING_REBALANCE},
    S.PREPARING_REBALANCE: {S.STABLE, S.COMPLETING_REBALANCE, S.EMPTY},
    S.COMPLETING_REBALANCE: {S.PREPARING_REBALANCE},
    S.STABLE: {S.COMPLETING_REBALANCE},
    S.DEAD: {S.STABLE, S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.EMPTY, S.DEAD},
}
HAS_MEMBERS_IN_A_GENERATION = {S.COMPLETING_REBALANCE, S.STABLE}


def expected(state: ClassicGroupState, event: ClassicGroupEvent) -> ClassicGroupState | None:
    """The next state by the meaning of the event; None if it cannot happen in that state."""
    if event is E.BROKER_STOPPED:
        return S.DEAD
    if event is E.GROUP_DELETED:
        return S.DEAD if state is S.EMPTY else None
    if event is E.GENERATION_STARTED:
        return S.COMPLETING_REBALANCE if state is S.PREPARING_REBALANCE else None
    if event is E.GENERATION_EMPTY:
        return S.EMPTY if state is S.PREPARING_REBALANCE else None
    if event is E.ASSIGNMENT_SAVED:
        return S.STABLE if state is S.COMPLETING_REBALANCE else None
    if event is E.ASSIGNMENT_FAILED:
        return S.PREPARING_REBALANCE if state is S.COMPLETING_REBALANCE else None
    if event is E.LIMIT_LOWERED:
        return S.PREPARING_REBALANCE if state is S.STABLE else None
    # The rest begins a rebalance: the members of a generation have changed, or an empty group has a first member.
    begins = state in HAS_MEMBERS_IN_A_GENERATION or (state is S.EMPTY and event is E.MEMBER_JOINED)
    return S.PREPARING_REBALANCE if begins else None


def test_every_pair_follows_the_event() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


def test_docstring_explains_every_event() -> None:
    explained = re.findall(r"\b([A-Z_]+)(?=[:,])", classic_states.__doc__ or "")
    assert {event.name for event in ClassicGroupEvent} <= set(explained)


def test_states_follow_each_other_as_in_kafka() -> None:
    assert {state: {before for (before, _), after in TABLE.items() if after is state} for state in S} == PREVIOUS


class StatesMachine(RuleBasedStateMachine):
    """Any order of events, against two facts: there is a generation with members, and its assignment is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.EMPTY
        self.has_generation = False
        self.is_assigned = False
        self.is_rebalancing = False
        self.has_ended = False

    def feed(self, event: ClassicGroupEvent) -> None:
        self.state = next_state(self.state, event)

    @precondition(lambda self: not self.has_ended and not self.is_rebalancing)
    @rule(event=st.sampled_from([E.MEMBER_JOINED, E.MEMBER_CHANGED, E.MEMBER_LEFT, E.SYNC_TIMED_OUT]))
    def a_rebalance_begins(self, event: ClassicGroupEvent) -> None:
        self.feed(event if self.has_generation else E.MEMBER_JOINED)
        self.has_generation = self.is_assigned = False
        self.is_rebalancing = True

    @precondition(lambda self: not self.has_ended and self.is_rebalancing)
    @rule(has_members=st.booleans())
    def joining_ends(self, has_members: bool) -> None:
        self.feed(E.GENERATION_STARTED if has_members else E.GENERATION_EMPTY)
        self.has_generation, self.is_rebalancing = has_members, False

    @precondition(lambda self: not self.has_ended and self.has_generation and not self.is_assigned)
    @rule(saved=st.booleans())
    def the_leader_assigns(self, saved: bool) -> None:
        self.feed(E.ASSIGNMENT_SAVED if saved else E.ASSIGNMENT_FAILED)
        self.is_assigned = self.has_generation = saved
        self.is_rebalancing = not saved

    @precondition(lambda self: self.is_assigned and not self.has_ended)
    @rule()
    def the_limit_is_lowered(self) -> None:
        self.feed(E.LIMIT_LOWERED)
        self.has_generation = self.is_assigned = False
        self.is_rebalancing = True

    @precondition(lambda self: not self.has_generation and not self.is_rebalancing and not self.has_ended)
    @rule()
    def the_group_is_deleted(self) -> None:
        self.feed(E.GROUP_DELETED)
        self.has_ended = True

    @rule()
    def the_broker_stops(self) -> None:
        self.feed(E.BROKER_STOPPED)
        self.has_ended = True

    @invariant()
    def the_state_means_these_facts(self) -> None:
        if self.has_ended:
            assert self.state is S.DEAD
        elif self.is_rebalancing:
            assert self.state is S.PREPARING_REBALANCE
        elif self.has_generation:
            assert self.state is (S.STABLE if self.is_assigned else S.COMPLETING_REBALANCE)
        else:
            assert self.state is S.EMPTY


TestStatesMachine = StatesMachine.TestCase
TestStatesMachine.settings = settings(max_examples=50, stateful_step_count=30)
