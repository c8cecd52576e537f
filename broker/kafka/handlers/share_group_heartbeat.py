"""ShareGroupHeartbeat (76, KIP-932): a consumer joins a share group, stays in it or leaves it, and learns its assignment.

Inline: a heartbeat that changes nothing is answered at once, any other when its changes are durable. Nearly all heartbeats change
nothing, so these are read and answered without the schema.
"""

from functools import partial
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call, KafkaRequest
from broker.kafka.authorization import denied, refusal, require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.kafka.features import SHARE_VERSION
from broker.kafka.groups.coordinated import JOIN_EPOCH, LEAVE_EPOCH
from broker.kafka.groups.share.values import HeartbeatRequest, HeartbeatResult
from broker.kafka.handlers.share_fetch import check_group_id
from broker.network.service import Connection, Outbox
from broker.network.work import REQUEST_ENTRIES_MAX
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_group_heartbeat import encode_unchanged
from protocol.kafka.messages.share_group_heartbeat import Unchanged, parse_unchanged
from protocol.kafka.schema import control

_READ, _GROUP = Operation.READ, ResourceType.GROUP

# As in Kafka: a member id is a UUID, in one of its two forms.
_MEMBER_ID_MAX = 36

_MESSAGES = {
    ErrorCode.group_id_not_found: "There is no share group of this id. If its members are gone, join again.",
    ErrorCode.unknown_member_id: "The group has no such member: its session has ended, or it has left. Join again.",
    ErrorCode.fenced_member_epoch: "The group has another epoch for this member. Join again.",
    ErrorCode.group_max_size_reached: "The group has as many members as group.share.max.size or group.max.bytes allow.",
}


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    try:
        unchanged = parse_unchanged(request.frame, request.body_offset)
        if unchanged is None:
            _handle_any(context, request, outbox)
        else:
            _handle_unchanged(context, request, outbox, unchanged)
    except RequestError as error:
        code, message = error_fields(error)
        Call(context, request, outbox, None).reply({"error_code": code, "error_message": message})


def _handle_unchanged(context: KafkaContext, request: KafkaRequest, outbox: Outbox, unchanged: Unchanged) -> None:
    group_id, member_id, epoch = unchanged
    _check_rights(context, request.connection, group_id)
    _check(group_id, member_id, epoch, None, None)
    interval_ms = context.groups.share_settings(group_id).heartbeat_interval_ms
    # A member that reports no change is known by its id.
    heartbeat = HeartbeatRequest(member_id, epoch, "", "")
    reply = partial(_reply, context, request, outbox, interval_ms)
    result = context.groups.share.heartbeat(group_id, heartbeat, reply)
    if result is None:
        return
    frame = None
    if not result.error and result.assignment is None:
        frame = encode_unchanged(request.correlation_id, member_id, result.member_epoch, interval_ms)
    if frame is None:
        reply(result)
    else:
        outbox.send(request, [frame])


def _handle_any(context: KafkaContext, request: KafkaRequest, outbox: Outbox) -> None:
    body = control.parse_request(request.api.key, request.api_version, request.body, REQUEST_ENTRIES_MAX)
    connection, names = request.connection, body.subscribed_topic_names
    _check_rights(context, connection, body.group_id)
    _check_member_id(body.member_id)
    if names and denied(context, connection, Operation.DESCRIBE, ResourceType.TOPIC, names):
        raise refusal(ResourceType.TOPIC)
    _check(body.group_id, body.member_id, body.member_epoch, body.rack_id, names)
    heartbeat = HeartbeatRequest(
        body.member_id,
        body.member_epoch,
        request.client_id or "",
        f"/{connection.peer.host}",  # as Java prints an address; tools cut the slash off
        body.rack_id,
        names,
    )
    interval_ms = context.groups.share_settings(body.group_id).heartbeat_interval_ms
    reply = partial(_reply, context, request, outbox, interval_ms)
    result = context.groups.share.heartbeat(body.group_id, heartbeat, reply)
    if result is not None:
        reply(result)


def _check_rights(context: KafkaContext, connection: Connection, group_id: str) -> None:
    if not context.features.level(SHARE_VERSION):
        raise RequestError(ErrorCode.unsupported_version, "Share groups are switched off (share.version=0).")
    if context.authorizer is not None:
        require(context, connection, _READ, _GROUP, group_id)


def _check_member_id(member_id: str) -> None:
    if not 0 < len(member_id) <= _MEMBER_ID_MAX:
        raise RequestError(ErrorCode.invalid_request, f"Give a member id of at most {_MEMBER_ID_MAX} characters.")


def _check(group_id: str, member_id: str, epoch: int, rack_id: str | None, names: Any) -> None:
    """Raises RequestError for an invalid heartbeat, as Kafka does."""
    _check_member_id(member_id)
    if not group_id.strip():
        raise RequestError(ErrorCode.invalid_request, "Give a group id.")
    check_group_id(group_id)
    if rack_id is not None and not rack_id.strip():
        raise RequestError(ErrorCode.invalid_request, "Give a rack id that is not empty, or none.")
    if epoch == JOIN_EPOCH and not names:
        raise RequestError(ErrorCode.invalid_request, "Name the topics to subscribe to when a member joins.")
    if epoch < LEAVE_EPOCH:
        raise RequestError(ErrorCode.invalid_request, f"There is no member epoch {epoch}.")


def _reply(
    context: KafkaContext, request: KafkaRequest, outbox: Outbox, interval_ms: int, result: HeartbeatResult
) -> None:
    Call(context, request, outbox, None).reply(_fields(result, interval_ms))


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


API = Api(key=ApiKey.SHARE_GROUP_HEARTBEAT, min_version=1, max_version=1, handle_raw=_handle, inline=True)
