"""A transactional id: each change, each refusal, and a random walk that keeps Kafka's guarantees."""

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from broker.kafka.transactions.transaction import GROUPS_MAX, LAST_EPOCH, PREPARED, Claim, Phase, State, Transaction
from protocol.kafka.errors import ErrorCode

P0, P1 = ("t", 0), ("t", 1)
TIMEOUT_MS = 1_000
ME = Claim(7, 0)


def apply(transaction: Transaction, result: State | ErrorCode | None) -> State:
    assert isinstance(result, State), result
    transaction.begin_change(result)
    transaction.finish_change()
    return result


def empty() -> Transaction:
    transaction = Transaction("x")
    apply(transaction, transaction.init(TIMEOUT_MS, None, 7, 0))
    return transaction


def in_phase(phase: Phase) -> Transaction:
    transaction = empty()
    if phase is Phase.EMPTY:
        return transaction
    apply(transaction, transaction.add(ME, 10, partitions=[P0], groups=["g"]))
    if phase is Phase.ONGOING:
        return transaction
    apply(transaction, transaction.end(ME, phase in (Phase.PREPARE_COMMIT, Phase.COMPLETE_COMMIT), 20))
    if phase in (Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT):
        apply(transaction, transaction.complete(30))
    assert transaction.state is not None
    assert transaction.state.phase is phase
    return transaction


PHASES = [phase for phase in Phase if phase is not Phase.DEAD]
every_phase = pytest.mark.parametrize("phase", PHASES)
at_rest = pytest.mark.parametrize("phase", [Phase.EMPTY, Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT])
prepared = pytest.mark.parametrize("phase", [Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT])


def test_new_id_begins_with_the_first_epoch() -> None:
    assert Transaction("x").init(TIMEOUT_MS, None, 7, 5) == State(7, 0, TIMEOUT_MS, updated_ms=5)


@at_rest
def test_each_init_gives_the_next_epoch(phase: Phase) -> None:
    after = in_phase(phase).init(5, None, 9, 50)
    assert after == State(7, 1, 5, updated_ms=50)


def test_new_producer_id_follows_the_last_epoch() -> None:
    transaction = empty()
    transaction.state = State(7, LAST_EPOCH, TIMEOUT_MS)
    old = Claim(7, LAST_EPOCH)
    new = State(9, 0, TIMEOUT_MS, old, updated_ms=0)
    assert apply(transaction, transaction.init(TIMEOUT_MS, old, 9, 0)) == new
    assert apply(transaction, transaction.init(TIMEOUT_MS, old, -1, 0)) == new, "its answer was lost"
    apply(transaction, transaction.add(Claim(9, 0), 10, partitions=[P0]))
    assert transaction.init(TIMEOUT_MS, old, -1, 20) == ErrorCode.producer_fenced


def test_other_producers_cannot_continue_after_last_epoch() -> None:
    transaction = empty()
    transaction.state = State(7, LAST_EPOCH, TIMEOUT_MS)
    apply(transaction, transaction.init(TIMEOUT_MS, None, 9, 0))
    for claim in (Claim(7, LAST_EPOCH), Claim(9, LAST_EPOCH), Claim(7, 0)):
        assert transaction.init(TIMEOUT_MS, claim, -1, 0) == ErrorCode.producer_fenced


def test_producer_may_continue_after_last_transaction_timed_out() -> None:
    transaction = in_phase(Phase.ONGOING)
    assert transaction.state is not None
    transaction.state = attrs.evolve(transaction.state, epoch=LAST_EPOCH)
    apply(transaction, transaction.expire(10 + TIMEOUT_MS))
    apply(transaction, transaction.complete(2_000))
    for new_id in (9, -1):
        state = apply(transaction, transaction.init(TIMEOUT_MS, Claim(7, LAST_EPOCH), new_id, 2_000))
        assert (state.producer_id, state.epoch) == (9, 0)


def test_init_aborts_open_transaction_and_withholds_its_epoch() -> None:
    transaction = in_phase(Phase.ONGOING)
    fenced = apply(transaction, transaction.init(TIMEOUT_MS, None, -1, 50))
    assert (fenced.phase, fenced.epoch, fenced.partitions) == (Phase.PREPARE_ABORT, 1, {P0})
    assert transaction.init(TIMEOUT_MS, None, -1, 50) == ErrorCode.concurrent_transactions
    apply(transaction, transaction.complete(60))
    assert apply(transaction, transaction.init(TIMEOUT_MS, None, -1, 70)).epoch == 2


