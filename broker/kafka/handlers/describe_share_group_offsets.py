"""DescribeShareGroupOffsets (90, KIP-932): where share groups begin in partitions, and how far they are behind (version 1).

What another node has of a group is known as it was stored; how far that is behind is not. As in Kafka, a partition that does
not exist, or with which the group has not begun, has the offset -1 and no error.

Tests: tests/kafka/handlers/test_share_group_offsets.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, may
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.kafka.share.share_service import ShareOffset
from broker.kafka.share.share_store import Key
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_UNKNOWN = ShareOffset(-1, -1)
Offsets = Mapping[tuple[str, int], ShareOffset]


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    groups = {group.group_id: group for group in call.body.groups}
    keys = context.share.keys_of(groups.keys())
    return {"groups": call.array(list(groups.values()), lambda group: _group(context, call, group, keys))}


def _group(context: KafkaContext, call: Call, asked: Any, keys: Mapping[str, list[Key]]) -> dict[str, Any]:
    group_id = asked.group_id
    if not may(context, call.connection, Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _refused(group_id, ErrorCode.group_authorization_failed, "Not authorized.")
    if not group_id:
        return _refused(group_id, ErrorCode.invalid_group_id, "Give a group id.")
    error = context.groups.refusal(group_id)
    if error:
        return _refused(group_id, error, "Another node coordinates the group.")
    try:
        offsets: Offsets = {**context.share.offsets_elsewhere(group_id), **context.share.offsets_of(keys[group_id])}
    except StorageError as failure:
        return _refused(group_id, *error_fields(failure))
    wanted = _all(offsets) if asked.topics is None else {one.topic_name: one.partitions for one in asked.topics}
    hidden = denied(
        context, call.connection, Operation.DESCRIBE, ResourceType.TOPIC, wanted, audited=asked.topics is not None
    )
    if asked.topics is None:
        wanted = {topic: partitions for topic, partitions in wanted.items() if topic not in hidden}
    return {
        "group_id": group_id,
        "error_code": ErrorCode.none,
        "topics": call.array(
            list(wanted.items()),
            lambda item: _hidden(*item) if item[0] in hidden else _topic(context, call, offsets, *item),
        ),
    }


def _refused(group_id: str, error: int, message: str | None) -> dict[str, Any]:
    return {"group_id": group_id, "topics": [], "error_code": error, "error_message": message}


def _all(offsets: Offsets) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(offsets):
        topics.setdefault(topic, []).append(partition)
    return topics


def _hidden(topic: str, partitions: Any) -> dict[str, Any]:
    return {
        "topic_name": topic,
        "topic_id": None,
        "partitions": [
            {
                "partition_index": partition,
                "start_offset": -1,
                "leader_epoch": 0,
                "error_code": ErrorCode.topic_authorization_failed,
                "error_message": "Not authorized.",
            }
            for partition in partitions
        ],
    }


def _topic(context: KafkaContext, call: Call, offsets: Offsets, topic: str, partitions: Any) -> dict[str, Any]:
    info = context.logs.topic(topic)

    def one(partition: int) -> dict[str, Any]:
        offset = offsets.get((topic, partition), _UNKNOWN)
        log = context.logs.get(topic, partition)
        return {
            "partition_index": partition,
            "start_offset": offset.start,
            "leader_epoch": 0 if log is None or offset is _UNKNOWN else log.leader_epoch,
            "lag": offset.lag,
            "error_code": ErrorCode.none,
        }

    return {
        "topic_name": topic,
        "topic_id": None if info is None else info.topic_id,
        "partitions": call.array(partitions, one),
    }


API = Api(key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, min_version=0, max_version=1, handle=handle, lane=ADMIN)
