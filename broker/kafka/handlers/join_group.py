"""JoinGroup (11): become a member of a group, or stay one in its next generation. Answered when the other members have joined."""

from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.context import KafkaContext
from broker.kafka.groups.values import JoinRequest, JoinResult
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema.control import milliseconds


def handle(context: KafkaContext, call: Call) -> None:
    body, version = call.body, call.api_version
    require(context, call.connection, Operation.READ, ResourceType.GROUP, body.group_id)
    session_timeout_ms = milliseconds(body.session_timeout)
    instance_id = getattr(body, "group_instance_id", None)  # from version 5 on
    client_id = call.client_id or ""
    request = JoinRequest(
        member_id=body.member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=f"/{call.client_host}",  # as Java prints an address; tools cut the slash off
        session_timeout_ms=session_timeout_ms,
        # Version 0 has one timeout for both.
        rebalance_timeout_ms=milliseconds(getattr(body, "rebalance_timeout", session_timeout_ms)),
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        new_member_id=f"{client_id if instance_id is None else instance_id}-{context.entropy.uuid()}",
        member_id_required=version >= 4,
        can_skip_assignment=version >= 9,
    )
    context.groups.join(body.group_id, request, lambda result: call.reply(_fields(result, version)))


def _fields(result: JoinResult, version: int) -> dict[str, Any]:
    return {
        "error_code": result.error,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        # Cannot be null before version 7.
        "protocol_name": result.protocol_name if version >= 7 else result.protocol_name or "",
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in result.members
        ],
    }


def _refused(call: Call, error: RequestError) -> dict[str, Any]:
    return _fields(JoinResult(ErrorCode(error.code), ""), call.api_version)


API = Api(key=ApiKey.JOIN_GROUP, min_version=0, max_version=9, handle=handle, on_error=_refused)
