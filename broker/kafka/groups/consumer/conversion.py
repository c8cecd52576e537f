"""Online upgrade and downgrade: a classic group of consumers becomes a consumer group and the other way round, with its
members.

Pure, under the group's lock. The first heartbeat of a consumer group's member upgrades a classic group (``group.consumer.
migration.policy`` ``upgrade`` or ``bidirectional``); when the last such member has gone and classic ones are left the group is
downgraded (``downgrade`` or ``bidirectional``).

What classic members say and are told in the embedded ConsumerProtocol, in terms of topic ids.

Pure functions. The bytes come from clients: they are read with bounds, and what they claim of partitions that are not there is
left out.

Tests: tests/kafka/groups/consumer/test_group_classic_members.py.
"""

from uuid import UUID

import attrs

from broker.errors import RequestError
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer.member_states import MemberState
from broker.kafka.groups.consumer.members import ClassicMetadata, ConsumerMember, Subscription
from broker.kafka.groups.consumer.membership import Membership
from broker.kafka.groups.consumer.rows import GROUP_ROW
from broker.kafka.groups.consumer.values import Assignment, BecomeClassic, TopicPartitions, TopicsImage
from broker.kafka.groups.values import GroupSnapshot, MemberSnapshot, Protocols
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import (
    NEWEST_VERSION,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)

# The protocol type of consumers.
CONSUMER = "consumer"
# Versions before have no owned partitions, and their clients give everything up before they join.
_FIRST_WITH_OWNED = 1


@attrs.frozen
class ClassicSubscription:
    """``owned``: what the client still has."""

    subscription: Subscription
    owned: TopicPartitions
    rack_id: str | None


def read_subscription(protocols: Protocols, topics: TopicsImage) -> ClassicSubscription:
    """All protocols of a consumer have the same. Raises ProtocolError."""
    found = parse_subscription(protocols[0][1])
    owned = _with_ids(found.owned, topics) if found.version >= _FIRST_WITH_OWNED else {}
    return ClassicSubscription(
        Subscription(frozenset(found.topics)),
        tuple((topic_id, tuple(partitions)) for topic_id, partitions in owned.items()),
        found.rack or None,
    )


def read_assignment(data: bytes, topics: TopicsImage) -> tuple[Assignment, bool]:
    """What the leader has assigned to a member, and whether it has sent user data with it. Raises ProtocolError."""
    found = parse_assignment(data)
    return _with_ids(found.partitions, topics), bool(found.user_data)


def write_assignment(assigned: Assignment, protocols: Protocols, topics: TopicsImage) -> bytes:
    """In the version that the member has joined with. A topic that was deleted is left out."""
    named = {
        topics.name_of[topic_id]: sorted(partitions)
        for topic_id, partitions in assigned.items()
        if topic_id in topics.name_of
    }
    return encode_assignment(named, version=_version(protocols))


def _version(protocols: Protocols) -> int:
    version = int.from_bytes(protocols[0][1][:2], "big", signed=True) if protocols else 0
    return min(max(version, 0), NEWEST_VERSION)


def _with_ids(partitions: dict[str, list[int]], topics: TopicsImage) -> dict[UUID, frozenset[int]]:
    found = {}
    for name, numbers in partitions.items():
        info = topics.by_name.get(name)
        if info is not None:
            known = frozenset(number for number in numbers if 0 <= number < info.partitions)
            if known:
                found[info.topic_id] = known
    return found


# The assignors of Kafka's clients: nobody needs the user data of their assignments. librdkafka sends back what a member has said
# for cooperative-sticky. Kafka takes any user data for a custom assignor's, and refuses such groups.
_USUAL_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


