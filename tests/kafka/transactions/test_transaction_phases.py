"""The table of phases agrees with Kafka's own states, and with the behaviour of a transaction."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kafka.transactions.transaction import AT_REST, PREPARED, TABLE, Phase, State, TransactionEvent, next_phase
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.test_transaction import ME, P0, P1, TIMEOUT_MS, in_phase
from tests.loops import loop_over
from tests.transitions import check_pairs

P, E = Phase, TransactionEvent

# The valid previous states in Kafka's TransactionState, with PrepareEpochFence, which Kafka only keeps in memory, counted as
# PrepareAbort.
PREVIOUS = {
    P.EMPTY: {P.EMPTY, P.COMPLETE_COMMIT, P.COMPLETE_ABORT},
    P.ONGOING: {P.ONGOING, P.EMPTY, P.COMPLETE_COMMIT, P.COMPLETE_ABORT},
    P.PREPARE_COMMIT: {P.ONGOING},
    P.PREPARE_ABORT: {P.ONGOING, P.EMPTY, P.COMPLETE_COMMIT, P.COMPLETE_ABORT},
    P.COMPLETE_COMMIT: {P.PREPARE_COMMIT},
    P.COMPLETE_ABORT: {P.PREPARE_ABORT},
    P.DEAD: {P.EMPTY, P.COMPLETE_COMMIT, P.COMPLETE_ABORT},
}


def happens(phase: Phase, event: TransactionEvent) -> State | ErrorCode | None:
    """The transaction's reaction to the event in this phase: its next state, an error code, or nothing."""
    transaction = in_phase(phase)
    if event is E.PRODUCER_INIT:
        return transaction.init(TIMEOUT_MS, None, 9, 50)
    if event is E.PARTICIPANT_ADDED:
        return transaction.add(ME, 50, partitions=[P1])
    if event in (E.COMMIT_DECIDED, E.ABORT_DECIDED):
        return transaction.end_and_bump(ME, event is E.COMMIT_DECIDED, -1, 50)
    if event is E.TIMED_OUT:
        return transaction.expire(10 + TIMEOUT_MS)
    if event is E.OPERATOR_ABORTED:
        return transaction.abort(ME, frozenset([P0]), 50)
    if event is E.MARKERS_WRITTEN:
        return transaction.complete(50) if phase in PREPARED else None
    if not transaction.is_unused(1 << 40, 1):
        return None
    transaction.forget()
    return transaction.state


@loop_over("phase", [phase for phase in Phase if phase is not P.DEAD])
@loop_over("event", TransactionEvent)
def test_transaction_follows_table_and_refuses_the_rest(phase: Phase, event: TransactionEvent) -> None:
    after = TABLE.get((phase, event))
    result = happens(phase, event)
    if after is None:
        assert not isinstance(result, State)
    else:
        assert isinstance(result, State)
        assert result.phase is after


def test_pair_outside_the_table_is_a_bug() -> None:
    check_pairs(TABLE, next_phase, P, E)


def test_phases_follow_each_other_as_in_kafka() -> None:
    assert {phase: {before for (before, _), after in TABLE.items() if after is phase} for phase in P} == PREVIOUS


class PhasesMachine(RuleBasedStateMachine):
    """Any order of events, against three facts: a transaction is open, how it was decided, whether that is carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = P.EMPTY
        self.is_open = False
        self.decided: bool | None = None  # True: commit
        self.is_carried_out = False

    def feed(self, event: TransactionEvent) -> None:
        self.phase = next_phase(self.phase, event)

    @property
    def is_being_ended(self) -> bool:
        return self.decided is not None and not self.is_carried_out

    @precondition(lambda self: not self.is_being_ended)
    @rule()
    def a_producer_comes(self) -> None:
        self.feed(E.PRODUCER_INIT)
        self.decided = False if self.is_open else None
        self.is_open = self.is_carried_out = False

    @precondition(lambda self: not self.is_being_ended)
    @rule()
    def a_participant_is_added(self) -> None:
        self.feed(E.PARTICIPANT_ADDED)
        self.is_open, self.decided, self.is_carried_out = True, None, False

    @precondition(lambda self: self.is_open)
    @rule(event=st.sampled_from([E.COMMIT_DECIDED, E.ABORT_DECIDED, E.TIMED_OUT, E.OPERATOR_ABORTED]))
    def it_is_decided(self, event: TransactionEvent) -> None:
        self.feed(event)
        self.is_open, self.decided, self.is_carried_out = False, event is E.COMMIT_DECIDED, False

    @precondition(lambda self: not self.is_open and not self.is_being_ended)
    @rule()
    def nothing_is_aborted(self) -> None:
        self.feed(E.ABORT_DECIDED)
        self.decided, self.is_carried_out = False, False

    @precondition(lambda self: self.is_being_ended)
    @rule()
    def it_is_carried_out(self) -> None:
        self.feed(E.MARKERS_WRITTEN)
        self.is_carried_out = True

    @invariant()
    def the_phase_means_these_facts(self) -> None:
        if self.is_open:
            assert self.phase is P.ONGOING
        elif self.decided is None:
            assert self.phase is P.EMPTY
        elif self.is_carried_out:
            assert self.phase is (P.COMPLETE_COMMIT if self.decided else P.COMPLETE_ABORT)
        else:
            assert self.phase is (P.PREPARE_COMMIT if self.decided else P.PREPARE_ABORT)
        assert (self.phase in AT_REST) == (not self.is_open and not self.is_being_ended)


TestPhasesMachine = PhasesMachine.TestCase
TestPhasesMachine.settings = settings(max_examples=50, stateful_step_count=30)
