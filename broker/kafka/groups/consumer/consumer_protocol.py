"""What classic members say and are told in the embedded ConsumerProtocol, in terms of topic ids.

Pure functions. The bytes come from clients: they are read with bounds, and what they claim of partitions that are not there is
left out.

Tests: tests/kafka/groups/consumer/test_group_classic_members.py.
"""

from uuid import UUID

import attrs

from broker.kafka.groups.consumer.members import Subscription
from broker.kafka.groups.consumer.values import Assignment, TopicPartitions, TopicsImage
from broker.kafka.groups.values import Protocols
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
