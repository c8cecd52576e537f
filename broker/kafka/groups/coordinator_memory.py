"""How much memory groups, committed offsets and transactional ids take, and the bound for all of them together.

The sizes are estimates of what CPython needs for each object, so that many small ones are bounded as well: an empty group
counts as much as 4 KB of metadata. Any thread.

Tests: tests/kafka/groups/test_bounds.py.
"""

from broker.runtime.threads import Lock

# Measured with tracemalloc on CPython 3.11 and rounded up: the state machine with its lock, members and deadlines.
GROUP_BYTES = 4096
# A member with its deadline, and with strings of the length that clients usually send.
MEMBER_BYTES = 1024
# A client that was given a member id and has not come back.
PENDING_MEMBER_BYTES = 512
# One protocol that a member names, besides its name and metadata.
PROTOCOL_BYTES = 128
# A committed offset, besides its metadata and the topic's name, which the offsets of a topic share.
OFFSET_BYTES = 384
# A share partition of which only the row is in memory, besides the group's id.
SHARE_PARTITION_BYTES = 512
# A transactional id with its state, its lock and its timer.
TRANSACTION_BYTES = 2048
# A partition or a group of a transaction.
PARTICIPANT_BYTES = 192


class CoordinatorMemory:
    """``max_bytes`` in all. State that was loaded is kept even if the bound was lowered since."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._lock = Lock()

    @property
    def free_bytes(self) -> int:
        """What may still be taken; negative if more is taken than the bound allows."""
        return self._max_bytes - self._used_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def add(self, size_bytes: int) -> None:
        """Something has grown, or shrunk, by this much. Never refuses: callers check ``free_bytes`` before they grow."""
        with self._lock:
            self._used_bytes += size_bytes
