"""DescribeGroups (15): state, members and assignments of classic groups.

A group that does not exist, or is of another kind, is described as dead: before version 6 without an error.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import authorized_operations, may
from broker.kafka.checks import OPERATIONS_NOT_ASKED_FOR
from broker.kafka.context import KafkaContext
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.group import GroupType
from broker.network.work import ADMIN, once
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    asked = getattr(call.body, "include_authorized_operations", False)  # from version 3 on
    return {"groups": call.array(once(call.body.groups), lambda group_id: _group(context, call, group_id, asked))}


def _group(context: KafkaContext, call: Call, group_id: str, asked: bool) -> dict[str, Any]:
    if not may(context, call.connection, Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return {
            "error_code": ErrorCode.group_authorization_failed,
            "group_id": group_id,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
            "authorized_operations": OPERATIONS_NOT_ASKED_FOR,
        }
    error, group = context.groups.describe(group_id)
    message = None
    if not error and group.state is ClassicGroupState.DEAD and call.api_version >= 6:
        error, message = ErrorCode.group_id_not_found, f"Group {group_id[:200]} not found."
        if context.groups.type_of(group_id) not in (None, GroupType.CLASSIC):
            message = f"Group {group_id[:200]} is not a classic group."
    operations = OPERATIONS_NOT_ASKED_FOR
    if asked:
        operations = authorized_operations(context, call.connection, ResourceType.GROUP, group_id)
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": "" if error and message is None else group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": operations,
    }


API = Api(key=ApiKey.DESCRIBE_GROUPS, min_version=0, max_version=6, handle=handle, lane=ADMIN)
