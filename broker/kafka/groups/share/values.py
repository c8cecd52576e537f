"""The requests, answers, effects and descriptions of share groups. Plain values: nothing here decides anything.

Tests: tests/kafka/groups/share/test_share_group.py.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

import attrs

from broker.kafka.groups.share.simple_assignor import Assignment, assign
from protocol.kafka.errors import ErrorCode

ASSIGNOR = "simple"

# Characters of a share group's id: it is kept, and stored, with each partition that the group reads.
GROUP_ID_MAX = 255


@attrs.frozen
class ShareGroupLimits:
    """``restored_session_s``: how long a member has for its first heartbeat after the broker has restarted."""

    max_size: int
    max_bytes: int
    restored_session_s: float


# Returns a topic's id and its present number of partitions; None if it does not exist.
Topics = Callable[[str], tuple[UUID, int] | None]


@attrs.frozen
class HeartbeatRequest:
    """A ShareGroupHeartbeat. ``rack_id`` and ``subscribed_topic_names`` are None if they have not changed."""

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None


@attrs.frozen
class HeartbeatResult:
    """``assignment`` is None if the member knows it."""

    error: ErrorCode
    member_id: str
    member_epoch: int = 0
    assignment: Assignment | None = None


# Where an answer goes. The group keeps it for a parked request and returns it in an effect; it never calls it.
Reply = Callable[[HeartbeatResult], None]


@attrs.frozen
class AssignmentDue:
    """Effect: call ``begin_run`` soon, and not on a processor."""


@attrs.frozen
class NewPartitions:
    """Partitions of one topic that the group has never read: ``first`` <= partition < ``end``."""

    name: str
    topic_id: UUID
    first: int
    end: int


@attrs.frozen
class Initialise:
    """Effect: give these partitions a start offset in this group. When that is durable, or has failed, call ``initialised``."""

    partitions: tuple[NewPartitions, ...]


@attrs.frozen
class MemberFenced:
    """Effect: a member has sent no heartbeat for the session time-out, so its acquired records are released."""

    member_id: str


ShareEffect = AssignmentDue | Initialise | MemberFenced


@attrs.define(eq=False)
class AssignorTask:
    """The assignor's input, as of one moment, so that it can ``run`` without the lock of the group. The coordinator passes the
    task to ``ShareGroup.assigned``.

    ``targets`` is None until it has run. ``cost``: approximate number of steps of 1 us.
    """

    epoch: int
    subscriptions: Mapping[str, frozenset[UUID]]
    partitions: Mapping[UUID, int]
    current: Mapping[str, Assignment]
    targets: Mapping[str, Assignment] | None = None

    @property
    def cost(self) -> int:
        return 5 * (len(self.subscriptions) + sum(self.partitions.values()))

    def run(self) -> None:
        self.targets = assign(self.subscriptions, self.partitions, self.current)


@attrs.frozen
class MemberDescription:
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: Assignment


@attrs.frozen
class ShareGroupDescription:
    """ShareGroupDescribe's view of a group."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    members: tuple[MemberDescription, ...]
