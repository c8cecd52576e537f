"""DescribeProducers (61): the producers of a partition, with epoch, sequence number and open transaction.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from broker.errors import Refusal, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, refusal
from broker.kafka.checks import error_fields, online_log
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    """A repeated partition is described once."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in call.body.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    forbidden = denied(context, call.connection, Operation.READ, ResourceType.TOPIC, wanted)

    def describe_topic(item: tuple[str, Collection[int]]) -> dict[str, Any]:
        name, indexes = item
        describe = _refused if name in forbidden else partial(_partition, context, call, name)
        return {"name": name, "partitions": call.array(indexes, describe)}

    return {"topics": call.array(wanted.items(), describe_topic)}


def _refused(index: int) -> dict[str, Any]:
    code, message = error_fields(refusal(ResourceType.TOPIC))
    return {"partition_index": index, "error_code": code, "error_message": message, "active_producers": []}


def _partition(context: KafkaContext, call: Call, topic: str, index: int) -> dict[str, Any]:
    call.work.checkpoint()  # a partition may have many producers
    try:
        producers = online_log(context, topic, index).transactions.describe_producers()
    except (Refusal, StorageError) as error:
        code, message = error_fields(error)
        return {"partition_index": index, "error_code": code, "error_message": message, "active_producers": []}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": call.array(producers, _producer),
    }


def _producer(producer: Any) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.txn_start_offset,
    }


API = Api(key=ApiKey.DESCRIBE_PRODUCERS, min_version=0, max_version=0, handle=handle, lane=ADMIN)
