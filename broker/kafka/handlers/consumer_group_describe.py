"""ConsumerGroupDescribe (69, KIP-848): epochs and members of consumer groups, with their current and target assignments."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from broker.kafka.api import Api, Call
from broker.kafka.authorization import authorized_operations, denied, may
from broker.kafka.checks import OPERATIONS_NOT_ASKED_FOR
from broker.kafka.context import KafkaContext
from broker.kafka.features import GROUP_VERSION
from broker.kafka.groups.consumer.values import Assignment, ConsumerGroupDescription, ConsumerMemberDescription
from broker.network.work import ADMIN, once
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_HIDDEN = "The group has topics assigned that the client is not authorized to describe."


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    return {"groups": call.array(once(call.body.group_ids), lambda group_id: _group(context, call, group_id))}


def _group(context: KafkaContext, call: Call, group_id: str) -> dict[str, Any]:
    connection = call.connection
    if not context.features.level(GROUP_VERSION):
        return _refused(group_id, ErrorCode.unsupported_version, "The feature group.version is at level 0.")
    if not may(context, connection, Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _refused(group_id, ErrorCode.group_authorization_failed, "Not authorized.")
    group = context.groups.consumers.describe(group_id)
    if not isinstance(group, ConsumerGroupDescription):
        message = f"Group {group_id[:200]} not found." if group is ErrorCode.group_id_not_found else None
        return _refused(group_id, group, message)
    name_of = context.groups.consumers.topics.name_of
    ids = {
        topic_id
        for member in group.members
        for each in (member.assignment, member.target_assignment)
        for topic_id in each
    }
    assigned = [name_of[topic_id] for topic_id in ids if topic_id in name_of]
    if denied(context, connection, Operation.DESCRIBE, ResourceType.TOPIC, assigned, audited=False):
        return _refused(group_id, ErrorCode.topic_authorization_failed, _HIDDEN)
    subscribed = (name for member in group.members for name in member.subscribed_topic_names)
    hidden = denied(context, connection, Operation.DESCRIBE, ResourceType.TOPIC, subscribed, audited=False)
    operations = OPERATIONS_NOT_ASKED_FOR
    if call.body.include_authorized_operations:
        operations = authorized_operations(context, connection, ResourceType.GROUP, group_id)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": call.array(group.members, lambda member: _member(member, name_of, hidden)),
        "authorized_operations": operations,
    }


def _member(member: ConsumerMemberDescription, name_of: Mapping[UUID, str], hidden: frozenset[str]) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": [name for name in member.subscribed_topic_names if name not in hidden],
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": _assignment(member.assignment, name_of),
        "target_assignment": _assignment(member.target_assignment, name_of),
        "member_type": member.member_type,
    }


def _assignment(assignment: Assignment, name_of: Mapping[UUID, str]) -> dict[str, Any]:
    """Deleted topics have no name any more, and are left out."""
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name_of[topic_id], "partitions": sorted(partitions)}
            for topic_id, partitions in assignment.items()
            if topic_id in name_of
        ]
    }


def _refused(group_id: str, error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "members": [],
        "authorized_operations": OPERATIONS_NOT_ASKED_FOR,
    }


API = Api(key=ApiKey.CONSUMER_GROUP_DESCRIBE, min_version=0, max_version=1, handle=handle, lane=ADMIN)
