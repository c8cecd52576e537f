"""The requests, answers, effects and snapshots of groups. Plain values: nothing here decides anything.

Tests: tests/kafka/groups/test_group_machine.py.
"""

from collections.abc import Callable

import attrs

from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.group import GroupType
from protocol.kafka.errors import ErrorCode

# The member id of a client that has not been given one yet.
UNKNOWN_MEMBER = ""
NO_GENERATION = -1

# The protocols that a member supports, in its order of preference: name and opaque metadata.
Protocols = tuple[tuple[str, bytes], ...]


@attrs.frozen
class JoinRequest:
    """One JoinGroup. ``new_member_id`` is the id that the client is given if it needs one."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_member_id: str
    # KIP-394 (version 4): a dynamic member is given its id first, and joins when it comes back with it.
    member_id_required: bool = True
    # KIP-814 (version 9): a static leader that comes back can be told not to run its assignor.
    can_skip_assignment: bool = True


@attrs.frozen
class JoinMember:
    """What the leader is told of each member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@attrs.frozen
class JoinResult:
    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinMember, ...] = ()  # only in the answer to the leader


@attrs.frozen
class SyncRequest:
    """One SyncGroup. Protocol type and name are None in versions that do not have these fields."""

    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = attrs.field(factory=dict)  # by member id; only the leader sends them


@attrs.frozen
class SyncResult:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# Where an answer goes. The group keeps them for parked requests and hands them back in its effects; it never calls one.
JoinReply = Callable[[JoinResult], None]
SyncReply = Callable[[SyncResult], None]


@attrs.frozen
class MemberSnapshot:
    """One member as it is saved."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes


@attrs.frozen
class GroupSnapshot:
    """A generation as it is saved. ``leader`` is None if there are no members, or if the group was a consumer group until now."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberSnapshot, ...]


@attrs.frozen
class JoinAnswer:
    """Effect: answer a JoinGroup."""

    to: JoinReply
    result: JoinResult


@attrs.frozen
class SyncAnswer:
    """Effect: answer a SyncGroup."""

    to: SyncReply
    result: SyncResult


@attrs.frozen
class Assigned:
    """A save makes the leader's assignment of this generation durable. ``assignments``: by member id."""

    generation: int
    assignments: dict[str, bytes]


@attrs.frozen
class Replaced:
    """A save makes the new member id of a static member durable. If it fails, the member becomes ``before`` again."""

    generation: int
    request: JoinRequest
    old_leader: str
    before: MemberSnapshot


@attrs.frozen(eq=False)
class Save:
    """Effect: make the snapshot durable, then call the group's ``saved``. Saves of one group are made durable in order.

    ``then`` says what waits for it; None if nothing does.
    """

    snapshot: GroupSnapshot
    then: Assigned | Replaced | None


Effect = JoinAnswer | SyncAnswer | Save


@attrs.frozen
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@attrs.frozen
class GroupDescription:
    """What DescribeGroups shows. Metadata, assignments and protocol are only shown if the group is stable."""

    group_id: str
    state: ClassicGroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberDescription, ...] = ()


@attrs.frozen
class GroupOverview:
    """What ListGroups shows."""

    group_id: str
    type: GroupType
    state: str  # by Kafka's name
    protocol_type: str


@attrs.frozen
class GroupFigures:
    """What the HTTP API and the metrics show of a group."""

    group_id: str
    type: GroupType
    state: str  # by Kafka's name
    protocol_type: str
    protocol_name: str
    generation: int  # or the group epoch
    members: int
    topics: tuple[str, ...]  # of which it has committed offsets
    rebalances: int = 0  # since this process has started
