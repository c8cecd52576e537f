"""The members of a consumer group, and the states of the members and of the group, by Kafka's names.

Pure bookkeeping of a ``ConsumerGroup``, under the group's lock. ``ConsumerMembers`` has dynamic and static members of the
consumer and of the classic protocol. It also keeps totals over all members, so that no heartbeat has to look at all of them:
subscriptions, assignors, classic protocols, bytes.

A member is *reconciled* towards the target assignment: at each of its heartbeats it goes as far as it can. ``TABLE`` has the
states, ``ADVANCES`` the events with which its epoch becomes the target's.

REVOCATION_REQUIRED: the member has partitions that the target, or its subscription, takes from it, and its client has not
confirmed giving them up. They stay the member's until it does. RELEASE_AWAITED: it has nothing to give up, and gets the free
partitions of its target; the rest still belongs to other members. TARGET_REACHED: it has exactly the partitions of its target.
SUBSCRIPTION_SHRUNK: it no longer subscribes to a topic whose partitions its client has given up already; there is no newer
target.

UNKNOWN is the state of a member whose row was written by a newer version: it goes to its target like any other. A pair that the
table lacks is a bug in the broker (AssertionError).

The state of a group is not kept but follows from its members and epochs:

=======  ==================================  =================  ===========
members  group epoch                         all members        group
=======  ==================================  =================  ===========
none     any                                 -                  EMPTY
some     greater than the assignment epoch   any                ASSIGNING
some     equal to the assignment epoch       some not STABLE    RECONCILING
some     equal to the assignment epoch       STABLE and there   STABLE
=======  ==================================  =================  ===========

*There* means at the assignment epoch. A group that was deleted, whose broker has stopped, or that has become classic, is DEAD.

Tests: tests/kafka/groups/consumer/test_consumer_group.py,
tests/kafka/groups/consumer/test_consumer_machine.py.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final, NamedTuple

import attrs

from broker.kafka.groups.consumer.values import NO_PARTITIONS, Assignment, HeartbeatResult
from broker.kafka.groups.coordinated import Subscriptions
from broker.kafka.groups.values import MEMBER_BYTES, PROTOCOL_BYTES, Protocols
from broker.transitions import Transitions


class MemberState(Enum):
    """The value is stored in the catalogue."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked"
    UNRELEASED_PARTITIONS = "unreleased"
    UNKNOWN = "unknown"


class MemberEvent(Enum):
    REVOCATION_REQUIRED = auto()
    RELEASE_AWAITED = auto()
    TARGET_REACHED = auto()
    SUBSCRIPTION_SHRUNK = auto()


class GroupState(Enum):
    """The value is the name that ListGroups and ConsumerGroupDescribe show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


TABLE = Transitions(
    MemberState,
    MemberEvent,
    """
    STABLE                 REVOCATION_REQUIRED  UNREVOKED_PARTITIONS
    STABLE                 RELEASE_AWAITED      UNRELEASED_PARTITIONS
    STABLE                 TARGET_REACHED       STABLE
    STABLE                 SUBSCRIPTION_SHRUNK  STABLE
    UNREVOKED_PARTITIONS   REVOCATION_REQUIRED  UNREVOKED_PARTITIONS
    UNREVOKED_PARTITIONS   RELEASE_AWAITED      UNRELEASED_PARTITIONS
    UNREVOKED_PARTITIONS   TARGET_REACHED       STABLE
    UNRELEASED_PARTITIONS  REVOCATION_REQUIRED  UNREVOKED_PARTITIONS
    UNRELEASED_PARTITIONS  RELEASE_AWAITED      UNRELEASED_PARTITIONS
    UNRELEASED_PARTITIONS  TARGET_REACHED       STABLE
    UNKNOWN                REVOCATION_REQUIRED  UNREVOKED_PARTITIONS
    UNKNOWN                RELEASE_AWAITED      UNRELEASED_PARTITIONS
    UNKNOWN                TARGET_REACHED       STABLE
    """,
)
next_state = TABLE.next

# Events that advance the member to the target's epoch; with the others its epoch stays.
ADVANCES: Final = frozenset({MemberEvent.RELEASE_AWAITED, MemberEvent.TARGET_REACHED})


def group_state(members: int, group_epoch: int, assignment_epoch: int, all_reconciled: bool) -> GroupState:
    """The second table of the module's docstring."""
    if not members:
        return GroupState.EMPTY
    if group_epoch > assignment_epoch:
        return GroupState.ASSIGNING
    return GroupState.STABLE if all_reconciled else GroupState.RECONCILING


# Measured with tracemalloc on CPython 3.11 and rounded up, for a member's own copy of a topic name and for an assigned partition.
NAME_BYTES = 128
PARTITION_BYTES = 128
TOPIC_BYTES = 512


