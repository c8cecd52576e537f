"""AddPartitionsToTxn (24): a producer adds partitions to its transaction, and begins one if none is open.

Answered when that is durable: after any crash the coordinator then knows which partitions need markers.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, may
from broker.kafka.context import KafkaContext
from broker.kafka.transactions.transaction import Claim, Partition
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# Before version 2 clients did not know PRODUCER_FENCED.
_FENCED_SINCE = 2


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    request = call.body
    wanted = [(topic.name, one) for topic in request.v3_and_below_topics for one in topic.partitions]
    transactional_id, connection = request.v3_and_below_transactional_id, call.connection
    if not may(context, connection, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return _fields(request, dict.fromkeys(wanted, ErrorCode.transactional_id_authorization_failed))
    topics = (topic.name for topic in request.v3_and_below_topics)
    unauthorized = denied(context, connection, Operation.WRITE, ResourceType.TOPIC, topics)
    if not transactional_id:
        return _fields(request, dict.fromkeys(wanted, ErrorCode.invalid_request))
    refused: dict[Partition, ErrorCode] = {}
    for key in wanted:
        if key[0] in unauthorized:
            refused[key] = ErrorCode.topic_authorization_failed
        elif context.logs.get(*key) is None:
            refused[key] = ErrorCode.unknown_topic_or_partition
    if refused:
        return _fields(request, dict.fromkeys(wanted, ErrorCode.operation_not_attempted) | refused)

    def reply(error: ErrorCode) -> None:
        if error == ErrorCode.producer_fenced and call.api_version < _FENCED_SINCE:
            error = ErrorCode.invalid_producer_epoch
        call.reply(_fields(request, dict.fromkeys(wanted, error)))

    claim = Claim(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    context.transactions.add_partitions(transactional_id, claim, wanted, reply)
    return None


def _fields(request: Any, errors: Mapping[Partition, ErrorCode]) -> Mapping[str, Any]:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": one, "partition_error_code": errors[topic.name, one]}
                    for one in topic.partitions
                ],
            }
            for topic in request.v3_and_below_topics
        ]
    }


API = Api(key=ApiKey.ADD_PARTITIONS_TO_TXN, min_version=0, max_version=3, handle=handle)