def test_producer_continuing_after_error_gets_next_epoch_once() -> None:
    transaction = empty()
    assert apply(transaction, transaction.init(TIMEOUT_MS, ME, -1, 50)).epoch == 1
    again = apply(transaction, transaction.init(TIMEOUT_MS, ME, -1, 60))  # the answer was lost
    assert again.epoch == 1
    apply(transaction, transaction.add(Claim(7, 1), 70, partitions=[P0]))
    assert transaction.init(TIMEOUT_MS, ME, -1, 80) == ErrorCode.producer_fenced


@pytest.mark.parametrize("claim", [Claim(8, 0), Claim(7, 1)])
def test_another_producer_cannot_go_on_in_its_place(claim: Claim) -> None:
    assert empty().init(TIMEOUT_MS, claim, -1, 50) == ErrorCode.producer_fenced


def test_producer_may_continue_after_transaction_timeout() -> None:
    transaction = in_phase(Phase.ONGOING)
    apply(transaction, transaction.expire(10 + TIMEOUT_MS))
    apply(transaction, transaction.complete(2_000))
    assert apply(transaction, transaction.init(TIMEOUT_MS, ME, -1, 2_000)).epoch == 1


def test_producer_may_not_continue_after_another_came() -> None:
    transaction = in_phase(Phase.ONGOING)
    apply(transaction, transaction.expire(10 + TIMEOUT_MS))
    apply(transaction, transaction.complete(2_000))
    assert apply(transaction, transaction.init(TIMEOUT_MS, None, -1, 2_000)).epoch == 2
    assert transaction.init(TIMEOUT_MS, ME, -1, 2_000) == ErrorCode.producer_fenced


@at_rest
def test_first_partition_begins_a_transaction(phase: Phase) -> None:
    state = in_phase(phase).add(ME, 50, partitions=[P1])
    assert isinstance(state, State)
    assert (state.phase, state.partitions, state.groups, state.started_ms) == (Phase.ONGOING, {P1}, set(), 50)


def test_more_partitions_keep_the_transaction_start_time() -> None:
    transaction = in_phase(Phase.ONGOING)
    assert transaction.add(ME, 50, partitions=[P0]) == ErrorCode.none
    assert transaction.add(ME, 50, groups=["g"]) == ErrorCode.none
    state = apply(transaction, transaction.add(ME, 50, partitions=[P1], groups=["h"]))
    assert (state.partitions, state.groups, state.started_ms) == ({P0, P1}, {"g", "h"}, 10)


@prepared
def test_decided_transaction_only_accepts_completion(phase: Phase) -> None:
    transaction = in_phase(phase)
    concurrent = ErrorCode.concurrent_transactions
    assert transaction.init(TIMEOUT_MS, None, -1, 50) == concurrent
    assert transaction.add(ME, 50, partitions=[P1]) == concurrent
    assert transaction.check_group(ME, "g") == concurrent
    assert transaction.expire(1 << 40) is None
    assert not transaction.is_unused(1 << 40, 1)


@pytest.mark.parametrize("commit", [True, False])
@every_phase
def test_answers_to_end(phase: Phase, commit: bool) -> None:
    result = in_phase(phase).end(ME, commit, 50)
    same = {
        Phase.PREPARE_COMMIT: True,
        Phase.COMPLETE_COMMIT: True,
        Phase.PREPARE_ABORT: False,
        Phase.COMPLETE_ABORT: False,
    }
    if phase is Phase.ONGOING:
        assert isinstance(result, State)
        assert result.phase is (Phase.PREPARE_COMMIT if commit else Phase.PREPARE_ABORT)
    elif phase is Phase.EMPTY or same[phase] is not commit:
        assert result == ErrorCode.invalid_txn_state
    elif phase in (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT):
        assert result == ErrorCode.concurrent_transactions
    else:
        assert result == ErrorCode.none


@every_phase
def test_other_producers_are_refused_in_every_phase(phase: Phase) -> None:
    transaction = in_phase(phase)
    for claim, error in [
        (Claim(8, 0), ErrorCode.invalid_producer_id_mapping),
        (Claim(7, 1), ErrorCode.producer_fenced),
        (Claim(7, -1), ErrorCode.producer_fenced),
    ]:
        assert transaction.add(claim, 50, partitions=[P0]) == error
        assert transaction.end(claim, True, 50) == error
        assert transaction.check_group(claim, "g") == error


