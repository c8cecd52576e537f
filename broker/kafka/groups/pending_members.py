"""Pending members of one group: clients that were given a member id (KIP-394) and have not come back with it yet.

Pure bookkeeping of a ``ClassicGroup``, under the group's lock. Both their number and their bytes are bounded: a client comes back
at once, and one that was forgotten begins anew.
"""

from broker.kafka.groups.coordinator_memory import PENDING_MEMBER_BYTES

# Ten times the members of a large group.
PENDING_MAX = 1000


class PendingMembers:
    """Member ids, the oldest first. ``max_bytes`` bounds ``size_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._sizes

    def ids(self) -> set[str]:
        return set(self._sizes)

    def add(self, member_id: str) -> list[str]:
        """Returns the ids that were forgotten to make room: those that have been away longest."""
        size = PENDING_MEMBER_BYTES + len(member_id)
        forgotten = []
        while self._sizes and (len(self._sizes) >= PENDING_MAX or self.size_bytes + size > self._max_bytes):
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            forgotten.append(oldest)
        self._sizes[member_id] = size
        self.size_bytes += size
        return forgotten

    def remove(self, member_id: str) -> None:
        """Remove it if it is there."""
        self.size_bytes -= self._sizes.pop(member_id, 0)

    def clear(self) -> None:
        self._sizes.clear()
        self.size_bytes = 0
