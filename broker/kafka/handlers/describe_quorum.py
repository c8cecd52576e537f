"""DescribeQuorum (55): the controller is the only voter of the cluster's metadata, and leads it; other nodes observe.

There is no metadata log (the catalogue is a database): its offsets are the number of changes of topics since the start, so that
tools that compute a lag find none.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_and_message
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

TOPIC, PARTITION = "__cluster_metadata", 0
# Names that Kafka gives to controllers' listeners in its examples.
_LISTENER = "CONTROLLER"


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.DESCRIBE, ResourceType.CLUSTER)
    nodes = []
    for node in context.brokers(call.peer):
        host, port = node.endpoints[call.peer.listener]
        nodes.append({"node_id": node.node_id, "listeners": [{"name": _LISTENER, "host": host, "port": port}]})
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "topics": call.array(call.body.topics, lambda topic: _topic(context, call, topic)),
        "nodes": nodes,
    }


def _topic(context: KafkaContext, call: Call, topic: Any) -> dict[str, Any]:
    name = topic.topic_name
    return {
        "topic_name": name,
        "partitions": call.array(
            topic.partitions, lambda partition: _partition(context, name, partition.partition_index)
        ),
    }


def _partition(context: KafkaContext, topic: str, partition: int) -> dict[str, Any]:
    if (topic, partition) != (TOPIC, PARTITION):
        return {
            "partition_index": partition,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": None,
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
            "current_voters": [],
            "observers": [],
        }
    now_ms, offset, leader = context.clock.time_ms(), context.logs.generation, context.controller_id

    def replica(node_id: int) -> dict[str, Any]:
        return {
            "replica_id": node_id,
            "replica_directory_id": None,
            "log_end_offset": offset,
            "last_fetch_timestamp": now_ms,
            "last_caught_up_timestamp": now_ms,
        }

    others = sorted(context.living_ids - {leader})
    return {
        "partition_index": partition,
        "error_code": ErrorCode.none,
        "error_message": None,
        "leader_id": leader,
        "leader_epoch": 1,
        "high_watermark": offset,
        "current_voters": [replica(leader)],
        "observers": [replica(each) for each in others],
    }


API = Api(
    key=ApiKey.DESCRIBE_QUORUM, min_version=0, max_version=2, handle=handle, on_error=error_and_message, lane=ADMIN
)
