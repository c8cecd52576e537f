"""The heartbeats of one share group that wait until what they have changed is durable: one of each member.

Pure bookkeeping of a ``ShareGroup``, under the group's lock.

Tests: tests/kafka/groups/share/test_share_group.py.
"""

from collections.abc import Callable, Iterator

import attrs

from broker.kafka.groups.group import Answer
from broker.kafka.groups.share.values import HeartbeatResult, Reply
from protocol.kafka.errors import ErrorCode


@attrs.define(eq=False)
class _Parked:
    """``full``: it is answered with the assignment even if that has not changed."""

    to: Reply
    full: bool


class ParkedHeartbeats:
    """``effect`` takes the answers."""

    def __init__(self, effect: Callable[[Answer], None]) -> None:
        self._effect = effect
        self._parked: dict[str, _Parked] = {}

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._parked

    def __iter__(self) -> Iterator[str]:
        """The members that wait."""
        return iter(self._parked)

    def park(self, member_id: str, to: Reply, *, full: bool) -> None:
        before = self._parked.get(member_id)
        if before is not None:  # the client has given up that request, or somebody else uses its id
            self.refuse(member_id, ErrorCode.coordinator_not_available)
            full = full or before.full
        self._parked[member_id] = _Parked(to, full)

    def tell_assignment(self, member_id: str) -> None:
        """The member's assignment has changed."""
        self._parked[member_id].full = True

    def is_full(self, member_id: str) -> bool:
        """Whether the answer has the assignment."""
        return self._parked[member_id].full

    def answer(self, member_id: str, result: HeartbeatResult) -> None:
        self._effect(Answer(self._parked.pop(member_id).to, result))

    def refuse(self, member_id: str, error: ErrorCode) -> None:
        """Does nothing for a member that does not wait."""
        if member_id in self._parked:
            self.answer(member_id, HeartbeatResult(error, member_id))

    def refuse_all(self, error: ErrorCode) -> None:
        for member_id in list(self._parked):
            self.refuse(member_id, error)
