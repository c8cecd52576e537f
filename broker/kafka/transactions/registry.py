"""The transactional ids of this broker, by id and by the producer id that owns each, and the memory that they take.

Decides nothing. Any thread may call any method.

Tests: tests/kafka/transactions/test_coordinator.py.
"""

from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.coordinator_memory import PARTICIPANT_BYTES, TRANSACTION_BYTES
from broker.kafka.transactions.entry import Reply, TransactionEntry
from broker.kafka.transactions.transaction import State, Transaction
from broker.runtime.threads import Lock
from protocol.kafka.errors import ErrorCode


class TransactionRegistry:
    """Groups and transactions share the memory of ``groups``."""

    def __init__(self, groups: GroupCoordinator) -> None:
        # False before ``open`` and once the broker stops: requests are refused.
        self.is_active = False
        self._groups = groups
        self._entries: dict[str, TransactionEntry] = {}
        self._holders: dict[int, TransactionEntry] = {}  # by producer id
        self._lock = Lock()  # for changes of the dicts; may be taken under an entry's lock

    def load(self, transactional_id: str, state: State) -> None:
        """One that the catalogue has. Only before ``is_active``."""
        entry = TransactionEntry(Transaction(transactional_id, state))
        self._entries[transactional_id] = self._holders[state.producer_id] = entry

    def entries(self) -> list[TransactionEntry]:
        with self._lock:
            return list(self._entries.values())

    def get(self, transactional_id: str) -> TransactionEntry | None:
        return self._entries.get(transactional_id)

    def active(self, transactional_id: str, refuse: Reply) -> TransactionEntry | None:
        """For a request about an id that has a producer. If there is none, ``refuse`` is called with the reason."""
        if not self.is_active:
            refuse(ErrorCode.coordinator_not_available)
            return None
        entry = self._entries.get(transactional_id)
        if entry is None:
            refuse(ErrorCode.invalid_producer_id_mapping)
        return entry

    def get_or_create(self, transactional_id: str) -> TransactionEntry | None:
        """None if there is no memory for another one."""
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
        """The transactional id owns another producer id now."""
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
        """Something about the entry has changed: count the memory that it takes now."""
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
