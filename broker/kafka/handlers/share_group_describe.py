"""ShareGroupDescribe (77, KIP-932): the members of share groups, their subscriptions, and their assignments."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from broker.kafka.api import Api, Call
from broker.kafka.authorization import authorized_operations, denied, may
from broker.kafka.checks import OPERATIONS_NOT_ASKED_FOR
from broker.kafka.context import KafkaContext
from broker.kafka.groups.share.simple_assignor import Assignment
from broker.kafka.groups.share.values import ASSIGNOR, MemberDescription, ShareGroupDescription
from broker.network.work import ADMIN, once
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    return {"groups": call.array(once(call.body.group_ids), lambda group_id: _group(context, call, group_id))}


def _group(context: KafkaContext, call: Call, group_id: str) -> dict[str, Any]:
    if not may(context, call.connection, Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _refused(group_id, ErrorCode.group_authorization_failed)
    error, group = context.groups.share.describe(group_id)
    if error or group is None:
        message = f"There is no share group {group_id}." if error is ErrorCode.group_id_not_found else None
        return _refused(group_id, error, message)
    names = _names(context, group)
    assigned = {topic_id for member in group.members for topic_id in member.assignment}
    if denied(
        context,
        call.connection,
        Operation.DESCRIBE,
        ResourceType.TOPIC,
        [names[topic_id] for topic_id in assigned if topic_id in names],
    ):
        # As in Kafka: a client is not told of topics that it may not see.
        message = "The group reads topics that the client may not describe."
        return _refused(group_id, ErrorCode.topic_authorization_failed, message)
    subscribed = (name for member in group.members for name in member.subscribed_topic_names)
    hidden = denied(context, call.connection, Operation.DESCRIBE, ResourceType.TOPIC, subscribed, audited=False)
    operations = OPERATIONS_NOT_ASKED_FOR
    if call.body.include_authorized_operations:
        operations = authorized_operations(context, call.connection, ResourceType.GROUP, group_id)
    return {
        "error_code": ErrorCode.none,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": ASSIGNOR,
        "members": call.array(group.members, lambda member: _member(member, names, hidden)),
        "authorized_operations": operations,
    }


def _names(context: KafkaContext, group: ShareGroupDescription) -> dict[UUID, str]:
    """The names of the members' topics by their present ids: older ids are soon no longer assigned."""
    names = dict.fromkeys(name for member in group.members for name in member.subscribed_topic_names)
    by_id = {}
    for name in names:
        info = context.logs.topic(name)
        if info is not None:
            by_id[info.topic_id] = name
    return by_id


def _member(member: MemberDescription, names: Mapping[UUID, str], hidden: frozenset[str]) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": [name for name in member.subscribed_topic_names if name not in hidden],
        "assignment": {"topic_partitions": _assignment(member.assignment, names)},
    }


def _assignment(assignment: Assignment, names: Mapping[UUID, str]) -> list[dict[str, Any]]:
    return [
        {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": partitions}
        for topic_id, partitions in assignment.items()
        if topic_id in names
    ]


def _refused(group_id: str, error: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
        "authorized_operations": OPERATIONS_NOT_ASKED_FOR,
    }


API = Api(key=ApiKey.SHARE_GROUP_DESCRIBE, min_version=1, max_version=1, handle=handle, lane=ADMIN)
