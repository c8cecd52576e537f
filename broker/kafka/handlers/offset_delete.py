"""OffsetDelete (47): forget how far a group has read of topics that it does not read any more."""

from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import Errors
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> None:
    body = call.body
    known = []
    for topic in body.topics:
        info = context.logs.topic(topic.name)
        partitions = 0 if info is None else info.partitions
        known += [
            (topic.name, one.partition_index) for one in topic.partitions if 0 <= one.partition_index < partitions
        ]
    context.groups.offsets.delete(body.group_id, known, lambda error, errors: call.reply(_fields(body, error, errors)))


def _fields(body: Any, error: ErrorCode, errors: Errors) -> dict[str, Any]:
    if error:
        return {"error_code": error, "topics": []}
    unknown = ErrorCode.unknown_topic_or_partition
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": one.partition_index,
                    "error_code": errors.get((topic.name, one.partition_index), unknown),
                }
                for one in topic.partitions
            ],
        }
        for topic in body.topics
    ]
    return {"error_code": ErrorCode.none, "topics": topics}


API = Api(key=ApiKey.OFFSET_DELETE, min_version=0, max_version=0, handle=handle)