@every_phase
def test_pending_change_refuses_everything_else(phase: Phase) -> None:
    transaction = in_phase(phase)
    assert transaction.state is not None
    transaction.begin_change(attrs.evolve(transaction.state, updated_ms=99))
    concurrent = ErrorCode.concurrent_transactions
    assert transaction.init(TIMEOUT_MS, None, -1, 50) == concurrent
    assert transaction.add(ME, 50, partitions=[P1]) == concurrent
    assert transaction.end(ME, True, 50) == concurrent
    assert transaction.expire(1 << 40) is None
    assert not transaction.is_unused(1 << 40, 1)
    transaction.undo_change()
    assert transaction.state.updated_ms != 99


def test_number_of_groups_in_transaction_is_bounded() -> None:
    transaction = empty()
    apply(transaction, transaction.add(ME, 10, groups=[f"g-{n}" for n in range(GROUPS_MAX)]))
    assert transaction.add(ME, 20, groups=["one-more"]) == ErrorCode.invalid_request
    assert transaction.add(ME, 20, groups=["g-0"]) == ErrorCode.none
    apply(transaction, transaction.add(ME, 20, partitions=[P0]))


def test_offsets_are_taken_while_the_ongoing_transaction_grows() -> None:
    transaction = in_phase(Phase.ONGOING)
    growing = transaction.add(ME, 50, partitions=[P1], groups=["h"])
    assert isinstance(growing, State)
    transaction.begin_change(growing)
    assert transaction.check_group(ME, "g") == ErrorCode.none
    assert transaction.check_group(ME, "h") == ErrorCode.concurrent_transactions, (
        "it is not durable yet that the group takes part"
    )
    assert transaction.check_group(Claim(7, 1), "g") == ErrorCode.producer_fenced
    transaction.finish_change()
    assert transaction.check_group(ME, "h") == ErrorCode.none


@pytest.mark.parametrize("how", ["commit", "abort", "timeout", "init"])
def test_offsets_are_refused_once_the_end_is_pending(how: str) -> None:
    transaction = in_phase(Phase.ONGOING)
    ending: State | ErrorCode | None
    if how == "timeout":
        ending = transaction.expire(10 + TIMEOUT_MS)
    elif how == "init":
        ending = transaction.init(TIMEOUT_MS, None, -1, 50)
    else:
        ending = transaction.end(ME, how == "commit", 50)
    assert isinstance(ending, State)
    transaction.begin_change(ending)
    assert transaction.check_group(ME, "g") == ErrorCode.concurrent_transactions


@at_rest
def test_offsets_wait_for_the_beginning_of_the_transaction(phase: Phase) -> None:
    transaction = in_phase(phase)
    beginning = transaction.add(ME, 50, groups=["g"])
    assert isinstance(beginning, State)
    transaction.begin_change(beginning)
    assert transaction.check_group(ME, "g") == ErrorCode.concurrent_transactions


def test_offsets_need_their_group_in_the_open_transaction() -> None:
    assert in_phase(Phase.ONGOING).check_group(ME, "g") == ErrorCode.none
    assert in_phase(Phase.ONGOING).check_group(ME, "h") == ErrorCode.invalid_txn_state
    assert in_phase(Phase.COMPLETE_COMMIT).check_group(ME, "g") == ErrorCode.invalid_txn_state


def test_transaction_times_out_exactly_at_its_deadline() -> None:
    transaction = in_phase(Phase.ONGOING)
    assert transaction.expire(10 + TIMEOUT_MS - 1) is None
    state = transaction.expire(10 + TIMEOUT_MS)
    assert state is not None
    assert (state.phase, state.epoch, state.last) == (Phase.PREPARE_ABORT, 1, ME)


@every_phase
def test_a_timeout_can_come_early(phase: Phase) -> None:
    transaction = in_phase(phase)
    result = transaction.time_out(50)
    if phase is Phase.ONGOING:
        expired = transaction.expire(10 + TIMEOUT_MS)
        assert expired is not None
        assert attrs.evolve(expired, updated_ms=50) == result
    else:
        refused = ErrorCode.concurrent_transactions if phase in PREPARED else ErrorCode.invalid_txn_state
        assert refused == result


@every_phase
def test_aborts_by_operator(phase: Phase) -> None:
    transaction = in_phase(phase)
    elsewhere = ErrorCode.concurrent_transactions if phase in PREPARED else ErrorCode.none
    assert transaction.abort(ME, frozenset([P1]), 50) == elsewhere
    result = transaction.abort(ME, frozenset([P0, P1]), 50)
    if phase is Phase.ONGOING:
        assert isinstance(result, State)
        assert (result.phase, result.epoch, result.last) == (Phase.PREPARE_ABORT, 1, ME)
    else:
        assert result == elsewhere
    assert transaction.abort(Claim(7, 1), frozenset([P0]), 50) == ErrorCode.producer_fenced