class Subscription(NamedTuple):
    """``regex``: empty for none. Equal subscriptions of a group's members are one object."""

    names: frozenset[str]
    regex: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(NAME_BYTES + len(name) for name in self.names) + len(self.regex)


NOTHING_SUBSCRIBED = Subscription(frozenset())


@attrs.frozen
class ClassicMetadata:
    """The metadata that a member of the classic protocol has joined with."""

    session_timeout_ms: int
    protocols: Protocols


@attrs.define(eq=False)
class ConsumerMember:
    """A member. ``assigned`` and ``revoking`` are disjoint, and all of their partitions belong to this member alone.

    ``epoch`` is -2 while a static member has left for a while.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscription: Subscription = NOTHING_SUBSCRIBED
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NO_PARTITIONS
    revoking: Assignment = NO_PARTITIONS
    # The last save that has this member's row.
    saved_in: int = 0
    # The answer to a heartbeat that changes nothing; None if it has to be made again.
    unchanged: HeartbeatResult | None = None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def size_bytes(self) -> int:
        """Approximate memory without the subscription, which members share, and the assignment."""
        texts = len(self.member_id) * 2 + len(self.instance_id or "") * 2 + len(self.rack_id or "")
        texts += len(self.client_id) + len(self.client_host)
        if self.classic is not None:
            texts += sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in self.classic.protocols)
        return MEMBER_BYTES + texts


def size_of(assignment: Assignment) -> int:
    """Approximate memory of an assignment."""
    return sum(TOPIC_BYTES + PARTITION_BYTES * len(partitions) for partitions in assignment.values())


class ConsumerMembers:
    """Members by id, in the order of their joins."""

    def __init__(self) -> None:
        self.classic = 0  # members of the classic protocol
        self.subscriptions: Subscriptions[Subscription] = Subscriptions()
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, ConsumerMember] = {}  # by instance id
        self._assignors: Counter[str] = Counter()
        self._protocols: Counter[str] = Counter()  # classic protocol -> classic members that support it
        self._member_bytes = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._members.values())

    def get(self, member_id: str) -> ConsumerMember | None:
        return self._members.get(member_id)

    def static(self, instance_id: str) -> ConsumerMember | None:
        return self._static.get(instance_id)

    @property
    def size_bytes(self) -> int:
        """Approximate memory with subscriptions and assignments."""
        return self._member_bytes + self.subscriptions.size_bytes

    @property
    def regexes(self) -> frozenset[str]:
        return frozenset(subscription.regex for subscription in self.subscriptions if subscription.regex)

    def preferred_assignor(self, supported: tuple[str, ...]) -> str:
        """The assignor that most members name; in a tie, the first in ``supported``."""
        return max(supported, key=lambda name: (self._assignors[name], -supported.index(name)))

    def supports_one_of(self, protocols: Protocols) -> bool:
        """Whether all classic members support one of these protocols."""
        return any(self._protocols[name] == self.classic for name, _ in protocols)

    def add(self, member: ConsumerMember) -> None:
        assert member.member_id not in self._members, member.member_id
        self._members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._static, member.instance_id
            self._static[member.instance_id] = member
        self._count(member, 1)

    def remove(self, member: ConsumerMember) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._count(member, -1)

    @contextmanager
    def changing(self, member: ConsumerMember) -> Iterator[None]:
        """The fields of the member change inside of the block, except its id and its assignment."""
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._count(member, -1)
        yield
        if member.instance_id is not None:
            self._static[member.instance_id] = member
        self._count(member, 1)

    def rename(self, member: ConsumerMember, member_id: str) -> None:
        """A static member has come back under another member id."""
        del self._members[member.member_id]
        self._member_bytes -= member.size_bytes
        member.member_id = member_id
        self._member_bytes += member.size_bytes
        self._members[member_id] = member

    def assign(self, member: ConsumerMember, assigned: Assignment, revoking: Assignment) -> None:
        self._member_bytes -= size_of(member.assigned) + size_of(member.revoking)
        member.assigned, member.revoking = assigned, revoking
        self._member_bytes += size_of(assigned) + size_of(revoking)

    def _count(self, member: ConsumerMember, change: int) -> None:
        self._member_bytes += change * (member.size_bytes + size_of(member.assigned) + size_of(member.revoking))
        self.subscriptions.count(member.subscription, change)
        if member.server_assignor is not None:
            self._assignors[member.server_assignor] += change
        if member.classic is not None:
            self.classic += change
            for name in {name for name, _ in member.classic.protocols}:  # a repeated name counts once
                self._protocols[name] += change
