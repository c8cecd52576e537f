"""One transactional id in memory: its state machine, lock and timer, the offsets that it will commit, and its size.

Decides nothing. Any thread may use it while it holds the lock.

Tests: tests/kafka/transactions/test_coordinator.py.
"""

from collections.abc import Callable, Collection

import attrs

from broker.kafka.groups.coordinator_memory import PARTICIPANT_BYTES, TRANSACTION_BYTES
from broker.kafka.groups.offsets import Offsets
from broker.kafka.transactions.transaction import Claim, Partition, Transaction
from broker.runtime.threads import Lock
from broker.runtime.timers import TimerHandle
from protocol.kafka.errors import ErrorCode

Reply = Callable[[ErrorCode], None]


@attrs.frozen(eq=False)
class Addition:
    """What a producer adds to its transaction."""

    claim: Claim
    partitions: Collection[Partition]
    groups: Collection[str]
    reply: Reply


@attrs.define(eq=False)
class TransactionEntry:
    """All fields are guarded by ``lock``. A thread that holds it may take a group's lock. A thread that needs several of
    these locks takes them in the order of the transactional ids."""

    transaction: Transaction
    lock: Lock = attrs.Factory(Lock)
    # Group -> the offsets that it commits with the transaction, as far as they are durable.
    offsets: dict[str, Offsets] = attrs.Factory(dict)
    # The (group, partition) of the same offsets, from the moment they are requested: readers of stable offsets wait for these.
    unstable: set[tuple[str, Partition]] = attrs.Factory(set)
    # Called when the decision is carried out.
    end_replies: list[Reply] = attrs.Factory(list)
    # To be made after the change that is pending. Each is of another connection, which waits for it.
    additions: list[Addition] = attrs.Factory(list)
    # The producer that has asked to commit although nothing is open, and was told to ask again.
    hasty: Claim | None = None
    timer: TimerHandle | None = None
    # About how much memory `offsets` take.
    offsets_bytes: int = 0
    # The part of the coordinator's memory that is counted for this entry.
    counted_bytes: int = 0
    # No longer in the registry. A thread that still has the entry answers so that the client asks again.
    is_forgotten: bool = False

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        state = self.transaction.pending or self.transaction.state
        participants = 0 if state is None else len(state.partitions) + len(state.groups)
        name_bytes = 2 * len(self.transaction.transactional_id)
        return TRANSACTION_BYTES + name_bytes + PARTICIPANT_BYTES * participants + self.offsets_bytes

    def put_offsets(self, group: str, offsets: Offsets) -> None:
        """The transaction commits these for the group, which is durable."""
        of_group = self.offsets.setdefault(group, {})
        replaced_bytes = sum(of_group[key].size_bytes for key in offsets if key in of_group)
        of_group.update(offsets)
        self.offsets_bytes += sum(committed.size_bytes for committed in offsets.values()) - replaced_bytes

    def drop_offsets(self, topic: str) -> bool:
        """The topic is deleted. False if the transaction commits nothing for it."""
        has_dropped = False
        for offsets in self.offsets.values():
            for key in [key for key in offsets if key[0] == topic]:
                self.offsets_bytes -= offsets.pop(key).size_bytes
                has_dropped = True
        return has_dropped

    def clear_offsets(self) -> None:
        """The transaction is complete."""
        self.unstable.clear()
        self.offsets.clear()
        self.offsets_bytes = 0

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
