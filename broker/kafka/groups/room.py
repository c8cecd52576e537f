"""How much memory groups, committed offsets and transactional ids take, and the bound for all of them together.

The sizes are estimates of what CPython holds for each, so that small things cannot be many without end: an empty group costs
as much as 4 KB of metadata. Any thread.
"""

from broker.runtime.threads import Lock

# Measured with tracemalloc on CPython 3.11 and rounded up: the state machine with its lock, rosters and deadlines.
GROUP_BYTES = 4096
# A member with its deadline, and with the strings of ordinary length that clients send.
MEMBER_BYTES = 1024
# One that was told its member id and has not come back.
PENDING_BYTES = 512
# One protocol that a member names, besides its name and metadata.
PROTOCOL_BYTES = 128
# A committed offset, besides its topic's name (which the offsets of a topic share) and its metadata.
OFFSET_BYTES = 384
# A transactional id with its state, its lock and its timer.
TRANSACTION_BYTES = 2048
# A partition or a group of a transaction.
PARTICIPANT_BYTES = 192


class Room:
    """``most`` bytes in all. What was there before a lower bound was set stays."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._lock = Lock()

    @property
    def free(self) -> int:
        """What may still be taken; negative where more is taken than the bound allows."""
        return self._most - self._used

    @property
    def used(self) -> int:
        return self._used

    def add(self, size: int) -> None:
        """Something has grown by so much, or shrunk. Never refused: who makes something grow asks ``free`` first."""
        with self._lock:
            self._used += size
