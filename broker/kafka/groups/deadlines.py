"""The deadlines of groups: a queue of deadlines by key, and the schedules of classic and consumer groups.

Pure bookkeeping of a group, under the group's lock. Times are monotonic seconds.

``Deadlines`` suits deadlines that are mostly put off again and again: each heartbeat puts off its member's deadline. That costs
one look-up: the heap keeps the earlier time and is corrected when that time comes. Setting, removing and finding the first
deadline cost O(log n). The heap holds at most twice as many items as there are deadlines, plus 64.

``Schedule`` has the deadlines of a ``ClassicGroup``: its members' sessions, the end of joining and the end of syncing.
``ConsumerSchedule`` has those of a ``ConsumerGroup``; its keys are member ids.

Tests: tests/kafka/groups/consumer/test_group_timeouts.py.
"""

import heapq
from math import inf

import attrs

_SLACK = 64


@attrs.define(eq=False)
class _Entry:
    key: str
    deadline: float
    # The time and number of this key in the heap. The time is not later than the deadline.
    queued: float
    number: int


class Deadlines:
    """Times by key, in seconds. Equal times come in the order in which they were queued."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def set(self, key: str, deadline: float) -> None:
        """Set or replace the deadline of a key."""
        entry = self._entries.get(key)
        if entry is not None and deadline >= entry.queued:
            entry.deadline = deadline
            return
        self._number += 1
        self._entries[key] = _Entry(key, deadline, deadline, self._number)
        heapq.heappush(self._heap, (deadline, self._number, key))
        self._compact()

    def remove(self, key: str) -> None:
        """Remove the deadline if there is one."""
        if self._entries.pop(key, None) is not None:
            self._compact()

    def rename(self, old: str, new: str) -> None:
        """Keep the deadline under another key."""
        entry = self._entries.get(old)
        if entry is not None:
            self.remove(old)
            self.set(new, entry.deadline)

    def clear(self) -> None:
        self._entries.clear()
        self._heap.clear()

    def first(self) -> float:
        """The earliest deadline; infinity if there is none."""
        head = self._head()
        return inf if head is None else head.deadline

    def first_key(self) -> str | None:
        """The key with the earliest deadline."""
        head = self._head()
        return None if head is None else head.key

    def _head(self) -> _Entry | None:
        heap = self._heap
        while heap:
            queued, number, key = heap[0]
            entry = self._entries.get(key)
            if entry is None or entry.number != number:  # removed, or set to an earlier time meanwhile
                heapq.heappop(heap)
            elif entry.deadline > queued:
                entry.queued = entry.deadline
                heapq.heapreplace(heap, (entry.deadline, number, key))
            else:
                return entry
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            for entry in self._entries.values():
                entry.queued = entry.deadline
            self._heap = [(entry.queued, entry.number, entry.key) for entry in self._entries.values()]
            heapq.heapify(self._heap)


class Schedule:
    """``wake``: no deadline is earlier. It may be too early, because it does not move back when a deadline does."""

    def __init__(self) -> None:
        self.wake = inf
        # When members that have not joined again are removed; None while no rebalance is prepared.
        self.join_deadline: float | None = None
        # When members that have not synced are removed; None if all have, or no sync is awaited.
        self.sync_deadline: float | None = None
        # When members, known and pending, are removed. A member whose request is parked may have none.
        self.members = Deadlines()

    def set_member(self, member_id: str, deadline: float) -> None:
        self.members.set(member_id, deadline)
        self._wake_by(deadline)

    def set_join(self, deadline: float) -> None:
        self.join_deadline = deadline
        self._wake_by(deadline)

    def set_sync(self, deadline: float) -> None:
        self.sync_deadline = deadline
        self._wake_by(deadline)

    def next(self) -> float:
        """The earliest deadline; infinity if there is none."""
        due = self.members.first()
        for deadline in (self.join_deadline, self.sync_deadline):
            if deadline is not None and deadline < due:
                due = deadline
        return due

    def clear(self) -> None:
        self.join_deadline = self.sync_deadline = None
        self.members.clear()
        self.wake = inf

    def _wake_by(self, deadline: float) -> None:
        self.wake = min(self.wake, deadline)


class ConsumerSchedule:
    """``wake``: no deadline is earlier. It may be too early, because it does not move back when a deadline does."""

    def __init__(self) -> None:
        self.wake = inf
        # When members without a heartbeat are fenced.
        self.sessions = Deadlines()
        # When members that have not given up partitions as requested are fenced.
        self.revocations = Deadlines()
        # When classic members that have not joined again as told, or have not synced, are fenced.
        self.joins = Deadlines()
        self.syncs = Deadlines()
        # When regular expressions are matched again, or the next parked members are answered.
        self.other = inf

    def set(self, deadlines: Deadlines, member_id: str, deadline: float) -> None:
        deadlines.set(member_id, deadline)
        if deadline < self.wake:
            self.wake = deadline

    def set_if_absent(self, deadlines: Deadlines, member_id: str, deadline: float) -> None:
        if member_id not in deadlines:
            self.set(deadlines, member_id, deadline)

    def set_other(self, deadline: float) -> None:
        self.other = min(self.other, deadline)
        self.wake = min(self.wake, deadline)

    def forget(self, member_id: str) -> None:
        for deadlines in (self.sessions, self.revocations, self.joins, self.syncs):
            deadlines.remove(member_id)

    def clear(self) -> None:
        for deadlines in (self.sessions, self.revocations, self.joins, self.syncs):
            deadlines.clear()
        self.other = self.wake = inf

    def next(self) -> float:
        """The earliest deadline; infinity if there is none."""
        members = min(deadlines.first() for deadlines in (self.sessions, self.revocations, self.joins, self.syncs))
        return min(members, self.other)

    def next_member(self, now: float) -> str | None:
        """A member that has missed a deadline."""
        for deadlines in (self.sessions, self.revocations, self.joins, self.syncs):
            if deadlines.first() <= now:
                return deadlines.first_key()
        return None
