"""SyncGroup (14): the leader sends the assignment, and every member gets its part of it."""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.context import KafkaContext
from broker.kafka.groups.values import SyncRequest, SyncResult
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    body = call.body
    require(context, call.connection, Operation.READ, ResourceType.GROUP, body.group_id)
    protocol_type = getattr(body, "protocol_type", None)
    protocol_name = getattr(body, "protocol_name", None)
    if call.api_version >= 5 and None in (protocol_type, protocol_name):
        return _fields(SyncResult(ErrorCode.inconsistent_group_protocol))
    request = SyncRequest(
        member_id=body.member_id,
        group_instance_id=getattr(body, "group_instance_id", None),  # from version 3 on
        generation=body.generation_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments={member.member_id: member.assignment for member in body.assignments},
    )
    context.groups.sync(body.group_id, request, lambda result: call.reply(_fields(result)))
    return None


def _fields(result: SyncResult) -> dict[str, Any]:
    return {
        "error_code": result.error,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }


def _refused(call: Call, error: RequestError) -> dict[str, Any]:
    return _fields(SyncResult(ErrorCode(error.code)))


API = Api(key=ApiKey.SYNC_GROUP, min_version=0, max_version=5, handle=handle, on_error=_refused)
