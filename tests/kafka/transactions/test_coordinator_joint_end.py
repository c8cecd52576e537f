"""A decision for several transactions: each line of the table, and random mixtures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.transactions.coordinator import Refused, decide
from broker.kafka.transactions.transaction import Claim, Phase, State, Transaction
from protocol.kafka.errors import ErrorCode
from tests.kafka.transactions.test_transaction import ME, PHASES, in_phase

EMPTY, ONGOING = Phase.EMPTY, Phase.ONGOING
COMMITTED, ABORTED = Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT
COMMITTING, ABORTING = Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT
STRANGER, OLD = Claim(8, 0), Claim(7, -1)


def ask(*members: Phase | None, commit: bool = True, claims: dict[int, Claim] | None = None) -> object:
    """The next phases, or the refusal."""
    asked: list[tuple[Transaction | None, Claim]] = [
        (None if phase is None else in_phase(phase), (claims or {}).get(index, ME))
        for index, phase in enumerate(members)
    ]
    result = decide(asked, commit, 50)
    if isinstance(result, Refused):
        return result
    return [state and state.phase for state in result]


def test_those_that_are_ongoing_are_decided() -> None:
    assert ask(ONGOING, EMPTY, ONGOING) == [COMMITTING, None, COMMITTING]
    assert ask(ONGOING, EMPTY, ONGOING, commit=False) == [ABORTING, None, ABORTING]


def test_nothing_changes_where_all_has_been_decided_before() -> None:
    assert ask(COMMITTED, EMPTY, COMMITTED) == [None] * 3
    assert ask(ABORTED, EMPTY, commit=False) == [None] * 2
    assert ask(EMPTY, EMPTY) == [None] * 2


def test_late_copy_does_not_decide_newer_transactions() -> None:
    assert ask(ONGOING, EMPTY, COMMITTED, COMMITTED) == Refused(ErrorCode.invalid_txn_state, 2)
    assert ask(ABORTED, ONGOING, commit=False) == Refused(ErrorCode.invalid_txn_state, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_one_that_was_decided_otherwise_refuses_for_all(commit: bool) -> None:
    otherwise = ABORTED if commit else COMMITTED
    assert ask(ONGOING, otherwise, ONGOING, commit=commit) == Refused(ErrorCode.invalid_txn_state, 1)


@pytest.mark.parametrize("phase", [EMPTY, ONGOING, COMMITTED])
def test_fenced_or_unknown_member_refuses_for_all(phase: Phase) -> None:
    assert ask(ONGOING, phase, claims={1: OLD}) == Refused(ErrorCode.producer_fenced, 1)
    assert ask(ONGOING, phase, claims={1: STRANGER}) == Refused(ErrorCode.invalid_producer_id_mapping, 1)
    assert ask(ONGOING, None) == Refused(ErrorCode.invalid_producer_id_mapping, 1)


def test_request_during_decision_is_told_to_retry() -> None:
    assert ask(COMMITTED, COMMITTING, COMMITTING) == Refused(ErrorCode.concurrent_transactions, 1)


def test_request_during_pending_change_is_told_to_retry() -> None:
    busy = in_phase(ONGOING)
    assert busy.state is not None
    busy.begin_change(busy.state)
    assert decide([(in_phase(ONGOING), ME), (busy, ME)], True, 50) == Refused(ErrorCode.concurrent_transactions, 1)


def test_final_refusal_takes_precedence_over_retriable_one() -> None:
    assert ask(COMMITTING, ONGOING, claims={1: OLD}) == Refused(ErrorCode.producer_fenced, 1)


@given(st.lists(st.sampled_from(PHASES), min_size=1, max_size=6), st.booleans(), st.data())
def test_mixture_is_decided_only_if_every_member_allows(phases: list[Phase], commit: bool, data: st.DataObject) -> None:
    claims = {i: data.draw(st.sampled_from([ME, ME, ME, OLD, STRANGER])) for i in range(len(phases))}
    transactions = [in_phase(phase) for phase in phases]
    result = decide([(transaction, claims[i]) for i, transaction in enumerate(transactions)], commit, 50)
    if isinstance(result, Refused):
        assert result.error != ErrorCode.none
        return
    assert set(claims.values()) == {ME}
    ended = COMMITTED if commit else ABORTED
    assert set(phases) <= {EMPTY, ONGOING} or set(phases) <= {EMPTY, ended}
    for transaction, state in zip(transactions, result, strict=True):
        assert transaction.state is not None
        alone = transaction.end(ME, commit, 50)
        assert state == (alone if isinstance(alone, State) else None)