def fill_from_classic(core: Membership, classic: ClassicGroup, topics: TopicsImage, now: float) -> None:
    """Put the members of a classic group into an empty membership.

    Each has what its last assignment says, at the generation as its epoch. What it had when it joined, and has not been
    assigned again, it has to give up first: its client may not have heard of the new assignment yet. Raises RequestError if the
    group cannot be upgraded."""
    _check_upgrade(core, classic)
    taken: set[tuple[UUID, int]] = set()
    members: list[ConsumerMember] = []
    had: list[Assignment] = []
    for each in classic.members:
        protocols = tuple(sorted(each.protocols, key=lambda protocol: protocol[0] != classic.protocol_name))
        try:
            said = read_subscription(protocols, topics)
            assigned, has_user_data = read_assignment(each.assignment, topics)
        except ProtocolError as error:
            raise _no_upgrade(core, "the embedded consumer protocol is malformed") from error
        if has_user_data and classic.protocol_name not in _USUAL_ASSIGNORS:
            raise _no_upgrade(
                core,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade",
            )
        members.append(
            ConsumerMember(
                each.member_id,
                each.group_instance_id,
                said.rack_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                core.members.intern(said.subscription),
                None,
                ClassicMetadata(each.session_timeout_ms, protocols),
                classic.generation,
                classic.generation,
                assigned=_not_taken(assigned, taken),
            )
        )
        had.append({topic_id: frozenset(partitions) for topic_id, partitions in said.owned})
    for member, owned in zip(members, had, strict=True):
        member.revoking = _not_taken(owned, taken)
        if member.revoking:
            member.state = MemberState.UNREVOKED_PARTITIONS
        core.add(member)
        core.ownership.take(member, member.assigned)
        core.ownership.take(member, member.revoking)
        core.targets.assignments[member.member_id] = member.assigned
        core.expect_heartbeat(member, now)
    core.targets.restore(classic.generation, classic.generation, "")
    core.saver.mark(GROUP_ROW)
    core.saver.replace_classic()


def may_become_classic(core: Membership) -> bool:
    """Only classic members are left, and a classic group may have so many. After a restart nothing is known of topics at first,
    whose names the classic group needs: then it becomes one when the next member joins."""
    members = core.members
    return (
        0 < len(members) == members.classic
        and core.targets.topics.generation >= 0
        and core.limits.migration_policy.downgrades
        and len(members) <= core.limits.classic_max_size
    )


def become_classic(core: Membership, now: float) -> BecomeClassic:
    """The group's last effect. Its generation is the assignment epoch: most members are there, and none is ahead of it."""
    core.parked.refuse_all(ErrorCode.rebalance_in_progress, now)
    members = []
    for member in core.members:
        assert member.classic is not None
        protocols = member.classic.protocols
        members.append(
            MemberSnapshot(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                protocols,
                write_assignment(member.assigned, protocols, core.targets.topics),
            )
        )
    name = next(name for name, _ in members[0].protocols if all(name in dict(each.protocols) for each in members))
    generation = core.targets.assignment_epoch
    snapshot = GroupSnapshot(CONSUMER, generation, name, None, tuple(members))
    return BecomeClassic(snapshot, core.stored_rows(), core.saver.next_note())


def _check_upgrade(core: Membership, classic: ClassicGroup) -> None:
    if not core.limits.migration_policy.upgrades:
        raise _no_upgrade(core, "online upgrade is disabled")
    if classic.protocol_type != CONSUMER:
        raise _no_upgrade(core, "the group does not use the consumer embedded protocol")
    if len(classic.members) > core.limits.max_size:
        raise _no_upgrade(core, "the group size exceeds the consumer group maximum size")


def _no_upgrade(core: Membership, reason: str) -> RequestError:
    return RequestError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade classic group {core.group_id} to consumer group because {reason}.",
    )


def _not_taken(assigned: Assignment, taken: set[tuple[UUID, int]]) -> Assignment:
    """Clients assign in a classic group, and theirs may give a partition to two members. The first keeps it."""
    found: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in assigned.items():
        free = frozenset(each for each in partitions if (topic_id, each) not in taken)
        if free:
            found[topic_id] = free
            taken.update((topic_id, each) for each in free)
    return found
