"""The table of a writer's connection: every pair, and any order of events."""

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.client.shuffle.writing.broker_link import TABLE, LinkEvent, LinkState, next_state
from tests.transitions import check_pairs

S, E = LinkState, LinkEvent
WITH_HANDLE = {S.OPEN, S.FINISH_SENT, S.PARTING, S.PARTING_SENT, S.PARTED}

# The path of an undisturbed connection, and the three ways to leave it.
FORWARD = {
    E.CONNECT: (S.UNCONNECTED, S.CONNECTING),
    E.CONNECTED: (S.CONNECTING, S.OPENING),
    E.OPENED: (S.OPENING, S.OPEN),
    E.SEND_FINISH: (S.OPEN, S.FINISH_SENT),
    E.SEND_PARTING: (S.PARTING, S.PARTING_SENT),
    E.DRAINED: (S.PARTING_SENT, S.PARTED),
    E.OPEN_AGAIN: (S.OPEN, S.OPENING),
}


def expected(state: LinkState, event: LinkEvent) -> LinkState | None:
    if event in FORWARD:
        before, after = FORWARD[event]
        return after if state is before else None
    if event is E.PART:
        return S.PARTING if state in (S.OPEN, S.FINISH_SENT) else None
    if event is E.READERS_LEFT:
        return S.VOID if state is S.OPENING or state in WITH_HANDLE else None
    assert event is E.LOST
    return S.UNCONNECTED if state is not S.UNCONNECTED else None


def test_every_pair_does_what_the_event_means() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


def test_order_of_states_matches_the_comparisons() -> None:
    assert {state for state in S if S.OPEN <= state <= S.PARTED} == WITH_HANDLE
    assert {state for state in S if state >= S.PARTING} == {S.PARTING, S.PARTING_SENT, S.PARTED}


class LinkMachine(RuleBasedStateMachine):
    """Successive connections, against a model in booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.UNCONNECTED
        self.forget()

    def forget(self) -> None:
        self.dialled = self.connected = self.handle = self.readers_left = False
        self.finish_sent = self.parting = self.parting_sent = self.parted = False

    def feed(self, event: LinkEvent) -> None:
        self.state = next_state(self.state, event)

    @precondition(lambda self: not self.dialled)
    @rule()
    def connect(self) -> None:
        self.feed(E.CONNECT)
        self.dialled = True

    @precondition(lambda self: self.dialled and not self.connected)
    @rule()
    def connect_succeeds(self) -> None:
        self.feed(E.CONNECTED)
        self.connected = True

    @precondition(lambda self: self.connected and not self.handle and not self.readers_left)
    @rule()
    def broker_opens(self) -> None:
        self.feed(E.OPENED)
        self.handle = True

    @precondition(lambda self: self.handle and not self.finish_sent and not self.parting)
    @rule()
    def open_again(self) -> None:
        self.feed(E.OPEN_AGAIN)
        self.handle = False

    @precondition(lambda self: self.handle and not self.finish_sent and not self.parting)
    @rule()
    def finish(self) -> None:
        self.feed(E.SEND_FINISH)
        self.finish_sent = True

    @precondition(lambda self: self.handle and not self.parting)
    @rule()
    def part(self) -> None:
        self.feed(E.PART)
        self.parting = True

    @precondition(lambda self: self.handle and self.parting and not self.parting_sent)
    @rule()
    def send_parting(self) -> None:
        self.feed(E.SEND_PARTING)
        self.parting_sent = True

    @precondition(lambda self: self.handle and self.parting_sent and not self.parted)
    @rule()
    def drain(self) -> None:
        self.feed(E.DRAINED)
        self.parted = True

    @precondition(lambda self: self.connected and not self.readers_left)
    @rule()
    def readers_leave(self) -> None:
        self.feed(E.READERS_LEFT)
        self.readers_left, self.handle = True, False

    @precondition(lambda self: self.dialled)
    @rule()
    def lose(self) -> None:
        self.feed(E.LOST)
        self.forget()

    @invariant()
    def state_means_all_of_it(self) -> None:
        assert (self.state is not S.UNCONNECTED) == self.dialled
        assert (self.state in WITH_HANDLE) == self.handle
        assert (self.state is S.VOID) == self.readers_left
        if self.handle:
            assert (self.state is S.OPEN) == (not self.finish_sent and not self.parting)
            assert (self.state is S.PARTED) == self.parted
            assert (self.state in (S.PARTING, S.PARTING_SENT)) == (self.parting and not self.parted)


TestLinkMachine = LinkMachine.TestCase
TestLinkMachine.settings = settings(max_examples=100, stateful_step_count=20)
