"""DescribeProducers (61): who writes to a partition, with which epoch and sequence number, and in which open transaction."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.errors import RequestError, StorageError
from broker.kafka.admin import error_fields, online_log
from broker.kafka.api import Api, Call
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_partition(broker, topic.name, index) for index in topic.partition_indexes],
            }
            for topic in call.body.topics
        ]
    }


def _partition(broker: "KafkaBroker", topic: str, index: int) -> dict[str, Any]:
    try:
        producers = online_log(broker, topic, index).describe_producers()
    except (RequestError, StorageError) as error:
        code, message = error_fields(error)
        return {"partition_index": index, "error_code": code, "error_message": message, "active_producers": []}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [
            {
                "producer_id": one.producer_id,
                "producer_epoch": one.epoch,
                "last_sequence": one.last_sequence,
                "last_timestamp": one.last_timestamp,
                "coordinator_epoch": one.coordinator_epoch,
                "current_txn_start_offset": one.txn_start_offset,
            }
            for one in producers
        ],
    }


API = Api(key=ApiKey.DESCRIBE_PRODUCERS, min_version=0, max_version=0, handle=handle)
