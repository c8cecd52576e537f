"""The mute table against two booleans, which is all it means."""

import re

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.network import mute
from broker.network.mute import TABLE, MuteEvent, MuteState, next_state

S, E = MuteState, MuteEvent


def means(state: MuteState) -> tuple[bool, bool]:
    """(a response is pending, a quota throttles)."""
    return {
        S.NOT_MUTED: (False, False),
        S.MUTED: (False, False),
        S.MUTED_AND_RESPONSE_PENDING: (True, False),
        S.MUTED_AND_THROTTLED: (False, True),
        S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING: (True, True),
    }[state]


def expected(state: MuteState, event: MuteEvent) -> MuteState | None:
    """What the two booleans say; None where the event cannot happen."""
    pending, throttled = means(state)
    if event is E.REQUEST_RECEIVED and not pending:
        pending = True
    elif event is E.RESPONSE_SENT and pending:
        pending = False
    elif event is E.THROTTLE_STARTED and not throttled:
        throttled = True
    elif event is E.THROTTLE_ENDED and throttled:
        throttled = False
    else:
        return None
    return next(s for s in MuteState if s is not S.NOT_MUTED and means(s) == (pending, throttled))


@pytest.mark.parametrize("state", MuteState)
@pytest.mark.parametrize("event", MuteEvent)
def test_every_pair_of_state_and_event_does_what_pending_and_throttled_say(state: MuteState, event: MuteEvent) -> None:
    after = expected(state, event)
    assert TABLE.get((state, event)) == after
    if after is None:
        with pytest.raises(AssertionError, match=f"{event.name} in state {state.name}"):
            next_state(state, event)
    else:
        assert next_state(state, event) is after


def test_the_table_in_the_docstring_is_the_table() -> None:
    rows = re.findall(r"^([A-Z_]+) +([A-Z_]+) +([A-Z_]+)$", mute.__doc__ or "", re.MULTILINE)
    assert {(S[state], E[event]): S[after] for state, event, after in rows} == TABLE


class MuteMachine(RuleBasedStateMachine):
    """Any order of requests, responses and throttles."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.NOT_MUTED
        self.pending = False
        self.throttled = False

    def feed(self, event: MuteEvent) -> None:
        self.state = next_state(self.state, event)

    @precondition(lambda self: not self.pending)
    @rule()
    def request(self) -> None:
        self.feed(E.REQUEST_RECEIVED)
        self.pending = True

    @precondition(lambda self: self.pending)
    @rule()
    def response(self) -> None:
        self.feed(E.RESPONSE_SENT)
        self.pending = False

    @precondition(lambda self: not self.throttled)
    @rule()
    def throttle(self) -> None:
        self.feed(E.THROTTLE_STARTED)
        self.throttled = True

    @precondition(lambda self: self.throttled)
    @rule()
    def end_of_throttle(self) -> None:
        self.feed(E.THROTTLE_ENDED)
        self.throttled = False

    @precondition(lambda self: self.state is S.MUTED)
    @rule()
    def unmute(self) -> None:
        self.state = S.NOT_MUTED

    @invariant()
    def state_means_both(self) -> None:
        assert means(self.state) == (self.pending, self.throttled)


TestMuteMachine = MuteMachine.TestCase
TestMuteMachine.settings = settings(max_examples=50, stateful_step_count=30)
