"""FindCoordinator (10): which node coordinates a group or a transactional id.

Only brokers ask for the coordinator of a share partition (version 6), to save its state there. No API here saves it, so the
answer is that there is none.
"""

from collections.abc import Mapping
from typing import Any

from broker.cluster.nodes import transaction_key
from broker.kafka.api import Api, Call
from broker.kafka.authorization import DENIED, may
from broker.kafka.context import KafkaContext
from broker.network.work import once
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

GROUP, TRANSACTION = 0, 1
# The client must be allowed to describe the resource to be told its coordinator.
_RESOURCES = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    request = call.body
    key_type = getattr(request, "key_type", GROUP)  # from version 1 on
    resource = _RESOURCES.get(key_type)

    def answer(key: str) -> dict[str, Any]:
        if resource is None:
            return _error(ErrorCode.invalid_request, f"Nothing of type {key_type} is coordinated here.")
        if not may(context, call.connection, Operation.DESCRIBE, resource, key):
            return _error(DENIED[resource], "Not authorized.")
        node = context.coordinator(transaction_key(key) if key_type == TRANSACTION else key, call.peer)
        if node is None:
            return _error(ErrorCode.coordinator_not_available, "Its node is being started again.")
        host, port = node.endpoints[call.peer.listener]
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": node.node_id,
            "host": host,
            "port": port,
        }

    if call.api_version < 4:
        return answer(request.key)
    return {"coordinators": call.array(once(request.coordinator_keys), lambda key: {"key": key, **answer(key)})}


def _error(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}


API = Api(key=ApiKey.FIND_COORDINATOR, min_version=0, max_version=6, handle=handle, inline=True)
