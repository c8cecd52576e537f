"""DescribeTopicPartitions (75): topics and their partitions, a page at a time. It always tells topics' ids, also while Metadata
is served without ids, so a client recognises a topic that was deleted and created again.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from broker.kafka.api import Api, Call
from broker.kafka.authorization import authorized_operations, denied
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# Kafka's max.request.partition.size.limit: partitions of one answer.
PAGE_MAX = 2000

_NO_ID = UUID(int=0)


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    body = call.body
    room = min(max(1, body.response_partition_limit), PAGE_MAX)
    names = {topic.name for topic in body.topics} or {info.name for info in context.logs.topics()}
    # Topics that the client may not describe are not looked up. Named ones get an error, at the end; if all are asked for, they
    # are left out.
    asked = bool(body.topics)
    hidden = denied(context, call.connection, Operation.DESCRIBE, ResourceType.TOPIC, names, audited=asked)
    names -= hidden
    first_topic, first_partition = (body.cursor.topic_name, body.cursor.partition_index) if body.cursor else ("", 0)

    def operations(name: str) -> int:
        return authorized_operations(context, call.connection, ResourceType.TOPIC, name)

    topics: list[dict[str, Any]] = []
    following: dict[str, Any] | None = None
    for name in call.work.each(sorted(name for name in names if name >= first_topic)):
        info = context.logs.topic(name)
        if info is None:
            topics.append(_topic(name, ErrorCode.unknown_topic_or_partition, _NO_ID, [], operations(name)))
            continue
        first = max(0, first_partition) if name == first_topic else 0
        if not room:
            following = {"topic_name": name, "partition_index": first}
            break
        numbers = range(first, info.partitions)[:room]
        room -= len(numbers)
        partitions = [_partition(context, name, number) for number in numbers]
        topics.append(_topic(name, ErrorCode.none, info.topic_id, partitions, operations(name)))
        if first + len(numbers) < info.partitions:
            following = {"topic_name": name, "partition_index": first + len(numbers)}
            break
    if asked:
        topics += [
            _topic(name, ErrorCode.topic_authorization_failed, _NO_ID, [], operations(name))
            for name in call.work.each(sorted(hidden))
        ]
    return {"topics": topics, "next_cursor": following}


def _topic(name: str, error: int, topic_id: UUID, partitions: list[dict[str, Any]], operations: int) -> dict[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": partitions,
        # Always told: a request cannot ask for them.
        "topic_authorized_operations": operations,
    }


def _partition(context: KafkaContext, topic: str, number: int) -> dict[str, Any]:
    leader = context.leader_of(topic, number)
    node_id, is_there = leader.node_id, leader.is_there
    return {
        "error_code": ErrorCode.none if is_there else ErrorCode.leader_not_available,
        "partition_index": number,
        "leader_id": node_id if is_there else -1,
        "leader_epoch": leader.epoch,
        "replica_nodes": [node_id],
        "isr_nodes": [node_id] if is_there else [],
        # Null is allowed, and Kafka's own admin client does not survive it.
        "eligible_leader_replicas": [],
        "last_known_elr": [],
        "offline_replicas": [] if is_there else [node_id],
    }


API = Api(key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, min_version=0, max_version=0, handle=handle, lane=ADMIN)
