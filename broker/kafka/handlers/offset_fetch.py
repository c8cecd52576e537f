"""OffsetFetch (9): how far groups have read. Before version 8 a request names one group, from then on any number.

From version 10 on topics are named by their ids. Where all topics are asked for, deleted ones are then left out, as in Kafka.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar
from uuid import UUID

from broker.kafka.api import Api, Call
from broker.kafka.authorization import NO_NAMES, denied, may
from broker.kafka.checks import repeated
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import FetchedTopic
from broker.kafka.groups.offsets import CommittedOffset, Partition
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

T = TypeVar("T")

_NO_EPOCH = -1
_BY_ID_SINCE = 10
# What Kafka answers for a partition without a committed offset. It is not an error.
NOTHING = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_ms=-1)


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    """With ``require_stable`` (from version 7 on), a partition with an offset of an undecided transaction is refused with
    UNSTABLE_OFFSET_COMMIT: the client asks again. A repeated group is refused; a repeated partition is answered once."""
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
    if call.api_version < 2 and fields["error_code"]:  # only partitions have errors
        fields["topics"] = [
            _topic((topic.name, [(index, None) for index in topic.partition_indexes]), fields["error_code"])
            for topic in body.topics
        ]
    return fields


def _unstable(context: KafkaContext, group_id: str, fetched: list[FetchedTopic]) -> Set[Partition]:
    """The partitions with an offset in an open transaction."""
    asked = [(name, [index for index, _ in partitions]) for name, partitions in fetched]
    return context.groups.offsets.unstable(group_id, asked)


def _group(context: KafkaContext, call: Call, wanted: Any, stable: bool) -> dict[str, Any]:
    """Topics that the client may not describe are not looked up; if all are asked for, they are left out."""
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
    by_id = call.api_version >= _BY_ID_SINCE
    ids: dict[str, UUID] = {}  # by name, if the request has ids
    unknown: list[tuple[UUID | None, list[int]]] = []
    if wanted.topics is None:
        topics = None
    elif by_id:
        topics, unknown = _by_id(context, wanted.topics, ids)
    else:
        topics = _distinct((topic.name, topic.partition_indexes) for topic in wanted.topics)
    hidden = NO_NAMES
    refused: list[FetchedTopic] = []
    if topics is not None:
        hidden = denied(context, connection, describe, ResourceType.TOPIC, (name for name, _ in topics))
        if hidden:
            refused = [(name, [(index, None) for index in indexes]) for name, indexes in topics if name in hidden]
            topics = [topic for topic in topics if topic[0] not in hidden]
    error, fetched = context.groups.offsets.fetch(wanted.group_id, topics)
    if topics is None:
        names = (name for name, _ in fetched)
        hidden = denied(context, connection, describe, ResourceType.TOPIC, names, audited=False)
        if hidden:
            fetched = [topic for topic in fetched if topic[0] not in hidden]
        if by_id:
            ids = {name: info.topic_id for name, _ in fetched if (info := context.logs.topic(name)) is not None}
            fetched = [topic for topic in fetched if topic[0] in ids]
    unstable = _unstable(context, wanted.group_id, fetched) if stable else frozenset()
    if error:
        refused, unknown = [], []

    def answer(topic: FetchedTopic) -> dict[str, Any]:
        if topic[0] in hidden:
            fields = _topic(topic, ErrorCode.topic_authorization_failed)
        else:
            fields = _topic(topic, ErrorCode.none, unstable)
        return {**fields, "topic_id": ids[topic[0]]} if by_id else fields

    def answer_any(topic: Any) -> dict[str, Any]:
        if isinstance(topic[0], str):
            return answer(topic)
        topic_id, indexes = topic
        partitions = [_partition(index, NOTHING, ErrorCode.unknown_topic_id) for index in indexes]
        return {"topic_id": topic_id, "partitions": partitions}

    if unknown:
        return {"error_code": error, "topics": call.array([*fetched, *refused, *unknown], answer_any)}
    return {"error_code": error, "topics": call.array([*fetched, *refused] if refused else fetched, answer)}


def _distinct(topics: Iterable[tuple[T, Sequence[int]]]) -> list[tuple[T, list[int]]]:
    wanted: dict[T, dict[int, None]] = {}
    for name, indexes in topics:
        wanted.setdefault(name, {}).update(dict.fromkeys(indexes))
    return [(name, list(partitions)) for name, partitions in wanted.items()]


def _by_id(
    context: KafkaContext, topics: Any, ids: dict[str, UUID]
) -> tuple[list[tuple[str, list[int]]], list[tuple[UUID | None, list[int]]]]:
    """The names of topics, which are also added to ``ids``, and the unknown ids; each with partitions."""
    known: list[tuple[str, list[int]]] = []
    unknown: list[tuple[UUID | None, list[int]]] = []
    for topic_id, indexes in _distinct((topic.topic_id, topic.partition_indexes) for topic in topics):
        info = None if topic_id is None else context.logs.topic_by_id(topic_id)
        if info is None:
            unknown.append((topic_id, indexes))
        else:
            ids[info.name] = info.topic_id
            known.append((info.name, indexes))
    return known, unknown


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


API = Api(key=ApiKey.OFFSET_FETCH, min_version=1, max_version=10, handle=handle)
