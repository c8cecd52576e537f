"""Heartbeat (12): a member says that it is alive, and learns whether it has to join again."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_alone
from broker.kafka.context import KafkaContext
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey

# Looking up a member of an enumeration costs as much as an authorizer's answer.
_READ, _GROUP = Operation.READ, ResourceType.GROUP


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    body = call.body
    require(context, call.connection, _READ, _GROUP, body.group_id)
    instance_id = getattr(body, "group_instance_id", None)  # from version 3 on
    return {"error_code": context.groups.heartbeat(body.group_id, body.member_id, instance_id, body.generation_id)}


API = Api(key=ApiKey.HEARTBEAT, min_version=0, max_version=4, handle=handle, on_error=error_alone, inline=True)
