"""OffsetDelete (47): forget a group's offsets of topics that it no longer reads."""

from collections.abc import Set
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, require
from broker.kafka.checks import error_alone
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import Errors
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> None:
    body, connection = call.body, call.connection
    require(context, connection, Operation.DELETE, ResourceType.GROUP, body.group_id)
    topics = (topic.name for topic in body.topics)
    unauthorized = denied(context, connection, Operation.READ, ResourceType.TOPIC, topics)
    known = []
    for topic in body.topics:
        info = None if topic.name in unauthorized else context.logs.topic(topic.name)
        partitions = 0 if info is None else info.partitions
        known += [
            (topic.name, partition.partition_index)
            for partition in topic.partitions
            if 0 <= partition.partition_index < partitions
        ]

    def reply(error: ErrorCode, errors: Errors) -> None:
        call.reply(_fields(body, error, errors, unauthorized))

    context.groups.offsets.delete(body.group_id, known, reply)


def _fields(body: Any, error: ErrorCode, errors: Errors, unauthorized: Set[str]) -> dict[str, Any]:
    if error:
        return {"error_code": error, "topics": []}

    def otherwise(topic: str) -> ErrorCode:
        return ErrorCode.topic_authorization_failed if topic in unauthorized else ErrorCode.unknown_topic_or_partition

    topics = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": partition.partition_index,
                    "error_code": errors.get((topic.name, partition.partition_index), otherwise(topic.name)),
                }
                for partition in topic.partitions
            ],
        }
        for topic in body.topics
    ]
    return {"error_code": ErrorCode.none, "topics": topics}


API = Api(key=ApiKey.OFFSET_DELETE, min_version=0, max_version=0, handle=handle, on_error=error_alone)
