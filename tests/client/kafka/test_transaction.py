"""The table of a producer's transaction against two booleans, which is all it means."""

import re

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.client.kafka import transaction
from broker.client.kafka.transaction import TABLE, TransactionEvent, TransactionState, next_state

S, E = TransactionState, TransactionEvent

# (a transaction is open, the coordinator has heard of it)
MEANS = {S.NO_TRANSACTION: (False, False), S.OPEN: (True, False), S.OPEN_AT_COORDINATOR: (True, True)}


def expected(state: TransactionState, event: TransactionEvent) -> TransactionState | None:
    """What the two booleans say; None where the event cannot happen."""
    is_open, _ = MEANS[state]
    if is_open == (event is E.BEGUN):
        return None
    after = {E.BEGUN: (True, False), E.ADDED: (True, True), E.ENDED: (False, False)}[event]
    return next(s for s in TransactionState if MEANS[s] == after)


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("event", TransactionEvent)
def test_every_pair_of_state_and_event_does_what_the_booleans_say(
    state: TransactionState, event: TransactionEvent
) -> None:
    after = expected(state, event)
    assert TABLE.get((state, event)) == after
    if after is None:
        with pytest.raises(AssertionError, match=f"{event.name} in state {state.name}"):
            next_state(state, event)
    else:
        assert next_state(state, event) is after


def test_the_table_in_the_docstring_is_the_table() -> None:
    rows = re.findall(r"^([A-Z_]+) +([A-Z_]+) +([A-Z_]+)$", transaction.__doc__ or "", re.MULTILINE)
    assert {(S[state], E[event]): S[after] for state, event, after in rows} == TABLE


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
