"""What goes into a group's state machine and what comes out of it. Plain values; nothing here decides anything."""

from collections.abc import Callable
from enum import Enum
from typing import Any

import attrs

from protocol.kafka.errors import ErrorCode

# The member id of a member that has none yet.
UNKNOWN_MEMBER = ""
NO_GENERATION = -1

# A member's protocols in its order of preference: name and opaque metadata.
Protocols = tuple[tuple[str, bytes], ...]


class GroupState(Enum):
    """The states, by the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@attrs.frozen
class JoinRequest:
    """One JoinGroup. ``new_member_id`` is the id it gets if it has to be given one."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_member_id: str
    # KIP-394 (version 4): a dynamic member is told its id first, and is a member once it comes back with it.
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
    members: tuple[JoinMember, ...] = ()  # only the leader gets them


@attrs.frozen
class SyncRequest:
    """One SyncGroup. Protocol type and name are None in versions that do not carry them."""

    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = attrs.field(factory=dict)  # only the leader sends them


@attrs.frozen
class SyncResult:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# Where an answer goes. The state machine keeps them for parked members and hands them back; it never calls one.
JoinReply = Callable[[JoinResult], None]
SyncReply = Callable[[SyncResult], None]


@attrs.frozen
class MemberSnapshot:
    """One member as it is kept across a restart."""

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
    """A generation as it is kept across a restart."""

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


@attrs.frozen(eq=False)
class Save:
    """Effect: make this durable, then tell the group by ``saved``. Saves of one group are made durable in their order.

    ``then`` is the group's own: what waits for it.
    """

    snapshot: GroupSnapshot
    then: Any


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
    """What DescribeGroups and ListGroups show. Metadata, assignments and protocol are shown of a stable group only."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberDescription, ...] = ()
