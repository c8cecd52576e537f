"""OffsetCommit (8): how far a group has read. Answered when it is durable.

From version 10 on topics are named by their ids, so an offset of a topic is never committed for a newer topic of the same name.
"""

from collections.abc import Mapping, Set
from typing import Any
from uuid import UUID

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
_BY_ID_SINCE = 10
# Names of topics by their ids, if a request has ids.
_NO_IDS: Mapping[UUID | None, str] = {}


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    body, connection = call.body, call.connection
    by_id = call.api_version >= _BY_ID_SINCE
    known = _names(context, body.topics) if by_id else _NO_IDS
    if not may(context, connection, Operation.READ, ResourceType.GROUP, body.group_id):
        return _fields(body, {}, known, otherwise=ErrorCode.group_authorization_failed)
    topics = known.values() if by_id else (topic.name for topic in body.topics)
    unauthorized = denied(context, connection, Operation.READ, ResourceType.TOPIC, topics)
    offsets: Offsets = {}
    now_ms = context.clock.time_ms()
    retention_ms = milliseconds(getattr(body, "retention_time", _DEFAULT_RETENTION))  # up to version 4
    expire_ms = NEVER if retention_ms == _DEFAULT_RETENTION else now_ms + retention_ms
    for topic in body.topics:
        name = known.get(topic.topic_id) if by_id else topic.name
        info = None if name is None or name in unauthorized else context.logs.topic(name)
        partitions = 0 if info is None else info.partitions
        for partition in topic.partitions:
            if name is not None and 0 <= partition.partition_index < partitions:
                offsets[name, partition.partition_index] = CommittedOffset(
                    partition.committed_offset,
                    getattr(partition, "committed_leader_epoch", _NO_EPOCH),  # from version 6 on
                    partition.committed_metadata or "",
                    now_ms,
                    expire_ms,
                )
    if not offsets:
        return _fields(body, {}, known, unauthorized)
    committer = Committer(
        body.member_id,
        getattr(body, "group_instance_id", None),  # from version 7 on
        body.generation_id_or_member_epoch,
        call.api_version >= _EPOCHS_SINCE,
    )

    def reply(errors: Errors) -> None:
        call.reply(_fields(body, errors, known, unauthorized))

    context.groups.offsets.commit(body.group_id, committer, offsets, reply)
    return None


def _names(context: KafkaContext, topics: Any) -> Mapping[UUID | None, str]:
    """The names of the topics that exist."""
    ids = {topic.topic_id for topic in topics if topic.topic_id is not None}
    return {topic_id: info.name for topic_id in ids if (info := context.logs.topic_by_id(topic_id)) is not None}


def _fields(
    body: Any,
    errors: Errors,
    known: Mapping[UUID | None, str],
    unauthorized: Set[str] = NO_NAMES,
    otherwise: ErrorCode = ErrorCode.unknown_topic_or_partition,
) -> dict[str, Any]:
    def fields(topic: Any) -> dict[str, Any]:
        if hasattr(topic, "name"):
            name, called = topic.name, {"name": topic.name}
        else:
            name, called = known.get(topic.topic_id), {"topic_id": topic.topic_id}

        def error(partition: int) -> ErrorCode:
            if name in unauthorized:
                return ErrorCode.topic_authorization_failed
            if name is None and otherwise == ErrorCode.unknown_topic_or_partition:
                return ErrorCode.unknown_topic_id
            return errors.get((name, partition), otherwise)

        indexes = [one.partition_index for one in topic.partitions]
        return {
            **called,
            "partitions": [{"partition_index": index, "error_code": error(index)} for index in indexes],
        }

    return {"topics": [fields(topic) for topic in body.topics]}


API = Api(key=ApiKey.OFFSET_COMMIT, min_version=2, max_version=10, handle=handle, inline=True)
