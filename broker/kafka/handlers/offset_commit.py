"""OffsetCommit (8): how far a group has read. Answered when it is durable."""

from collections.abc import Mapping, Set
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import NO_NAMES, denied, may
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import Committer, Errors
from broker.kafka.groups.offsets import NEVER, CommittedOffset, Offsets
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema.control import milliseconds

_DEFAULT_RETENTION = -1
_NO_EPOCH = -1
# The first version that members of the newer protocol (KIP-848) use.
_EPOCHS_SINCE = 9


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    body, connection = call.body, call.connection
    if not may(context, connection, Operation.READ, ResourceType.GROUP, body.group_id):
        return _fields(body, {}, otherwise=ErrorCode.group_authorization_failed)
    topics = (topic.name for topic in body.topics)
    unauthorized = denied(context, connection, Operation.READ, ResourceType.TOPIC, topics)
    offsets: Offsets = {}
    now_ms = context.clock.time_ms()
    retention_ms = milliseconds(getattr(body, "retention_time", _DEFAULT_RETENTION))  # up to version 4
    expire_ms = NEVER if retention_ms == _DEFAULT_RETENTION else now_ms + retention_ms
    for topic in body.topics:
        info = None if topic.name in unauthorized else context.logs.topic(topic.name)
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
        return _fields(body, {}, unauthorized)
    committer = Committer(
        body.member_id,
        getattr(body, "group_instance_id", None),  # from version 7 on
        body.generation_id_or_member_epoch,
        call.api_version >= _EPOCHS_SINCE,
    )

    def reply(errors: Errors) -> None:
        call.reply(_fields(body, errors, unauthorized))

    context.groups.offsets.commit(body.group_id, committer, offsets, reply)
    return None


def _fields(
    body: Any,
    errors: Errors,
    unauthorized: Set[str] = NO_NAMES,
    otherwise: ErrorCode = ErrorCode.unknown_topic_or_partition,
) -> dict[str, Any]:
    def error(topic: str, partition: int) -> ErrorCode:
        if topic in unauthorized:
            return ErrorCode.topic_authorization_failed
        return errors.get((topic, partition), otherwise)

    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": error(topic.name, one.partition_index),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


API = Api(key=ApiKey.OFFSET_COMMIT, min_version=2, max_version=9, handle=handle, inline=True)
