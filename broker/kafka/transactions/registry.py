"""The transactional ids of this broker, by id and by producer id, with the memory that they take and their rows.

Decides nothing. Any thread may call any method of ``TransactionRegistry``. A ``TransactionEntry`` has the state machine, lock,
timer, offsets and size of a transactional id; any thread may use it while it holds the lock. ``row_of`` and ``state_of`` convert
between a transaction and its row in the catalogue.

Tests: tests/kafka/transactions/test_coordinator.py.
"""

from collections.abc import Callable, Collection

import attrs

from broker.cluster.nodes import Nodes, transaction_key
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.offsets import CommittedOffset, Offsets
from broker.kafka.groups.values import PARTICIPANT_BYTES, TRANSACTION_BYTES
from broker.kafka.transactions.transaction import NONE, Claim, Partition, Phase, State, Transaction
from broker.metadata.catalogue import PendingOffset, TransactionRow
from broker.runtime.threads import Lock
from broker.runtime.timers import TimerHandle
from protocol.kafka.errors import ErrorCode

Reply = Callable[[ErrorCode], None]


@attrs.frozen(eq=False)
class Addition:
    """Partitions and groups that a producer adds to its transaction."""

    claim: Claim
    partitions: Collection[Partition]
    groups: Collection[str]
    reply: Reply


