"""The table of holds against its own docstring, against sets, and against Kafka's table of channel mute states."""

import itertools
import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.network import mute
from broker.network.mute import TABLE, Hold, MuteEvent, MuteState, mute_state, next_holds
from tests.loops import loop_over

S, E = MuteState, MuteEvent

# Kafka's SocketServer.ChannelMuteState, with the events that it has.
KAFKA = {
    (S.NOT_MUTED, E.REQUEST_RECEIVED): S.MUTED_AND_RESPONSE_PENDING,
    (S.NOT_MUTED, E.THROTTLE_STARTED): S.MUTED_AND_THROTTLED,
    (S.MUTED, E.REQUEST_RECEIVED): S.MUTED_AND_RESPONSE_PENDING,
    (S.MUTED, E.THROTTLE_STARTED): S.MUTED_AND_THROTTLED,
    (S.MUTED_AND_RESPONSE_PENDING, E.RESPONSE_SENT): S.MUTED,
    (S.MUTED_AND_RESPONSE_PENDING, E.THROTTLE_STARTED): S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
    (S.MUTED_AND_THROTTLED, E.THROTTLE_ENDED): S.MUTED,
    (S.MUTED_AND_THROTTLED, E.REQUEST_RECEIVED): S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
    (S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, E.RESPONSE_SENT): S.MUTED_AND_THROTTLED,
    (S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, E.THROTTLE_ENDED): S.MUTED_AND_RESPONSE_PENDING,
}
KAFKAS_EVENTS = (E.REQUEST_RECEIVED, E.RESPONSE_SENT, E.THROTTLE_STARTED, E.THROTTLE_ENDED)
MEANS = {
    S.NOT_MUTED: Hold(0),
    S.MUTED: Hold(0),
    S.MUTED_AND_RESPONSE_PENDING: Hold.RESPONSE_PENDING,
    S.MUTED_AND_THROTTLED: Hold.THROTTLED,
    S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING: Hold.THROTTLED | Hold.RESPONSE_PENDING,
}
OTHERS = [hold for hold in Hold if hold not in (Hold.RESPONSE_PENDING, Hold.RESPONSE_UNSENT, Hold.THROTTLED)]


def expected(holds: frozenset[Hold], event: MuteEvent) -> frozenset[Hold] | None:
    """What the rows of the table say, in sets; None where the event cannot happen."""
    after = holds | {hold for hold, (set_by, _) in TABLE.items() if set_by is event}
    after -= {hold for hold, (_, cleared_by) in TABLE.items() if cleared_by is event}
    return None if after == holds else after


def bits(holds: frozenset[Hold]) -> int:
    return sum(int(hold) for hold in holds)


SETS = [frozenset(some) for count in range(len(Hold) + 1) for some in itertools.combinations(Hold, count)]


@pytest.mark.parametrize("event", MuteEvent)
def test_every_pair_of_holds_and_event_follows_table(event: MuteEvent) -> None:
    for holds in SETS:
        after = expected(holds, event)
        if after is None:
            with pytest.raises(AssertionError, match=f"{event.name} in state {mute_state(bits(holds)).name}"):
                next_holds(bits(holds), event)
        else:
            assert next_holds(bits(holds), event) == bits(after)


@loop_over("state", MuteState)
@loop_over("event", KAFKAS_EVENTS)
@loop_over("other", [Hold(0), *OTHERS])
def test_kafkas_states_follow_kafkas_table(state: MuteState, event: MuteEvent, other: Hold) -> None:
    if (state is S.MUTED) != bool(other) and state in (S.NOT_MUTED, S.MUTED):
        return
    holds = int(MEANS[state] | other)
    assert mute_state(holds) is state
    after = KAFKA.get((state, event))
    if after is None:
        with pytest.raises(AssertionError, match=f"{event.name} in state {state.name}"):
            next_holds(holds, event)
    elif after is S.MUTED and not other:  # Kafka unmutes a channel that nothing else holds in the same step
        assert mute_state(next_holds(holds, event)) is S.NOT_MUTED
    else:
        assert mute_state(next_holds(holds, event)) is after


def test_the_table_in_the_docstring_is_the_table() -> None:
    lines = [
        line.split(" | ") for line in (mute.__doc__ or "").splitlines() if re.match(r"\| [A-Z_]+ \| [A-Z_]+, ", line)
    ]
    drawn = {}
    for hold, set_by, cleared_by, _ in lines:
        events = [None if cell == "never" else E[cell.split(",")[0]] for cell in (set_by, cleared_by)]
        drawn[Hold[hold.strip("| ")]] = tuple(events)
    assert drawn == TABLE
    assert list(drawn) == list(Hold)


def test_kafka_states_in_docstring_match_the_function() -> None:
    drawn = re.findall(r"^\| (yes|no) \| (yes|no) \| (yes|no|any) \| ([A-Z_]+) \|$", mute.__doc__ or "", re.MULTILINE)
    assert [S[state] for *_, state in drawn] == list(S)
    for pending, throttled, others, state in drawn:
        holds = Hold.RESPONSE_PENDING * (pending == "yes") | Hold.THROTTLED * (throttled == "yes")
        for other in [Hold(0)] * (others != "yes") + OTHERS * (others != "no"):
            assert mute_state(int(holds | other)) is S[state]


def test_the_plain_ints_are_the_bits() -> None:
    for hold in Hold:
        assert getattr(mute, hold.name or "", int(hold)) == int(hold)
        assert type(getattr(mute, hold.name or "", 0)) is int


class HoldsMachine(RuleBasedStateMachine):
    """Any order of events, against a set."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = 0
        self.model: frozenset[Hold] = frozenset()

    @rule(event=st.sampled_from(MuteEvent))
    def feed(self, event: MuteEvent) -> None:
        after = expected(self.model, event)
        if after is None:
            with pytest.raises(AssertionError):
                next_holds(self.holds, event)
        else:
            self.holds, self.model = next_holds(self.holds, event), after

    @invariant()
    def bits_are_the_set(self) -> None:
        assert self.holds == bits(self.model)

    @invariant()
    def receptive_is_kafkas_not_muted(self) -> None:
        assert (self.holds == 0) == (mute_state(self.holds) is S.NOT_MUTED)


TestHoldsMachine = HoldsMachine.TestCase
TestHoldsMachine.settings = settings(max_examples=50, stateful_step_count=30)
