"""The joins and syncs of one group that wait for their answer.

Pure bookkeeping of a ``ClassicGroup``, under the group's lock. A join is parked while a rebalance is prepared (and, for a static
member that came back to a stable group, until its new member id is durable), a sync until the leader's assignment is durable.

Each request is answered exactly once, because its connection stays muted until then. Kafka drops a parked request without an
answer in two cases: when its member sends another one, and when a member leaves that waits in sync. Here both are answered.

Tests: tests/kafka/groups/test_group_joining.py, tests/kafka/groups/test_group_syncing.py,
tests/kafka/groups/test_group_machine.py.
"""

from collections.abc import Callable

from broker.kafka.groups.values import Effect, JoinAnswer, JoinReply, JoinResult, SyncAnswer, SyncReply, SyncResult
from protocol.kafka.errors import ErrorCode


class ParkedRequests:
    """``emit`` takes the answers, as effects of the group."""

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self.joins: dict[str, JoinReply] = {}  # by member id
        self.syncs: dict[str, SyncReply] = {}  # by member id
        self._emit = emit

    def park_join(self, member_id: str, to: JoinReply) -> None:
        # The member has given up its earlier join, if there is one, but the connection of that may still exist.
        self.answer_join(member_id, JoinResult(ErrorCode.rebalance_in_progress, member_id))
        self.joins[member_id] = to

    def park_sync(self, member_id: str, to: SyncReply) -> None:
        self.answer_sync(member_id, SyncResult(ErrorCode.rebalance_in_progress))
        self.syncs[member_id] = to

    def answer_join(self, member_id: str, result: JoinResult) -> None:
        """Answer the member's parked join, if there is one."""
        to = self.joins.pop(member_id, None)
        if to is not None:
            self._emit(JoinAnswer(to, result))

    def answer_sync(self, member_id: str, result: SyncResult) -> bool:
        """Answer the member's parked sync. False if there is none."""
        to = self.syncs.pop(member_id, None)
        if to is None:
            return False
        self._emit(SyncAnswer(to, result))
        return True

    def answer_all(self, error: ErrorCode) -> None:
        """Refuse everything that is parked."""
        for member_id in list(self.joins):
            self.answer_join(member_id, JoinResult(error, member_id))
        for member_id in list(self.syncs):
            self.answer_sync(member_id, SyncResult(error))