@attrs.define(eq=False)
class TransactionEntry:
    """``lock`` guards all fields. A thread that holds it may take a group's lock. A thread that needs several of these locks
    takes them in the order of the transactional ids."""

    transaction: Transaction
    lock: Lock = attrs.Factory(Lock)
    # Group -> the durable offsets that it commits with the transaction.
    offsets: dict[str, Offsets] = attrs.Factory(dict)
    # (group, partition) of these offsets, from their request on: readers of stable offsets wait for them.
    unstable: set[tuple[str, Partition]] = attrs.Factory(set)
    # Called when the decision is carried out.
    end_replies: list[Reply] = attrs.Factory(list)
    # To be made after the pending change. Each comes from another connection, which waits for it.
    additions: list[Addition] = attrs.Factory(list)
    # The producer that tried to commit although nothing is open, and was told to ask again.
    hasty: Claim | None = None
    timer: TimerHandle | None = None
    # Approximate memory of `offsets`.
    offsets_bytes: int = 0
    # The part of the coordinator's memory that is counted for this entry.
    counted_bytes: int = 0
    # No longer in the registry. A thread that still holds the entry answers so that the client asks again.
    is_forgotten: bool = False

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the entry."""
        state = self.transaction.pending or self.transaction.state
        participants = 0 if state is None else len(state.partitions) + len(state.groups)
        name_bytes = 2 * len(self.transaction.transactional_id)
        return TRANSACTION_BYTES + name_bytes + PARTICIPANT_BYTES * participants + self.offsets_bytes

    def put_offsets(self, group: str, offsets: Offsets) -> None:
        """Add offsets of the group that are durable in the transaction."""
        of_group = self.offsets.setdefault(group, {})
        replaced_bytes = sum(of_group[key].size_bytes for key in offsets if key in of_group)
        of_group.update(offsets)
        self.offsets_bytes += sum(committed.size_bytes for committed in offsets.values()) - replaced_bytes

    def drop_offsets(self, topic: str) -> bool:
        """Drop the offsets of a deleted topic. Returns False if there are none."""
        has_dropped = False
        for offsets in self.offsets.values():
            for key in [key for key in offsets if key[0] == topic]:
                self.offsets_bytes -= offsets.pop(key).size_bytes
                has_dropped = True
        return has_dropped

    def clear_offsets(self) -> None:
        """Drop all offsets, because the transaction is complete."""
        self.unstable.clear()
        self.offsets.clear()
        self.offsets_bytes = 0

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class TransactionRegistry:
    """Groups and transactions share the memory of ``groups``."""

    def __init__(self, groups: GroupCoordinator, nodes: Nodes | None = None) -> None:
        """``nodes``: set if other nodes coordinate a part of the transactional ids."""
        self._nodes = nodes
        # False before ``open`` and once the broker stops: requests are refused.
        self.is_active = False
        self._groups = groups
        self._entries: dict[str, TransactionEntry] = {}
        self._holders: dict[int, TransactionEntry] = {}  # by producer id
        self._lock = Lock()  # for changes of the dicts; may be taken under an entry's lock

    def load(self, transactional_id: str, state: State) -> None:
        """Add a transaction from the catalogue. Only before ``is_active``."""
        entry = TransactionEntry(Transaction(transactional_id, state))
        self._entries[transactional_id] = self._holders[state.producer_id] = entry

    def entries(self) -> list[TransactionEntry]:
        with self._lock:
            return list(self._entries.values())

    def get(self, transactional_id: str) -> TransactionEntry | None:
        return self._entries.get(transactional_id)

    def active(self, transactional_id: str, refuse: Reply) -> TransactionEntry | None:
        """The entry, for a request about an id that has a producer. If there is none, calls ``refuse`` with the reason."""
        if not self.is_active:
            refuse(ErrorCode.coordinator_not_available)
            return None
        if not self.is_here(transactional_id):
            refuse(ErrorCode.not_coordinator)
            return None
        entry = self._entries.get(transactional_id)
        if entry is None:
            refuse(ErrorCode.invalid_producer_id_mapping)
        return entry

    def is_here(self, transactional_id: str) -> bool:
        """Whether this node coordinates it."""
        return self._nodes is None or self._nodes.coordinates(transaction_key(transactional_id))

    def get_or_create(self, transactional_id: str) -> TransactionEntry | None:
        """None if there is no memory for another id."""
        entry = self._entries.get(transactional_id)
        if entry is None and self._groups.has_memory_for(TRANSACTION_BYTES + 2 * len(transactional_id)):
            with self._lock:
                entry = self._entries.setdefault(transactional_id, TransactionEntry(Transaction(transactional_id)))
        return entry

    def holder(self, producer_id: int) -> TransactionEntry | None:
        """The transactional id that owns this producer id, or did so a moment ago."""
        return self._holders.get(producer_id)

    # With the entry's lock held ---------------------------------------------------------------------------------------

    def set_holder(self, entry: TransactionEntry, before: State | None, state: State) -> None:
        """Record that the transactional id owns another producer id now."""
        with self._lock:
            if before is not None and self._holders.get(before.producer_id) is entry:
                del self._holders[before.producer_id]
            self._holders[state.producer_id] = entry

    def remove(self, entry: TransactionEntry) -> None:
        entry.is_forgotten = True
        state = entry.transaction.state
        with self._lock:
            del self._entries[entry.transaction.transactional_id]
            if state is not None and self._holders.get(state.producer_id) is entry:
                del self._holders[state.producer_id]
        self.count(entry)

    def count(self, entry: TransactionEntry) -> None:
        """Update the memory that is counted for an entry after a change."""
        size_bytes = 0 if entry.is_forgotten else entry.size_bytes
        self._groups.memory.add(size_bytes - entry.counted_bytes)
        entry.counted_bytes = size_bytes

    def has_memory_to_grow(self, entry: TransactionEntry, state: State) -> bool:
        """Whether there is memory for the participants that this state adds."""
        present = entry.transaction.state
        before = 0 if present is None else len(present.partitions) + len(present.groups)
        growth = (len(state.partitions) + len(state.groups) - before) * PARTICIPANT_BYTES
        return growth <= 0 or self._groups.has_memory_for(growth)

    # Without ----------------------------------------------------------------------------------------------------------

    def drop_if_new(self, entry: TransactionEntry) -> None:
        """Remove an entry that was made for a request and got no state."""
        with entry.lock:
            if entry.transaction.state is None and entry.transaction.pending is None and not entry.is_forgotten:
                self.remove(entry)


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
