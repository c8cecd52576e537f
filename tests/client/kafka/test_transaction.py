"""The table of a producer's transaction against two booleans."""

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.client.kafka.transaction import TABLE, TransactionEvent, TransactionState, next_state
from tests.transitions import check_pairs

S, E = TransactionState, TransactionEvent

# (a transaction is open, the coordinator knows of it)
MEANS = {S.NO_TRANSACTION: (False, False), S.OPEN: (True, False), S.OPEN_AT_COORDINATOR: (True, True)}


def expected(state: TransactionState, event: TransactionEvent) -> TransactionState | None:
    """The next state by the two booleans; None if the event cannot happen."""
    is_open, _ = MEANS[state]
    if is_open == (event is E.BEGUN):
        return None
    after = {E.BEGUN: (True, False), E.ADDED: (True, True), E.ENDED: (False, False)}[event]
    return next(s for s in TransactionState if MEANS[s] == after)


def test_every_pair_does_what_the_booleans_say() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


class TransactionMachine(RuleBasedStateMachine):
    """Any order of begins, additions and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.state = S.NO_TRANSACTION
        self.means = (False, False)

    def feed(self, event: TransactionEvent) -> None:
        self.state = next_state(self.state, event)

    @precondition(lambda self: not self.means[0])
    @rule()
    def begin(self) -> None:
        self.feed(E.BEGUN)
        self.means = (True, False)

    @precondition(lambda self: self.means[0])
    @rule()
    def add(self) -> None:
        self.feed(E.ADDED)
        self.means = (True, True)

    @precondition(lambda self: self.means[0])
    @rule()
    def end(self) -> None:
        self.feed(E.ENDED)
        self.means = (False, False)

    @invariant()
    def state_means_both(self) -> None:
        assert MEANS[self.state] == self.means


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=50, stateful_step_count=30)
