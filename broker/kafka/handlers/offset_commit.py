"""OffsetCommit (8): how far a group has read. Answered when it is durable."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import Committer, Errors
from broker.kafka.groups.offsets import NEVER, CommittedOffset, Offsets
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema.control import milliseconds

_DEFAULT_RETENTION = -1
_NO_EPOCH = -1


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    body = call.body
    offsets: Offsets = {}
    now_ms = context.clock.time_ms()
    retention_ms = milliseconds(getattr(body, "retention_time", _DEFAULT_RETENTION))  # up to version 4
    expire_ms = NEVER if retention_ms == _DEFAULT_RETENTION else now_ms + retention_ms
    for topic in body.topics:
        info = context.logs.topic(topic.name)
        partitions = 0 if info is None else info.partitions
        for one in topic.partitions:
            if 0 <= one.partition_index < partitions:
                offsets[topic.name, one.partition_index] = CommittedOffset(
                    one.committed_offset,
                    getattr(one, "committed_leader_epoch", _NO_EPOCH),  # from version 6 on
                    one.committed_metadata or "",
                    now_ms,
                    expire_ms,
                )
    if not offsets:
        return _fields(body, {})
    committer = Committer(
        body.member_id,
        getattr(body, "group_instance_id", None),  # from version 7 on
        body.generation_id_or_member_epoch,
    )
    context.groups.offsets.commit(body.group_id, committer, offsets, lambda errors: call.reply(_fields(body, errors)))
    return None


def _fields(body: Any, errors: Errors) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": errors.get(
                            (topic.name, one.partition_index), ErrorCode.unknown_topic_or_partition
                        ),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


API = Api(key=ApiKey.OFFSET_COMMIT, min_version=2, max_version=8, handle=handle, inline=True)
