"""OffsetFetch (9): how far groups have read. Before version 8 a request names one group, from then on any number."""

from collections.abc import Mapping, Set
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import NO_NAMES, denied, may
from broker.kafka.checks import repeated
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import FetchedTopic
from broker.kafka.groups.offsets import CommittedOffset, Partition
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_NO_EPOCH = -1
# What Kafka answers for a partition without a committed offset. It is not an error.
NOTHING = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_ms=-1)


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    """With ``require_stable`` (from version 7 on), a partition of which an undecided transaction commits an offset is refused
    with UNSTABLE_OFFSET_COMMIT: the client asks again. A group that is named twice is refused; a partition that is named
    twice is answered once."""
    body = call.body
    stable = getattr(body, "require_stable", False)
    if call.api_version >= 8:
        twice = repeated(one.group_id for one in body.groups)

        def answer(one: Any) -> dict[str, Any]:
            if one.group_id in twice:
                return {"group_id": one.group_id, "error_code": ErrorCode.invalid_request, "topics": []}
            call.work.checkpoint()
            return {"group_id": one.group_id, **_group(context, call, one, stable)}

        return {"groups": call.array(body.groups, answer)}
    fields = _group(context, call, body, stable)
    if call.api_version < 2 and fields["error_code"]:  # these have no error but the partitions'
        fields["topics"] = [
            _topic((topic.name, [(index, None) for index in topic.partition_indexes]), fields["error_code"])
            for topic in body.topics
        ]
    return fields


def _group(context: KafkaContext, call: Call, wanted: Any, stable: bool) -> dict[str, Any]:
    """Of topics that the client may not describe nothing is looked up; where all are asked for, they are left out."""
    connection, describe = call.connection, Operation.DESCRIBE
    if not may(context, connection, describe, ResourceType.GROUP, wanted.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "topics": []}
    error = context.groups.offsets.check_fetch(
        wanted.group_id,
        getattr(wanted, "member_id", None),  # from version 9 on
        getattr(wanted, "member_epoch", _NO_EPOCH),
    )
    if error:
        return {"error_code": error, "topics": []}
    topics = None if wanted.topics is None else _distinct(wanted.topics)
    hidden = NO_NAMES
    refused: list[FetchedTopic] = []
    if topics is not None:
        hidden = denied(context, connection, describe, ResourceType.TOPIC, (name for name, _ in topics))
        if hidden:
            refused = [(name, [(index, None) for index in indexes]) for name, indexes in topics if name in hidden]
            topics = [topic for topic in topics if topic[0] not in hidden]
    error, found = context.groups.offsets.fetch(wanted.group_id, topics)
    if topics is None:
        names = (name for name, _ in found)
        hidden = denied(context, connection, describe, ResourceType.TOPIC, names, audited=False)
        if hidden:
            found = [topic for topic in found if topic[0] not in hidden]
    unstable = set()
    if stable:
        asked = [(name, [index for index, _ in partitions]) for name, partitions in found]
        unstable = context.groups.offsets.unstable(wanted.group_id, asked)
    if error:
        refused = []

    def answer(topic: FetchedTopic) -> dict[str, Any]:
        if topic[0] in hidden:
            return _topic(topic, ErrorCode.topic_authorization_failed)
        return _topic(topic, ErrorCode.none, unstable)

    return {"error_code": error, "topics": call.array([*found, *refused] if refused else found, answer)}


def _distinct(topics: Any) -> list[tuple[str, list[int]]]:
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [(name, list(partitions)) for name, partitions in wanted.items()]


def _topic(topic: FetchedTopic, error: ErrorCode, unstable: Set[Partition] = frozenset()) -> dict[str, Any]:
    name, partitions = topic
    return {
        "name": name,
        "partitions": [
            _partition(index, NOTHING, ErrorCode.unstable_offset_commit)
            if (name, index) in unstable
            else _partition(index, committed or NOTHING, error)
            for index, committed in partitions
        ],
    }


def _partition(index: int, committed: CommittedOffset, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": error,
    }


API = Api(key=ApiKey.OFFSET_FETCH, min_version=1, max_version=9, handle=handle)
