"""ShareGroupHeartbeat (76, KIP-932): a consumer joins a share group, stays in it or leaves it, and learns what it may read.

A heartbeat that changes nothing is answered at once. Any other is answered when what it has changed is durable.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, refusal, require
from broker.kafka.context import KafkaContext
from broker.kafka.features import SHARE_VERSION
from broker.kafka.groups.share.values import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResult
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_READ, _GROUP = Operation.READ, ResourceType.GROUP

# As in Kafka: a member id is a UUID, in one of its two forms.
_MEMBER_ID_MAX = 36

_MESSAGES = {
    ErrorCode.group_id_not_found: "There is no share group of this id. If its members are gone, join again.",
    ErrorCode.unknown_member_id: "The group has no such member: its session has ended, or it has left. Join again.",
    ErrorCode.fenced_member_epoch: "The group has another epoch for this member. Join again.",
    ErrorCode.group_max_size_reached: "The group has as many members as group.share.max.size or group.max.bytes allow.",
}


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    body = call.body
    group_id = body.group_id
    if not context.features.level(SHARE_VERSION):
        raise RequestError(ErrorCode.unsupported_version, "Share groups are switched off (share.version=0).")
    require(context, call.connection, _READ, _GROUP, group_id)
    names = body.subscribed_topic_names
    if not body.member_id or len(body.member_id) > _MEMBER_ID_MAX:
        raise RequestError(ErrorCode.invalid_request, f"Give a member id of at most {_MEMBER_ID_MAX} characters.")
    if names and denied(context, call.connection, Operation.DESCRIBE, ResourceType.TOPIC, names):
        raise refusal(ResourceType.TOPIC)
    _check(body)
    request = HeartbeatRequest(
        body.member_id, body.member_epoch, call.client_id or "", f"/{call.client_host}", body.rack_id, names
    )
    interval_ms = context.groups.share_settings(group_id).heartbeat_interval_ms
    result = context.groups.share.heartbeat(group_id, request, lambda result: call.reply(_fields(result, interval_ms)))
    return None if result is None else _fields(result, interval_ms)


def _check(body: Any) -> None:
    """Raises RequestError for what is no heartbeat, as Kafka does."""
    if not body.group_id.strip():
        raise RequestError(ErrorCode.invalid_request, "Give a group id.")
    if body.rack_id is not None and not body.rack_id.strip():
        raise RequestError(ErrorCode.invalid_request, "Give a rack id that is not empty, or none.")
    if body.member_epoch == JOIN_EPOCH and not body.subscribed_topic_names:
        raise RequestError(ErrorCode.invalid_request, "Name the topics to subscribe to when a member joins.")
    if body.member_epoch < LEAVE_EPOCH:
        raise RequestError(ErrorCode.invalid_request, f"There is no member epoch {body.member_epoch}.")


def _fields(result: HeartbeatResult, interval_ms: int) -> dict[str, Any]:
    if result.error:
        return {"error_code": result.error, "error_message": _MESSAGES.get(result.error)}
    assignment = result.assignment
    return {
        "error_code": ErrorCode.none,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": interval_ms,
        "assignment": None
        if assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in assignment.items()
            ]
        },
    }


def _refused(call: Call, error: RequestError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message}


API = Api(key=ApiKey.SHARE_GROUP_HEARTBEAT, min_version=1, max_version=1, handle=handle, on_error=_refused, inline=True)
