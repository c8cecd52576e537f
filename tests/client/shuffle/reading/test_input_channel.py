"""The channel table: every pair, and any order of events."""

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.client.shuffle.reading.input_channel import TABLE, ChannelEvent, ChannelState, next_state
from tests.transitions import check_pairs

S, E = ChannelState, ChannelEvent


def expected(state: ChannelState, event: ChannelEvent) -> ChannelState | None:
    """A channel only moves forward, to the event's state; it starts only from WAITING."""
    after = {E.START: S.RUNNING, E.FAIL: S.FAILED, E.RELEASE: S.RELEASED}[event]
    return after if after > state else None


def test_every_pair_does_what_the_event_means() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


class ChannelMachine(RuleBasedStateMachine):
    """Messages, errors and releases in any order, fed as the channels feed them."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.WAITING
        self.has_started = self.has_failed = self.was_released = False

    @precondition(lambda self: self.state is S.WAITING)
    @rule()
    def start(self) -> None:
        self.state = next_state(self.state, E.START)
        self.has_started = True

    @precondition(lambda self: self.state < S.FAILED)
    @rule()
    def fail(self) -> None:
        self.state = next_state(self.state, E.FAIL)
        self.has_failed = True

    @rule()
    def release(self) -> None:
        if not self.was_released:  # a second release is ignored
            self.state = next_state(self.state, E.RELEASE)
            self.was_released = True

    @invariant()
    def state_is_the_last_thing_that_happened(self) -> None:
        assert (self.state is S.RELEASED) == self.was_released
        assert (self.state is S.FAILED) == (self.has_failed and not self.was_released)
        assert (self.state is S.RUNNING) == (self.has_started and not self.has_failed and not self.was_released)


TestChannelMachine = ChannelMachine.TestCase
TestChannelMachine.settings = settings(max_examples=50, stateful_step_count=10)
