"""LeaveGroup (13): members leave, or an operator removes them. Before version 3 a request names one member only."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_alone
from broker.kafka.context import KafkaContext
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    body = call.body
    require(context, call.connection, Operation.READ, ResourceType.GROUP, body.group_id)
    if call.api_version < 3:
        error, errors = context.groups.leave(body.group_id, [(body.member_id, None)])
        return {"error_code": error or errors[0]}
    leaving = [(member.member_id, member.group_instance_id) for member in body.members]
    error, errors = context.groups.leave(body.group_id, leaving)
    return {
        "error_code": error,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            # If the whole request is refused, there are no results for members.
            for (member_id, instance_id), code in zip(leaving, errors, strict=False)
        ],
    }


API = Api(key=ApiKey.LEAVE_GROUP, min_version=0, max_version=5, handle=handle, on_error=error_alone)
