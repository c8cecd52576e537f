"""The state of a transaction as the catalogue stores it, and back.

Tests: tests/kafka/transactions/test_rows.py.
"""

from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.transactions.phases import Phase
from broker.kafka.transactions.transaction import NONE, Claim, State
from broker.metadata.catalogue import PendingOffset, TransactionRow


def row_of(transactional_id: str, state: State) -> TransactionRow:
    last = state.last or Claim(NONE, NONE)
    return TransactionRow(
        transactional_id,
        state.producer_id,
        state.epoch,
        last.epoch,
        state.timeout_ms,
        state.phase.value,
        tuple(sorted(state.partitions)),
        tuple(sorted(state.groups)),
        state.started_ms,
        state.updated_ms,
        last.producer_id,
        state.next_producer_id,
    )


def state_of(row: TransactionRow) -> State:
    return State(
        row.producer_id,
        row.epoch,
        row.timeout_ms,
        None if row.last_epoch == NONE else Claim(row.last_producer_id, row.last_epoch),
        Phase(row.phase),
        frozenset(row.partitions),
        frozenset(row.groups),
        row.started_ms,
        row.updated_ms,
        row.next_producer_id,
    )


def committed_of(row: PendingOffset) -> CommittedOffset:
    return CommittedOffset(row.offset, row.leader_epoch, row.metadata or "", row.commit_ms)
