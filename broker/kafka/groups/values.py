"""The requests, answers, effects and snapshots of groups as plain values, and the memory of the coordinators.

``subscribed_topics`` reads the topics of a consumer group's members from the metadata that they join with. Kafka's coordinator
reads only the common beginning of every version of the ConsumerProtocol subscription: version (int16), then an array of topic
names. The rest belongs to the clients.

``CoordinatorMemory`` counts the memory of groups, committed offsets and transactional ids against one bound. The sizes are
estimates of CPython's memory for each object, so that many small objects are bounded as well: an empty group counts as much as
4 KB of metadata. Any thread.

Tests: tests/kafka/groups/test_group_machine.py,
tests/kafka/groups/test_bounds.py.
"""

from collections.abc import Callable, Iterable

import attrs

from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.group import GroupType
from broker.runtime.threads import Lock
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import parse_subscribed_topics

# The member id of a client that has not been given one yet.
UNKNOWN_MEMBER = ""
NO_GENERATION = -1

# The protocols that a member supports, in its order of preference: name and opaque metadata.
Protocols = tuple[tuple[str, bytes], ...]


@attrs.frozen
class JoinRequest:
    """A JoinGroup. ``new_member_id`` is the id that the client is given if it needs one."""

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
    """A member as the leader is told of it."""

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
    """A SyncGroup. Protocol type and name are None in versions that do not have these fields."""

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


# Where an answer goes. The group keeps these for parked requests and returns them in its effects; it never calls them.
JoinReply = Callable[[JoinResult], None]
SyncReply = Callable[[SyncResult], None]


@attrs.frozen
class MemberSnapshot:
    """A saved member."""

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
    """A saved generation. ``leader`` is None if there are no members, or if the group was a consumer group until now."""

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

    ``then`` is the action that waits for it, or None.
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
    """DescribeGroups' view of a group. Metadata, assignments and protocol are only shown if the group is stable."""

    group_id: str
    state: ClassicGroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberDescription, ...] = ()


@attrs.frozen
class GroupOverview:
    """ListGroups' view of a group."""

    group_id: str
    type: GroupType
    state: str  # by Kafka's name
    protocol_type: str


@attrs.frozen
class GroupFigures:
    """A group in the HTTP API and the metrics."""

    group_id: str
    type: GroupType
    state: str  # by Kafka's name
    protocol_type: str
    protocol_name: str
    generation: int  # or the group epoch
    members: int
    topics: tuple[str, ...]  # with committed offsets
    rebalances: int = 0  # since this process has started


# The protocol type of consumers; Kafka Connect and others have their own and their own metadata.
CONSUMER = "consumer"
# Names that are read of one generation; more would hold the group's lock for too long. 0.1 s on a slow core; 1,000 members with
# 100 topics each.
_NAMES_MAX = 100_000


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None if a member's metadata cannot be read, or if there are too many topics."""
    topics: set[str] = set()
    left = _NAMES_MAX
    try:
        for subscription in set(metadata):  # most members send the same
            names = parse_subscribed_topics(subscription, left)
            left -= len(names)
            topics.update(names)
    except ProtocolError:
        return None
    return frozenset(topics)


# Measured with tracemalloc on CPython 3.11 and rounded up: the state machine with its lock, members and deadlines.
GROUP_BYTES = 4096
# A member with its deadline, and with strings of the length that clients usually send.
MEMBER_BYTES = 1024
# A client that was given a member id and has not come back.
PENDING_MEMBER_BYTES = 512
# A protocol that a member names, besides its name and metadata.
PROTOCOL_BYTES = 128
# A committed offset, besides its metadata and the topic's name, which the offsets of a topic share.
OFFSET_BYTES = 384
# A share partition with only its row in memory, besides the group's id.
SHARE_PARTITION_BYTES = 512
# A transactional id with its state, its lock and its timer.
TRANSACTION_BYTES = 2048
# A partition or a group of a transaction.
PARTICIPANT_BYTES = 192


class CoordinatorMemory:
    """``max_bytes`` in all. Loaded state is kept even if the bound was lowered since."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._lock = Lock()

    @property
    def free_bytes(self) -> int:
        """The memory that may still be taken; negative if more is taken than the bound allows."""
        return self._max_bytes - self._used_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def add(self, size_bytes: int) -> None:
        """Count a growth, or a negative growth. Never refuses: callers check ``free_bytes`` before they grow."""
        with self._lock:
            self._used_bytes += size_bytes
