"""ConsumerGroupHeartbeat (68, KIP-848): a member joins, leaves, or says that it is alive, and learns what it is assigned.

Inline: a heartbeat that changes nothing is answered at once, the others when what they change is durable. From version 1 on
members make their ids themselves, and may subscribe by regular expression.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.kafka.features import GROUP_VERSION
from broker.kafka.groups.consumer.values import JOIN_EPOCH, HeartbeatRequest, HeartbeatResult
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema.control import milliseconds

# Looking up a member of an enumeration costs as much as an authorizer's answer.
_READ, _DESCRIBE, _GROUP, _TOPIC = Operation.READ, Operation.DESCRIBE, ResourceType.GROUP, ResourceType.TOPIC
_NOT_FINALIZED = "The feature group.version is at level 0, so use group.protocol=classic."


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    body, connection = call.body, call.connection
    if not context.features.level(GROUP_VERSION):
        raise RequestError(ErrorCode.unsupported_version, _NOT_FINALIZED)
    require(context, connection, _READ, _GROUP, body.group_id)
    names = body.subscribed_topic_names
    if names and denied(context, connection, _DESCRIBE, _TOPIC, names):
        raise RequestError(ErrorCode.topic_authorization_failed, "Not authorized to describe all subscribed topics.")
    owned = body.topic_partitions
    member_id = body.member_id
    if not member_id and not call.api_version and body.member_epoch == JOIN_EPOCH:
        member_id = str(context.entropy.uuid())
    request = HeartbeatRequest(
        member_id,
        body.member_epoch,
        body.instance_id,
        body.rack_id,
        milliseconds(body.rebalance_timeout),
        call.client_id or "",
        f"/{call.client_host}",  # as Java prints an address; tools cut the slash off
        names,
        getattr(body, "subscribed_topic_regex", None),  # from version 1 on
        body.server_assignor,
        None if owned is None else tuple((one.topic_id, one.partitions) for one in owned),
        None if context.authorizer is None else (connection.principal, call.client_host),
    )
    result = context.groups.consumers.heartbeat(
        body.group_id, request, call.api_version, lambda result: call.reply(_fields(result))
    )
    return None if result is None else _fields(result)


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


def _refused(call: Call, error: RequestError) -> dict[str, Any]:
    code, message = error_fields(error)
    return _fields(HeartbeatResult(ErrorCode(code), message))


API = Api(
    key=ApiKey.CONSUMER_GROUP_HEARTBEAT, min_version=0, max_version=1, handle=handle, on_error=_refused, inline=True
)
