"""Groups: their list, state and members, how they are deleted, and the start offsets of share groups.

Kafka has several kinds of groups. Classic groups and those of the protocol of KIP-848 are consumer groups; the
functions for share groups (KIP-932) are at the end. Groups of Kafka Streams are listed, and described where the broker
describes them as another kind.

Start offsets of share groups can be read, set and deleted on any broker that serves these APIs (Apache Kafka from 4.1
on).

Tests: tests/cli/test_groups.py,
tests/cli/test_share_groups.py.
"""

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from broker.client.kafka.admin.requests import ask, has, refused
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import COORDINATOR_MOVED
from broker.client.kafka.routing import GROUP, Routing
from broker.client.kafka.values import TopicPartition
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import parse_assignment

DEAD = "Dead"
SHARE = "share"
# The states in which no member can prevent a change of offsets.
UNKNOWN = "Unknown"
WITHOUT_MEMBERS = frozenset({"Empty", DEAD, UNKNOWN})


@attrs.frozen
class ListedGroup:
    """``state`` and ``type`` are empty where the broker does not tell them (before Kafka 2.6 and 3.8)."""

    group: str
    protocol_type: str
    state: str
    type: str


@attrs.frozen
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@attrs.frozen
class Group:
    """``assignor``: the assignor on which the members have agreed, such as ``range``. ``coordinator``: host:port."""

    group: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...]

    @property
    def has_members(self) -> bool:
        """Whether members may prevent a change. A broker that does not tell the state refuses such a change itself."""
        return bool(self.members) or self.state not in WITHOUT_MEMBERS


def list_groups(routing: Routing) -> list[ListedGroup]:
    """The groups that all brokers coordinate, by name."""

    def attempt() -> list[ListedGroup]:
        groups: dict[str, ListedGroup] = {}
        for connection in routing.every_broker():
            answer = ask(connection, ApiKey.LIST_GROUPS, (0, 5), {})
            if answer.error_code:
                refused(answer.error_code, None, f"The broker at {connection.where} does not list its groups")
            for listed in answer.groups:
                state, kind = getattr(listed, "group_state", "") or "", getattr(listed, "group_type", "") or ""
                groups[listed.group_id] = ListedGroup(listed.group_id, listed.protocol_type, state, kind.lower())
        return [groups[name] for name in sorted(groups)]

    return routing.retrying(attempt)


def describe_group(routing: Routing, group: str) -> Group:
    """A group that does not exist has the state Dead and no members; a group that the broker cannot describe is
    Unknown."""

    def attempt() -> Group:
        connection = routing.coordinator(GROUP, group)
        if has(connection, ApiKey.CONSUMER_GROUP_DESCRIBE):
            description = _describe_new(routing, connection, group)
            if description is not None:
                return description
        if has(connection, ApiKey.SHARE_GROUP_DESCRIBE, 1):
            description = _describe_share(routing, connection, group)
            if description is not None:
                return description
        if not has(connection, ApiKey.DESCRIBE_GROUPS):
            return Group(group, "", UNKNOWN, "", "", connection.where, ())
        return _describe_classic(routing, connection, group)

    return routing.retrying(attempt)


def _describe_new(routing: Routing, connection: Connection, group: str) -> Group | None:
    """The group as described by KIP-848; None if it is of another kind."""
    answer = ask(connection, ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), {"group_ids": [group]})
    (described,) = answer.groups
    if described.error_code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
        return None
    check(routing, group, described.error_code, described.error_message)
    members = tuple(_member(member, member.instance_id) for member in described.members)
    return Group(
        group, "consumer", described.group_state, "consumer", described.assignor_name, connection.where, members
    )


def _describe_share(routing: Routing, connection: Connection, group: str) -> Group | None:
    """The share group (KIP-932); None if it is of another kind. A partition may be assigned to several of its
    members."""
    answer = ask(connection, ApiKey.SHARE_GROUP_DESCRIBE, (1, 1), {"group_ids": [group]})
    (described,) = answer.groups
    if described.error_code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
        return None
    check(routing, group, described.error_code, described.error_message)
    members = tuple(_member(member, None) for member in described.members)
    return Group(group, SHARE, described.group_state, SHARE, described.assignor_name, connection.where, members)


def _member(member: Any, instance_id: str | None) -> Member:
    """A member of a group of KIP-848 or KIP-932."""
    partitions = tuple(
        (topic.topic_name, partition) for topic in member.assignment.topic_partitions for partition in topic.partitions
    )
    return Member(member.member_id, instance_id, member.client_id, member.client_host.lstrip("/"), partitions)


