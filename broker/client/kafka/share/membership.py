"""The consumer's membership in its share group: when to send heartbeats, and which partitions are assigned. Pure.

The group's coordinator assigns partitions in its answers to heartbeats. A member keeps its id for life, and its epoch counts the
assignments; epoch 0 joins, -1 leaves. ``TABLE`` has the states.

FENCED: the coordinator does not know the member or its epoch (the member was silent for too long), so the member joins
again with the same id and has no partitions until then. REFUSED: an error that another try would not cure. WITHDRAW:
the member leaves before it has asked to join. An answer to a heartbeat that was in flight when the member decided to
leave changes nothing. Every other pair is a bug of the caller.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import attrs

from broker.client.kafka.errors import RETRIABLE
from broker.client.kafka.share.acquired import TopicIdPartition
from broker.transitions import Transitions
from protocol.kafka.errors import ErrorCode

_FENCED = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id})

# Used until the first answer states the interval.
_FIRST_INTERVAL_S = 5.0


class MembershipState(IntEnum):
    JOINING = 0
    STABLE = 1
    FAILED = 2
    LEAVING = 3
    LEFT = 4


class MembershipEvent(IntEnum):
    ACCEPTED = 0
    FENCED = 1
    REFUSED = 2
    LEAVE = 3
    WITHDRAW = 4


TABLE = Transitions(
    MembershipState,
    MembershipEvent,
    """
    JOINING  ACCEPTED  STABLE
    JOINING  FENCED    JOINING
    JOINING  REFUSED   FAILED
    JOINING  LEAVE     LEAVING
    JOINING  WITHDRAW  LEFT
    STABLE   ACCEPTED  STABLE
    STABLE   FENCED    JOINING
    STABLE   REFUSED   FAILED
    STABLE   LEAVE     LEAVING
    FAILED   LEAVE     LEFT
    LEAVING  ACCEPTED  LEFT
    LEAVING  FENCED    LEFT
    LEAVING  REFUSED   LEFT
    """,
)
next_state = TABLE.next


@attrs.frozen
class HeartbeatAnswer:
    """``assigned`` None: unchanged."""

    error: int = 0
    member_epoch: int = 0
    interval_s: float = _FIRST_INTERVAL_S
    assigned: frozenset[TopicIdPartition] | None = None


class Membership:
    """``due_at``: when the next heartbeat is due (monotonic, s). One heartbeat at a time: ``heartbeat``, then ``answered`` or
    ``unanswered``."""

    __slots__ = (
        "_has_asked",
        "_interval_s",
        "_pause_s",
        "_retry_max_s",
        "_retry_s",
        "_said",
        "_says_goodbye",
        "_sent",
        "assigned",
        "due_at",
        "epoch",
        "group",
        "member_id",
        "rack",
        "state",
        "topics",
    )  # fmt: skip

    def __init__(
        self, group: str, member_id: str, topics: Iterable[str], rack: str | None, retry_s: float, retry_max_s: float
    ) -> None:
        self.group = group
        self.member_id = member_id
        self.topics = frozenset(topics)
        self.rack = rack
        self.state = MembershipState.JOINING
        self.epoch = 0
        self.assigned: frozenset[TopicIdPartition] = frozenset()
        self.due_at = 0.0
        self._interval_s = _FIRST_INTERVAL_S
        self._retry_s, self._retry_max_s = retry_s, retry_max_s
        self._pause_s = retry_s
        self._said: frozenset[str] | None = None  # the topics that the coordinator knows
        self._sent: frozenset[str] | None = None
        self._has_asked = False
        self._says_goodbye = False  # the heartbeat in flight leaves the group

    def subscribe(self, topics: Iterable[str], now: float) -> None:
        """Read these topics from now on."""
        self.topics = frozenset(topics)
        self.due_at = now

    def heartbeat(self) -> Mapping[str, Any]:
        """The fields of the next heartbeat, which is sent now. Includes the topics unless the coordinator knows
        them."""
        assert self.state not in (MembershipState.FAILED, MembershipState.LEFT)
        joining = self.state is MembershipState.JOINING
        fields: dict[str, Any] = {"group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch}
        self._has_asked = True
        self._says_goodbye = self.state is MembershipState.LEAVING
        if self._says_goodbye:
            return fields | {"member_epoch": -1}
        self._sent = self.topics
        if joining or self._said != self.topics:
            fields["subscribed_topic_names"] = sorted(self.topics)
        if joining:
            fields["rack_id"] = self.rack
        return fields

    def answered(self, answer: HeartbeatAnswer, now: float) -> None:
        if self.state is MembershipState.LEAVING and not self._says_goodbye:
            self.due_at = now
            return
        if answer.error in RETRIABLE and answer.error != ErrorCode.unknown_topic_or_partition:
            self.unanswered(now)
            return
        self._pause_s = self._retry_s
        if answer.error in _FENCED:
            fenced_again = self.state is MembershipState.JOINING
            self._feed(MembershipEvent.FENCED)
            self.epoch, self.assigned, self._said = 0, frozenset(), None
            self.due_at = now + (self._retry_s if fenced_again else 0)
            return
        if answer.error:
            self._feed(MembershipEvent.REFUSED)
            return
        self._feed(MembershipEvent.ACCEPTED)
        self.epoch = answer.member_epoch
        self._interval_s = answer.interval_s
        if answer.assigned is not None:
            self.assigned = answer.assigned
        self._said = self._sent
        self.due_at = now if self._said != self.topics else now + self._interval_s

    def unanswered(self, now: float) -> None:
        """No answer came, or a retriable error: the next heartbeat sends all fields."""
        self._said = None
        self.due_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._retry_max_s)

    def leave(self) -> None:
        """Leave with the next heartbeat, or at once if the group cannot know the member."""
        if self.state is MembershipState.JOINING and not self._has_asked:
            self._feed(MembershipEvent.WITHDRAW)
        elif self.state not in (MembershipState.LEAVING, MembershipState.LEFT):
            self._feed(MembershipEvent.LEAVE)
        self.assigned = frozenset()

    def give_up(self) -> None:
        """The member has failed: an error that another try would not cure, or no time is left for another try."""
        if self.state not in (MembershipState.FAILED, MembershipState.LEFT):
            self._feed(MembershipEvent.REFUSED)
        self.assigned = frozenset()

    def _feed(self, event: MembershipEvent) -> None:
        self.state = next_state(self.state, event)
