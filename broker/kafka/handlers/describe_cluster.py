"""DescribeCluster (60): the nodes that are there, and the controller: all name the same. No broker is ever fenced (version 2)."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import cluster_operations
from broker.kafka.checks import OPERATIONS_NOT_ASKED_FOR
from broker.kafka.context import KafkaContext
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# Kinds of endpoint (KIP-919): clients ask for brokers; only tools that talk to a KRaft controller directly ask for those.
BROKERS, CONTROLLERS = 1, 2


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    wanted = getattr(call.body, "endpoint_type", BROKERS)  # from version 1 on
    if wanted != BROKERS:
        known = wanted == CONTROLLERS
        return {
            "error_code": ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            "error_message": "This listener is a broker's, not a controller's."
            if known
            else f"No endpoint is of type {wanted}.",
            "endpoint_type": BROKERS,
        }
    operations = OPERATIONS_NOT_ASKED_FOR
    if call.body.include_cluster_authorized_operations:
        operations = cluster_operations(context, call.connection)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": BROKERS,
        "cluster_id": context.cluster_id,
        "controller_id": context.controller_id,
        "brokers": [
            {
                "broker_id": node.node_id,
                "host": node.endpoints[call.peer.listener][0],
                "port": node.endpoints[call.peer.listener][1],
                "rack": node.rack,
                "is_fenced": False,
            }
            for node in context.brokers(call.peer)
        ],
        "cluster_authorized_operations": operations,
    }


API = Api(key=ApiKey.DESCRIBE_CLUSTER, min_version=0, max_version=2, handle=handle, inline=True)