@at_rest
def test_long_unused_id_is_forgotten(phase: Phase) -> None:
    transaction = in_phase(phase)
    assert transaction.state is not None
    since = transaction.state.updated_ms
    assert not transaction.is_unused(since + 99, 100)
    assert transaction.is_unused(since + 100, 100)
    transaction.forget()
    assert transaction.init(TIMEOUT_MS, None, 9, 0) == ErrorCode.not_coordinator
    assert transaction.add(ME, 0, partitions=[P0]) == ErrorCode.invalid_producer_id_mapping


def test_open_transaction_is_not_forgotten() -> None:
    assert not in_phase(Phase.ONGOING).is_unused(1 << 40, 1)


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        (Claim(8, 0), ErrorCode.invalid_producer_id_mapping),
        (Claim(7, 3), ErrorCode.invalid_producer_epoch),
        (ME, ErrorCode.invalid_txn_state),
    ],
)
def test_why_a_partition_refused_a_batch(claim: Claim, error: ErrorCode) -> None:
    assert in_phase(Phase.ONGOING).why_refused(claim) == error


def test_random_walk_keeps_the_guarantees() -> None:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.transaction = Transaction("x")
            self.now = 0
            self.holders: list[Claim] = []  # every producer that was given the id, the newest last
            self.decided: Phase | None = None

        def take(self, result: State | ErrorCode | None) -> State | None:
            """Make the result durable if it is a state."""
            self.now += 1
            if not isinstance(result, State):
                return None
            self.transaction.begin_change(result)
            self.transaction.finish_change()
            return result

        @rule(lost=st.booleans(), claim=st.booleans())
        def init(self, lost: bool, claim: bool) -> None:
            mine = self.holders[-1] if claim and self.holders else None
            state = self.take(self.transaction.init(TIMEOUT_MS, mine, 100 + self.now, self.now))
            if state is not None and state.phase is Phase.EMPTY and not lost:
                given = Claim(state.producer_id, state.epoch)
                assert given.epoch <= LAST_EPOCH
                assert given not in self.holders, "an epoch was given out twice"
                self.holders.append(given)

        @rule(who=st.integers(0, 3), partition=st.sampled_from([P0, P1]))
        def add(self, who: int, partition: tuple[str, int]) -> None:
            if who < len(self.holders):
                claim = self.holders[-1 - who]
                state = self.take(self.transaction.add(claim, self.now, partitions=[partition]))
                assert state is None or who == 0, "a zombie has begun a transaction"

        @rule(who=st.integers(0, 3), commit=st.booleans())
        def end(self, who: int, commit: bool) -> None:
            if who < len(self.holders):
                state = self.take(self.transaction.end(self.holders[-1 - who], commit, self.now))
                if state is not None:
                    assert who == 0, "a zombie has decided"
                    self.decided = state.phase

        @rule()
        def time_passes(self) -> None:
            self.now += TIMEOUT_MS
            self.take(self.transaction.expire(self.now))

        @precondition(lambda self: self.transaction.state is not None)
        @rule()
        def exhaust(self) -> None:
            state = self.transaction.state
            assert state is not None
            if state.phase is Phase.EMPTY and not self.transaction.pending and state.epoch < 100 and not self.holders:
                self.transaction.state = attrs.evolve(state, epoch=LAST_EPOCH - 1)

        @rule()
        def carry_out(self) -> None:
            state = self.transaction.state
            if state is not None and state.phase in (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT):
                done = self.take(self.transaction.complete(self.now))
                assert done is not None
                assert (done.phase is Phase.COMPLETE_COMMIT) == (state.phase is Phase.PREPARE_COMMIT)

        @invariant()
        def only_open_and_decided_transactions_have_partitions(self) -> None:
            state = self.transaction.state
            if state is not None and state.phase in (Phase.EMPTY, Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT):
                assert not state.partitions

        @invariant()
        def an_open_transaction_ends(self) -> None:
            state = self.transaction.state
            if state is not None and state.phase is Phase.ONGOING:
                assert state.deadline_ms is not None
                assert self.transaction.expire(state.deadline_ms) is not None

    run_state_machine_as_test(Machine, settings=settings(max_examples=200, stateful_step_count=40, deadline=None))
