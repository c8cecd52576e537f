"""Groups: which there are, their state and members, and how they are deleted.

Kafka has several kinds of groups. Classic groups and those of the protocol of KIP-848 are consumer groups; what only share
groups have (KIP-932) is at the end. Groups of Kafka Streams are listed, and described where the broker describes them as one of
the others.

Where share groups begin in each partition, and how that is set and forgotten: for any broker that serves these APIs, which
Apache Kafka does from 4.1 on.

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
# The states in which no member can be in the way of a change of offsets.
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
    """``assignor``: what the members have agreed on, such as ``range``. ``coordinator``: host:port."""

    group: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...]

    @property
    def has_members(self) -> bool:
        """Where the broker does not tell the state, it refuses itself what members are in the way of."""
        return bool(self.members) or self.state not in WITHOUT_MEMBERS


def list_groups(routing: Routing) -> list[ListedGroup]:
    """The groups that all brokers coordinate, by name."""

    def attempt() -> list[ListedGroup]:
        found: dict[str, ListedGroup] = {}
        for connection in routing.every_broker():
            answer = ask(connection, ApiKey.LIST_GROUPS, (0, 5), {})
            if answer.error_code:
                refused(answer.error_code, None, f"The broker at {connection.where} does not list its groups")
            for one in answer.groups:
                state, kind = getattr(one, "group_state", "") or "", getattr(one, "group_type", "") or ""
                found[one.group_id] = ListedGroup(one.group_id, one.protocol_type, state, kind.lower())
        return [found[name] for name in sorted(found)]

    return routing.retrying(attempt)


def describe_group(routing: Routing, group: str) -> Group:
    """A group that does not exist has the state Dead and no members; one that the broker cannot describe is Unknown."""

    def attempt() -> Group:
        connection = routing.coordinator(GROUP, group)
        if has(connection, ApiKey.CONSUMER_GROUP_DESCRIBE):
            found = _describe_new(routing, connection, group)
            if found is not None:
                return found
        if has(connection, ApiKey.SHARE_GROUP_DESCRIBE, 1):
            found = _describe_share(routing, connection, group)
            if found is not None:
                return found
        if not has(connection, ApiKey.DESCRIBE_GROUPS):
            return Group(group, "", UNKNOWN, "", "", connection.where, ())
        return _describe_classic(routing, connection, group)

    return routing.retrying(attempt)


def _describe_new(routing: Routing, connection: Connection, group: str) -> Group | None:
    """As a group of KIP-848; None if it is none."""
    answer = ask(connection, ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), {"group_ids": [group]})
    (one,) = answer.groups
    if one.error_code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
        return None
    check(routing, group, one.error_code, one.error_message)
    members = tuple(_member(member, member.instance_id) for member in one.members)
    return Group(group, "consumer", one.group_state, "consumer", one.assignor_name, connection.where, members)


def _describe_share(routing: Routing, connection: Connection, group: str) -> Group | None:
    """As a share group (KIP-932); None if it is none. A partition may have several of its members."""
    answer = ask(connection, ApiKey.SHARE_GROUP_DESCRIBE, (1, 1), {"group_ids": [group]})
    (one,) = answer.groups
    if one.error_code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
        return None
    check(routing, group, one.error_code, one.error_message)
    members = tuple(_member(member, None) for member in one.members)
    return Group(group, SHARE, one.group_state, SHARE, one.assignor_name, connection.where, members)


def _member(member: Any, instance_id: str | None) -> Member:
    """Of a group of a newer protocol."""
    partitions = tuple(
        (topic.topic_name, partition) for topic in member.assignment.topic_partitions for partition in topic.partitions
    )
    return Member(member.member_id, instance_id, member.client_id, member.client_host.lstrip("/"), partitions)


def _describe_classic(routing: Routing, connection: Connection, group: str) -> Group:
    answer = ask(connection, ApiKey.DESCRIBE_GROUPS, (0, 6), {"groups": [group]})
    (one,) = answer.groups
    if one.error_code == ErrorCode.group_id_not_found:
        return Group(group, "", DEAD, "", "", connection.where, ())
    check(routing, group, one.error_code, getattr(one, "error_message", None))
    members = tuple(_classic_member(member) for member in one.members)
    return Group(group, "classic", one.group_state, one.protocol_type, one.protocol_data, connection.where, members)


def _classic_member(member: Any) -> Member:
    try:
        topics = parse_assignment(member.member_assignment or b"").partitions
    except ProtocolError:  # not a group of consumers: its members have a format of their own
        topics = {}
    partitions = tuple((topic, partition) for topic, numbers in sorted(topics.items()) for partition in numbers)
    instance = getattr(member, "group_instance_id", None)
    return Member(member.member_id, instance, member.client_id, member.client_host.lstrip("/"), partitions)


def delete_group(routing: Routing, group: str) -> None:
    """Raises BrokerAnswerError, with the code NON_EMPTY_GROUP while it has members or GROUP_ID_NOT_FOUND."""

    def attempt() -> None:
        connection = routing.coordinator(GROUP, group)
        answer = ask(connection, ApiKey.DELETE_GROUPS, (0, 2), {"groups_names": [group]})
        for one in answer.results:
            check(routing, group, one.error_code, None)

    routing.retrying(attempt)


def delete_offsets(routing: Routing, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Forget what the group has committed for these partitions. The error code of each, 0 for success."""
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
    """Raises for an answer that is an error."""
    if code in COORDINATOR_MOVED:
        routing.forget_coordinator(GROUP, group)
    if code:
        refused(code, message, f"The group {group!r}")


@attrs.frozen
class ShareOffset:
    """Where a group begins; before it, everything is done with. ``lag``: how many records are not done with from there on; None
    if the broker does not know it."""

    start: int
    lag: int | None


def start_offsets(routing: Routing, group: str) -> dict[TopicPartition, ShareOffset]:
    """Of all partitions that the group has begun with."""

    def attempt() -> dict[TopicPartition, ShareOffset]:
        fields = {"groups": [{"group_id": group, "topics": None}]}
        answer = ask(routing.coordinator(GROUP, group), ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, (0, 1), fields)
        (one,) = answer.groups
        check(routing, group, one.error_code, one.error_message)
        found = {}
        for topic in one.topics:
            for partition in topic.partitions:
                if not partition.error_code and partition.start_offset >= 0:
                    lag = getattr(partition, "lag", -1)  # from version 1 on
                    offset = ShareOffset(partition.start_offset, lag if lag >= 0 else None)
                    found[topic.topic_name, partition.partition_index] = offset
        return found

    return routing.retrying(attempt)


def set_start_offsets(routing: Routing, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The error code of each partition, 0 for success. The group is made if there is none. Raises BrokerAnswerError, with the
    code NON_EMPTY_GROUP while it has members."""
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
    """The error code of each topic, 0 for success. Raises as ``set_start_offsets``."""
    fields = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}

    def attempt() -> dict[str, int]:
        answer: Any = ask(routing.coordinator(GROUP, group), ApiKey.DELETE_SHARE_GROUP_OFFSETS, (0, 0), fields)
        check(routing, group, answer.error_code, answer.error_message)
        return {one.topic_name: _retried(routing, group, one.error_code) for one in answer.responses}

    return routing.retrying(attempt)


def _retried(routing: Routing, group: str, code: int) -> int:
    """The code of a part of an answer. Raises where the whole request is to be sent again."""
    if code in COORDINATOR_MOVED:
        check(routing, group, code, None)
    return int(code)
