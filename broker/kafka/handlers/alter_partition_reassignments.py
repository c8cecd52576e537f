"""AlterPartitionReassignments (45): a partition can only stay where it is, and there is nothing to cancel."""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import MAX_PARTITIONS_PER_REQUEST, check_replicas, error_and_message, error_fields
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.ALTER, ResourceType.CLUSTER)
    topics = call.body.topics
    if sum(1 + len(topic.partitions) for topic in topics) > MAX_PARTITIONS_PER_REQUEST:
        message = f"Name at most {MAX_PARTITIONS_PER_REQUEST} partitions in a request."
        return {"error_code": ErrorCode.invalid_request, "error_message": message, "responses": []}
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        # From version 1 on: the request's own value.
        "allow_replication_factor_change": getattr(call.body, "allow_replication_factor_change", True),
        "responses": [
            {
                "name": topic.name,
                "partitions": [_reassign(context, topic.name, partition) for partition in topic.partitions],
            }
            for topic in topics
        ],
    }


def _reassign(context: KafkaContext, topic: str, wanted: Any) -> dict[str, Any]:
    code, message = int(ErrorCode.none), None
    try:
        info = context.logs.topic(topic)
        if info is None or not 0 <= wanted.partition_index < info.partitions:
            raise RequestError(ErrorCode.unknown_topic_or_partition, "There is no such partition.")
        if wanted.replicas is None:
            raise RequestError(ErrorCode.no_reassignment_in_progress, "The partition is not being reassigned.")
        check_replicas(context, wanted.replicas)
        leader = context.leader_of(topic, wanted.partition_index).node_id
        if list(wanted.replicas) != [leader]:
            raise RequestError(
                ErrorCode.invalid_replica_assignment,
                f"Its only replica stays on broker {leader}: which node has it follows from its topic's name and its number.",
            )
    except RequestError as error:
        code, message = error_fields(error)
    return {"partition_index": wanted.partition_index, "error_code": code, "error_message": message}


API = Api(
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    min_version=0,
    max_version=1,
    handle=handle,
    on_error=error_and_message,
    lane=ADMIN,
)