def _describe_classic(routing: Routing, connection: Connection, group: str) -> Group:
    answer = ask(connection, ApiKey.DESCRIBE_GROUPS, (0, 6), {"groups": [group]})
    (described,) = answer.groups
    if described.error_code == ErrorCode.group_id_not_found:
        return Group(group, "", DEAD, "", "", connection.where, ())
    check(routing, group, described.error_code, getattr(described, "error_message", None))
    members = tuple(_classic_member(member) for member in described.members)
    return Group(
        group,
        "classic",
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        connection.where,
        members,
    )


def _classic_member(member: Any) -> Member:
    try:
        topics = parse_assignment(member.member_assignment or b"").partitions
    except ProtocolError:  # not a consumer group: its members have a format of their own
        topics = {}
    partitions = tuple((topic, partition) for topic, numbers in sorted(topics.items()) for partition in numbers)
    instance = getattr(member, "group_instance_id", None)
    return Member(member.member_id, instance, member.client_id, member.client_host.lstrip("/"), partitions)


def delete_group(routing: Routing, group: str) -> None:
    """Raises BrokerAnswerError, with the code NON_EMPTY_GROUP while it has members or GROUP_ID_NOT_FOUND."""

    def attempt() -> None:
        connection = routing.coordinator(GROUP, group)
        answer = ask(connection, ApiKey.DELETE_GROUPS, (0, 2), {"groups_names": [group]})
        for result in answer.results:
            check(routing, group, result.error_code, None)

    routing.retrying(attempt)


def delete_offsets(routing: Routing, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Delete the offsets that the group has committed for these partitions. The error code of each, 0 for success."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append({"partition_index": partition})
    fields = {"group_id": group, "topics": [{"name": name, "partitions": own} for name, own in topics.items()]}

    def attempt() -> dict[TopicPartition, int]:
        answer = ask(routing.coordinator(GROUP, group), ApiKey.OFFSET_DELETE, (0, 0), fields)
        check(routing, group, answer.error_code, None)
        return {
            (topic.name, partition.partition_index): int(partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
        }

    return routing.retrying(attempt)


def check(routing: Routing, group: str, code: int, message: str | None) -> None:
    """Raises for an error code."""
    if code in COORDINATOR_MOVED:
        routing.forget_coordinator(GROUP, group)
    if code:
        refused(code, message, f"The group {group!r}")


@attrs.frozen
class ShareOffset:
    """``start``: the first offset that the group has not finished. ``lag``: the number of unfinished records from there
    on; None if the broker does not know it."""

    start: int
    lag: int | None


def start_offsets(routing: Routing, group: str) -> dict[TopicPartition, ShareOffset]:
    """The start offsets of all partitions that the group has begun to read."""

    def attempt() -> dict[TopicPartition, ShareOffset]:
        fields = {"groups": [{"group_id": group, "topics": None}]}
        answer = ask(routing.coordinator(GROUP, group), ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, (0, 1), fields)
        (described,) = answer.groups
        check(routing, group, described.error_code, described.error_message)
        offsets = {}
        for topic in described.topics:
            for partition in topic.partitions:
                if not partition.error_code and partition.start_offset >= 0:
                    lag = getattr(partition, "lag", -1)  # from version 1 on
                    offset = ShareOffset(partition.start_offset, lag if lag >= 0 else None)
                    offsets[topic.topic_name, partition.partition_index] = offset
        return offsets

    return routing.retrying(attempt)


def set_start_offsets(routing: Routing, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the error code of each partition, 0 for success. Creates a missing group. Raises BrokerAnswerError, with
    the code NON_EMPTY_GROUP while the group has members."""
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "start_offset": offset})
    fields = {"group_id": group, "topics": [{"topic_name": name, "partitions": own} for name, own in topics.items()]}

    def attempt() -> dict[TopicPartition, int]:
        answer = ask(routing.coordinator(GROUP, group), ApiKey.ALTER_SHARE_GROUP_OFFSETS, (0, 0), fields)
        check(routing, group, answer.error_code, answer.error_message)
        return {
            (topic.topic_name, partition.partition_index): _retried(routing, group, partition.error_code)
            for topic in answer.responses
            for partition in topic.partitions
        }

    return routing.retrying(attempt)


def forget_topics(routing: Routing, group: str, topics: Collection[str]) -> dict[str, int]:
    """Return the error code of each topic, 0 for success. Raises as ``set_start_offsets``."""
    fields = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}

    def attempt() -> dict[str, int]:
        answer: Any = ask(routing.coordinator(GROUP, group), ApiKey.DELETE_SHARE_GROUP_OFFSETS, (0, 0), fields)
        check(routing, group, answer.error_code, answer.error_message)
        return {response.topic_name: _retried(routing, group, response.error_code) for response in answer.responses}

    return routing.retrying(attempt)


def _retried(routing: Routing, group: str, code: int) -> int:
    """Return the code of a part of an answer. Raises if the whole request must be sent again."""
    if code in COORDINATOR_MOVED:
        check(routing, group, code, None)
    return int(code)
