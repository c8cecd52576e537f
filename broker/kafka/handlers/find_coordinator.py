"""FindCoordinator (10): this node coordinates every group and every transaction."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.context import KafkaContext
from broker.network.work import once
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

GROUP, TRANSACTION = 0, 1


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    request = call.body
    if getattr(request, "key_type", GROUP) in (GROUP, TRANSACTION):  # from version 1 on
        host, port = context.advertised(call.peer)
        answer = {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": context.node_id,
            "host": host,
            "port": port,
        }
    else:
        answer = {
            "error_code": ErrorCode.invalid_request,
            "error_message": f"Nothing of type {request.key_type} is coordinated here.",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    if call.api_version < 4:
        return answer
    return {"coordinators": call.array(once(request.coordinator_keys), lambda key: {"key": key, **answer})}


API = Api(key=ApiKey.FIND_COORDINATOR, min_version=0, max_version=4, handle=handle, inline=True)
