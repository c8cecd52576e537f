"""Everything that falls due in one consumer group.

Pure bookkeeping of a ``ConsumerGroup``, under the group's lock. Times are monotonic seconds, and the keys are member ids.

Tests: tests/kafka/groups/consumer/test_group_timeouts.py.
"""

from math import inf

from broker.kafka.groups.deadlines import Deadlines


class ConsumerSchedule:
    """``wake``: no deadline is earlier. It may be too early, because it does not move back when a deadline does."""

    def __init__(self) -> None:
        self.wake = inf
        # When members are fenced that have sent no heartbeat.
        self.sessions = Deadlines()
        # When members are fenced that have not given up the partitions that they were asked to.
        self.revocations = Deadlines()
        # When classic members are fenced that have not joined again although they were told to, or have not synced.
        self.joins = Deadlines()
        self.syncs = Deadlines()
        # When regular expressions are to be matched again, or the next parked members are to be answered.
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
        members = min(each.first() for each in (self.sessions, self.revocations, self.joins, self.syncs))
        return min(members, self.other)

    def next_member(self, now: float) -> str | None:
        """A member that has missed a deadline."""
        for deadlines in (self.sessions, self.revocations, self.joins, self.syncs):
            if deadlines.first() <= now:
                return deadlines.first_key()
        return None
