"""One transactional id in memory: its state machine, lock and timer, the offsets it will commit, and how much room it takes.

Decides nothing; ``registry.py`` and ``coordinator.py`` use it, on any thread, with its lock held.
"""

from collections.abc import Callable

import attrs

from broker.kafka.groups.coordinator_memory import PARTICIPANT_BYTES, TRANSACTION_BYTES
from broker.kafka.groups.offsets import Offsets
from broker.kafka.transactions.transaction import Partition, Transaction
from broker.runtime.threads import Lock
from broker.runtime.timers import TimerHandle
from protocol.kafka.errors import ErrorCode

Reply = Callable[[ErrorCode], None]


@attrs.define(eq=False)
class Entry:
    """One transactional id. All of it is guarded by ``lock``; a group's lock may be taken under it. Who holds several of them has
    taken them in the order of their ids."""

    transaction: Transaction
    lock: Lock = attrs.Factory(Lock)
    # Group -> what it commits with the transaction, as far as durable.
    offsets: dict[str, Offsets] = attrs.Factory(dict)
    # The same, from the moment it is asked for: readers that want stable offsets wait for these.
    unstable: set[tuple[str, Partition]] = attrs.Factory(set)
    ended: list[Reply] = attrs.Factory(list)  # told when the decision is carried out
    timer: TimerHandle | None = None
    offsets_bytes: int = 0  # about what `offsets` take
    counted_bytes: int = 0  # what it counts for in the room that groups and transactions share
    is_gone: bool = False  # forgotten: whoever still has it asks again

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        state = self.transaction.pending or self.transaction.state
        participants = 0 if state is None else len(state.partitions) + len(state.groups)
        name_bytes = 2 * len(self.transaction.transactional_id)
        return TRANSACTION_BYTES + name_bytes + PARTICIPANT_BYTES * participants + self.offsets_bytes

    def put(self, group: str, offsets: Offsets) -> None:
        """These are durable as what the transaction commits for the group."""
        of_group = self.offsets.setdefault(group, {})
        before = sum(of_group[key].size_bytes for key in offsets if key in of_group)
        of_group.update(offsets)
        self.offsets_bytes += sum(one.size_bytes for one in offsets.values()) - before
