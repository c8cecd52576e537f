"""Everything that falls due in one group: its members' sessions, the end of joining and the end of syncing.

Pure bookkeeping of a ``ClassicGroup``, under the group's lock. Times are monotonic seconds.
"""

from math import inf

from broker.kafka.groups.deadlines import Deadlines


class Schedule:
    """``wake``: no deadline is earlier. It may be too early, because it does not move back when a deadline does."""

    def __init__(self) -> None:
        self.wake = inf
        # When the members that have not joined again are given up; None while no rebalance is prepared.
        self.join_deadline: float | None = None
        # When the members that have not synced are given up; None if all have, or no sync is awaited.
        self.sync_deadline: float | None = None
        # When members, known and pending, are given up. A member whose request is parked may have none.
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
