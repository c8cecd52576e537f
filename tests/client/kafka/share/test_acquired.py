"""The states of acquired records against their table and against a dictionary."""

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.client.kafka.share.acquired import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    TABLE,
    AcquiredRange,
    RecordEvent,
    RecordState,
)
from tests.loops import loop_over

S, E = RecordState, RecordEvent
FIRST, LAST = 100, 107


def make(states: dict[int, RecordState] | None = None) -> AcquiredRange:
    made = AcquiredRange("jobs", (UUID(int=1), 0), FIRST, LAST, 1, 10.0)
    for offset, state in (states or {}).items():
        made.states[offset - FIRST] = state
    return made


def test_only_sent_and_settled_records_cannot_be_lost() -> None:
    unsent = {state for state in S if state is not S.SETTLED and not state.name.startswith("SENT")}
    assert {state for state, event in TABLE if event is E.LOSE} == unsent


def feed(made: AcquiredRange, event: RecordEvent) -> None:
    match event:
        case E.DELIVER:
            made.deliver(FIRST)
        case E.ACCEPT | E.RELEASE | E.REJECT:
            made.decide(FIRST, int(event))
        case E.SEND:
            made.send()
        case E.SETTLE:
            made.settle()
        case E.LOSE:
            made.lose(FIRST, FIRST)


@loop_over("state", RecordState)
@loop_over("event", RecordEvent)
def test_each_state_and_event_follows_the_table(state: RecordState, event: RecordEvent) -> None:
    made = make({FIRST: state, FIRST + 1: S.SETTLED})
    if (state, event) == (S.BUFFERED, E.RELEASE):  # not a decision of the user
        made.release_held()
    else:
        feed(made, event)
    assert made.state(FIRST) is TABLE.get((state, event), state)
    assert made.state(FIRST + 1) is S.SETTLED


@pytest.mark.parametrize("state", RecordState)
def test_user_is_told_of_late_decision(state: RecordState) -> None:
    made = make({FIRST: state})
    assert made.decide(FIRST, ACCEPT) is ((state, E.ACCEPT) in TABLE)


def test_equal_decisions_take_one_byte_for_all() -> None:
    made = make()
    for offset in made:
        made.received(offset)
        assert made.deliver(offset)
    made.accept_delivered()
    assert made.send() == [(FIRST, LAST, bytes([ACCEPT]))]
    assert made.settle() == [(FIRST, LAST, bytes([ACCEPT]))]
    assert made.is_settled

    made = make()
    made.received(FIRST)
    made.deliver(FIRST)
    made.decide(FIRST, REJECT)
    made.received(FIRST + 3)
    assert made.send() == [(FIRST, FIRST + 2, bytes([REJECT, 0, 0])), (FIRST + 4, LAST, bytes([0]))]
    assert made.send() == []


def test_renewals_by_name_need_delivery_others_need_holding() -> None:
    made = make(dict.fromkeys(range(FIRST, LAST + 1), S.DELIVERED))
    made.states[2] = S.BUFFERED
    made.states[5] = S.PENDING_ACCEPT
    assert made.ask_renewal(FIRST)
    assert not made.ask_renewal(FIRST + 2)
    assert made.ask_renewal(FIRST + 1)
    made.decide(FIRST + 1, ACCEPT)  # meanwhile
    assert made.renewals(everything=False) == [(FIRST, FIRST, bytes([RENEW]))]
    assert made.renewals(everything=False) == []
    assert made.renewals(everything=True) == [
        (FIRST, FIRST, bytes([RENEW])),
        (FIRST + 2, FIRST + 4, bytes([RENEW])),
        (FIRST + 6, LAST, bytes([RENEW])),
    ]


class AcquiredMachine(RuleBasedStateMachine):
    """Any order of events, each record on its own in a dictionary."""

    @initialize(found=st.sets(st.integers(FIRST, LAST)))
    def begin(self, found: set[int]) -> None:
        self.made = make()
        self.expected = dict.fromkeys(range(FIRST, LAST + 1), S.PENDING_GAP)
        self.acknowledged: dict[int, list[int]] = {}
        for offset in found:
            self.made.received(offset)
            self.expected[offset] = S.BUFFERED

    def feed(self, offset: int, event: RecordEvent) -> None:
        state = self.expected[offset]
        self.expected[offset] = TABLE.get((state, event), state)

    @rule(offset=st.integers(FIRST, LAST))
    def deliver(self, offset: int) -> None:
        assert self.made.deliver(offset) is (self.expected[offset] is S.BUFFERED)
        self.feed(offset, E.DELIVER)

    @rule(offset=st.integers(FIRST, LAST), decision=st.sampled_from([ACCEPT, RELEASE, REJECT]))
    def decide(self, offset: int, decision: int) -> None:
        possible = self.expected[offset] is not S.BUFFERED and (self.expected[offset], E(decision)) in TABLE
        assert self.made.decide(offset, decision) is possible
        if possible:
            self.feed(offset, E(decision))

    @rule()
    def accept_delivered(self) -> None:
        self.made.accept_delivered()
        for offset, state in self.expected.items():
            if state is S.DELIVERED:
                self.feed(offset, E.ACCEPT)

    @rule()
    def release_held(self) -> None:
        self.made.release_held()
        for offset, state in self.expected.items():
            if state in (S.BUFFERED, S.DELIVERED):
                self.feed(offset, E.RELEASE)

    @rule(first=st.integers(FIRST - 3, LAST + 3), count=st.integers(0, 12))
    def lose(self, first: int, count: int) -> None:
        self.made.lose(first, first + count - 1)
        for offset in set(self.expected) & set(range(first, first + count)):
            self.feed(offset, E.LOSE)

    @rule()
    def send(self) -> None:
        sent = dict(self.types(self.made.send()))
        assert sent == {offset: int(state) for offset, state in self.expected.items() if state <= REJECT}
        for offset in sent:
            self.feed(offset, E.SEND)

    @rule()
    def settle(self) -> None:
        settled = dict(self.types(self.made.settle()))
        assert settled == {o: state & 0x0F for o, state in self.expected.items() if state.name.startswith("SENT")}
        for offset in settled:
            self.feed(offset, E.SETTLE)

    @staticmethod
    def types(batches: list[tuple[int, int, bytes]]) -> list[tuple[int, int]]:
        flat = []
        for first, last, types in batches:
            assert len(types) in (1, last - first + 1)
            flat += [
                (offset, types[0] if len(types) == 1 else types[offset - first]) for offset in range(first, last + 1)
            ]
        assert len(dict(flat)) == len(flat)
        return flat

    @invariant()
    def every_record_is_in_the_state_of_its_own(self) -> None:
        if hasattr(self, "expected"):
            assert {offset: self.made.state(offset) for offset in self.made} == self.expected
            states = set(self.expected.values())
            assert self.made.has_pending is any(state <= REJECT for state in states)
            assert self.made.has_held is bool(states & {S.BUFFERED, S.DELIVERED})
            assert self.made.is_settled is (states == {S.SETTLED})


TestAcquiredMachine = AcquiredMachine.TestCase
TestAcquiredMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
