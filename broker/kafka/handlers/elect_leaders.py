"""ElectLeaders (43): each partition has the one leader that it can have, so the answer is "not needed", as in Kafka. Any node
gives it, if the leader is there."""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_fields, online_log
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN, once
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

PREFERRED, UNCLEAN = 0, 1


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.ALTER, ResourceType.CLUSTER)
    request = call.body
    if getattr(request, "election_type", PREFERRED) not in (PREFERRED, UNCLEAN):  # from version 1 on
        return {"error_code": ErrorCode.invalid_request, "replica_election_results": []}
    # "All partitions" (null) lists only those that had to change leader: none.
    wanted = request.topic_partitions or ()
    return {
        "error_code": ErrorCode.none,
        "replica_election_results": call.array(wanted, lambda topic: _topic(context, call, topic)),
    }


def _topic(context: KafkaContext, call: Call, topic: Any) -> dict[str, Any]:
    name = topic.topic
    return {
        "topic": name,
        "partition_result": call.array(once(topic.partitions), lambda number: _elect(context, name, number)),
    }


def _elect(context: KafkaContext, topic: str, partition: int) -> dict[str, Any]:
    try:
        if context.why_absent(topic, partition) != ErrorCode.not_leader_or_follower or context.logs.get(
            topic, partition
        ):
            online_log(context, topic, partition)
        elif not context.leader_of(topic, partition).is_there:
            raise StorageError("Its leader is being started again.")
        code, message = int(ErrorCode.election_not_needed), f"{topic}-{partition} has its preferred leader."
    except Refusal as error:
        code, message = error_fields(error)
    except StorageError as error:
        # No election can help: the only replica cannot be read.
        code, message = int(ErrorCode.eligible_leaders_not_available), str(error)
    return {"partition_id": partition, "error_code": code, "error_message": message}


def _refused(call: Call, error: RequestError) -> Mapping[str, Any]:
    """As in Kafka, the request and each partition get the error: version 0 has only the partitions'."""
    code, message = error_fields(error)

    def topic(wanted: Any) -> dict[str, Any]:
        return {
            "topic": wanted.topic,
            "partition_result": call.array(
                once(wanted.partitions),
                lambda number: {"partition_id": number, "error_code": code, "error_message": message},
            ),
        }

    return {
        "error_code": code,
        "replica_election_results": call.array(call.body.topic_partitions or (), topic),
    }


API = Api(key=ApiKey.ELECT_LEADERS, min_version=0, max_version=2, handle=handle, on_error=_refused, lane=ADMIN)
