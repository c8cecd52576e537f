"""ConsumerGroupHeartbeat (68, KIP-848): a member joins, leaves, or says that it is alive, and learns its assignment.

Inline: a heartbeat that changes nothing is answered at once, any other when its changes are durable. Nearly all heartbeats change
nothing, so these are read and answered without the schema. From version 1 on members make their ids themselves, and may subscribe
by regular expression.
"""

from functools import partial
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call, KafkaRequest
from broker.kafka.authorization import denied, require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.kafka.features import GROUP_VERSION
from broker.kafka.groups.consumer.values import HeartbeatRequest, HeartbeatResult
from broker.kafka.groups.coordinated import JOIN_EPOCH
from broker.network.service import Connection, Outbox
from broker.network.work import REQUEST_ENTRIES_MAX
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_group_heartbeat import Unchanged, encode_unchanged, parse_unchanged
from protocol.kafka.schema import control
from protocol.kafka.schema.control import milliseconds

# Looking up a member of an enumeration costs as much as an authorizer's answer.
_READ, _DESCRIBE, _GROUP, _TOPIC = Operation.READ, Operation.DESCRIBE, ResourceType.GROUP, ResourceType.TOPIC
_NOT_FINALIZED = "The feature group.version is at level 0, so use group.protocol=classic."


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    try:
        unchanged = parse_unchanged(request.frame, request.body_offset, request.api_version)
        if unchanged is None:
            _handle_any(context, request, outbox)
        else:
            _handle_unchanged(context, request, outbox, unchanged)
    except RequestError as error:
        code, message = error_fields(error)
        _reply(context, request, outbox, HeartbeatResult(ErrorCode(code), message))


def _handle_unchanged(context: KafkaContext, request: KafkaRequest, outbox: Outbox, unchanged: Unchanged) -> None:
    group_id, member_id, epoch, instance_id = unchanged
    _check_rights(context, request.connection, group_id)
    connection = request.connection
    heartbeat = HeartbeatRequest(
        member_id,
        epoch,
        instance_id,
        client_id=request.client_id or "",
        client_host=f"/{connection.peer.host}",
        context=None if context.authorizer is None else (connection.principal, connection.peer.host),
    )
    reply = partial(_reply, context, request, outbox)
    result = context.groups.consumers.heartbeat(group_id, heartbeat, request.api_version, reply)
    if result is None:
        return
    frame = None
    if not result.error and result.assignment is None and result.member_id is not None:
        frame = encode_unchanged(
            request.correlation_id, result.member_id, result.member_epoch, result.heartbeat_interval_ms
        )
    if frame is None:
        reply(result)
    else:
        outbox.send(request, [frame])


def _check_rights(context: KafkaContext, connection: Connection, group_id: str) -> None:
    if not context.features.level(GROUP_VERSION):
        raise RequestError(ErrorCode.unsupported_version, _NOT_FINALIZED)
    if context.authorizer is not None:
        require(context, connection, _READ, _GROUP, group_id)


def _reply(context: KafkaContext, request: KafkaRequest, outbox: Outbox, result: HeartbeatResult) -> None:
    Call(context, request, outbox, None).reply(_fields(result))


def _handle_any(context: KafkaContext, request: KafkaRequest, outbox: Outbox) -> None:
    body = control.parse_request(request.api.key, request.api_version, request.body, REQUEST_ENTRIES_MAX)
    connection, version = request.connection, request.api_version
    _check_rights(context, connection, body.group_id)
    names = body.subscribed_topic_names
    if names and denied(context, connection, _DESCRIBE, _TOPIC, names):
        raise RequestError(ErrorCode.topic_authorization_failed, "Not authorized to describe all subscribed topics.")
    owned = body.topic_partitions
    member_id = body.member_id
    if not member_id and not version and body.member_epoch == JOIN_EPOCH:
        member_id = str(context.entropy.uuid())
    heartbeat = HeartbeatRequest(
        member_id,
        body.member_epoch,
        body.instance_id,
        body.rack_id,
        milliseconds(body.rebalance_timeout),
        request.client_id or "",
        f"/{connection.peer.host}",  # as Java prints an address; tools cut the slash off
        names,
        getattr(body, "subscribed_topic_regex", None),  # from version 1 on
        body.server_assignor,
        None if owned is None else tuple((one.topic_id, one.partitions) for one in owned),
        None if context.authorizer is None else (connection.principal, connection.peer.host),
    )
    reply = partial(_reply, context, request, outbox)
    result = context.groups.consumers.heartbeat(body.group_id, heartbeat, version, reply)
    if result is not None:
        reply(result)


def _fields(result: HeartbeatResult) -> dict[str, Any]:
    assignment = result.assignment
    return {
        "error_code": result.error,
        "error_message": result.message,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "assignment": None
        if assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in assignment
            ]
        },
    }


API = Api(key=ApiKey.CONSUMER_GROUP_HEARTBEAT, min_version=0, max_version=1, handle_raw=_handle, inline=True)
