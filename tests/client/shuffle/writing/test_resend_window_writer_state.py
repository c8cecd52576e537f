"""The writer's table: every pair, and any order of events."""

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.client.shuffle.writing.resend_window import TABLE, WriterEvent, WriterState, next_state
from tests.transitions import check_pairs

S, E = WriterState, WriterEvent
STARTED = {S.WRITING, S.FINISHING, S.COMMITTING, S.DISCARDING}
FINISHING = {S.FINISHING, S.COMMITTING}


def expected(state: WriterState, event: WriterEvent) -> WriterState | None:
    """The effect of each event; None if it cannot happen."""
    match event:
        case E.START:
            return S.WRITING if state is S.NEW else None
        case E.FINISH if state is S.DISCARDING:  # without readers there is nothing to wait for
            return S.FINISHED
        case E.FINISH if state is S.WRITING:
            return S.FINISHING
        case E.FINISH:  # called again
            return state if state in FINISHING else None
        case E.FINISH_SENT:
            return S.COMMITTING if state in FINISHING else None
        case E.PARTITION_FINISHED:
            return S.FINISHED if state is S.COMMITTING else None
        case E.READERS_LEFT if state in FINISHING:
            return S.FINISHED
        case E.READERS_LEFT:
            return S.DISCARDING if state is S.WRITING else None
        case E.FAIL:
            return S.FAILED if state is S.NEW or state in STARTED else None
        case E.CLOSE if state is S.FINISHED:
            return S.FINISHED_AND_CLOSED
        case E.CLOSE:
            return S.CLOSED if state < S.CLOSED else None
    raise AssertionError(event)


def test_every_pair_does_what_the_event_means() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


def test_order_of_states_matches_the_comparisons() -> None:
    assert {state for state in S if state < S.DISCARDING} == {S.NEW, S.WRITING} | FINISHING
    assert {state for state in S if state < S.FINISHED} == {S.NEW} | STARTED
    assert {state for state in S if state >= S.CLOSED} == {S.CLOSED, S.FINISHED_AND_CLOSED}


class WriterMachine(RuleBasedStateMachine):
    """A user, a connection and a broker that act in any order, against a simple model."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.NEW
        self.started = self.committing = self.finish_sent = False
        self.finished = self.failed = self.readers_left = self.closed = False

    def feed(self, event: WriterEvent) -> None:
        self.state = next_state(self.state, event)

    @property
    def over(self) -> bool:
        return self.finished or self.failed or self.closed

    @precondition(lambda self: self.state is S.NEW)
    @rule()
    def start(self) -> None:
        self.feed(E.START)
        self.started = True

    @precondition(lambda self: self.started and not self.over)
    @rule()
    def commit(self) -> None:
        self.feed(E.FINISH)
        self.committing = True
        self.finished = self.readers_left

    @precondition(lambda self: self.committing and not self.over)
    @rule()
    def send_finish(self) -> None:
        self.feed(E.FINISH_SENT)
        self.finish_sent = True

    @precondition(lambda self: self.finish_sent and not self.over)
    @rule()
    def broker_finishes(self) -> None:
        self.feed(E.PARTITION_FINISHED)
        self.finished = True

    @precondition(lambda self: self.started and not self.over and not self.readers_left)
    @rule()
    def readers_leave(self) -> None:
        self.feed(E.READERS_LEFT)
        self.readers_left = True
        self.finished = self.committing

    @precondition(lambda self: not self.over)
    @rule()
    def fail(self) -> None:
        self.feed(E.FAIL)
        self.failed = True

    @rule()
    def close(self) -> None:
        if not self.closed:  # a second call is ignored
            self.feed(E.CLOSE)
            self.closed = True

    @invariant()
    def state_means_all_of_it(self) -> None:
        assert (self.state >= S.CLOSED) == self.closed
        assert (self.state in (S.FINISHED, S.FINISHED_AND_CLOSED)) == self.finished
        assert (self.state is S.FAILED) == (self.failed and not self.closed)
        assert not (self.finished and self.failed)
        if self.started and not self.over:
            assert (self.state is S.DISCARDING) == self.readers_left
            assert (self.state in FINISHING) == self.committing
            assert (self.state is S.COMMITTING) == self.finish_sent


TestWriterMachine = WriterMachine.TestCase
TestWriterMachine.settings = settings(max_examples=100, stateful_step_count=20)
