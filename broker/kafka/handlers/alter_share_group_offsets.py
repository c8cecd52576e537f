"""AlterShareGroupOffsets (91, KIP-932): an administrator sets where a share group begins, while the group has no members.

All records from there on are delivered again, even if the group has acknowledged them. A group that does not exist is made. An
offset beyond an end of the log becomes that end. Answered when the offsets are durable.

Tests: tests/kafka/handlers/test_share_group_offsets.py.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.kafka.handlers.share_fetch import check_group_id
from broker.network.work import ADMIN
from broker.runtime.threads import Lock
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

Partition = tuple[str, int]
_NO_GROUP = "The id is that of a group of another protocol."
_MESSAGES = {
    ErrorCode.non_empty_group: "Stop the members of the group first.",
    ErrorCode.group_id_not_found: _NO_GROUP,
}
_NO_PARTITION = "There is no such partition."


class _Answer:
    """Waits for the partitions of one request. Any thread."""

    def __init__(self, call: Call, topics: Mapping[str, Any], count: int) -> None:
        self.errors: dict[Partition, tuple[int, str | None]] = {}
        self._call = call
        self._topics = topics
        self._left = count + 1
        self._lock = Lock()

    def done(self, key: Partition, error: Refusal | StorageError | None) -> None:
        self.errors[key] = (ErrorCode.none, None) if error is None else error_fields(error)
        self.one_less()

    def one_less(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._call.reply(
            {
                "error_code": ErrorCode.none,
                "responses": [
                    {
                        "topic_name": name,
                        "topic_id": topic_id,
                        "partitions": [self._partition(name, partition.partition_index) for partition in partitions],
                    }
                    for name, (topic_id, partitions) in self._topics.items()
                ],
            }
        )

    def _partition(self, topic: str, partition: int) -> dict[str, Any]:
        code, message = self.errors.get((topic, partition), (ErrorCode.unknown_topic_or_partition, _NO_PARTITION))
        return {"partition_index": partition, "error_code": code, "error_message": message}


def handle(context: KafkaContext, call: Call) -> None:
    body, connection = call.body, call.connection
    group_id = body.group_id
    require(context, connection, Operation.READ, ResourceType.GROUP, group_id)
    check_group_id(group_id)
    names = [topic.topic_name for topic in body.topics]
    hidden = denied(context, connection, Operation.READ, ResourceType.TOPIC, names)
    topics: dict[str, Any] = {}
    known: dict[Partition, int] = {}
    for topic in body.topics:
        name = topic.topic_name
        info = None if name in hidden else context.logs.topic(name)
        topics[name] = None if info is None else info.topic_id, topic.partitions
        for partition in topic.partitions:
            if info is not None and 0 <= partition.partition_index < info.partitions:
                known[name, partition.partition_index] = partition.start_offset
    if known:
        error = context.groups.share.begin_alter(group_id)
        if error:
            raise RequestError(error, _MESSAGES.get(error, ""))
    answer = _Answer(call, topics, len(known))
    for name in hidden:
        forbidden = (ErrorCode.topic_authorization_failed, "Not authorized.")
        answer.errors.update({(name, partition.partition_index): forbidden for partition in topics[name][1]})
    elsewhere = {key: offset for key, offset in known.items() if context.share.is_elsewhere(*key)}
    for key, offset in known.items():
        if key not in elsewhere:
            _reset(context, group_id, topics[key[0]][0], key, offset, answer)
    if elsewhere:
        _reset_elsewhere(context, group_id, topics, elsewhere, answer)
    answer.one_less()


def _reset_elsewhere(
    context: KafkaContext,
    group_id: str,
    topics: Mapping[str, Any],
    offsets: Mapping[Partition, int],
    answer: _Answer,
) -> None:
    failure = None
    try:
        by_id = {(topics[topic][0].bytes, partition): offset for (topic, partition), offset in offsets.items()}
        context.share.reset_elsewhere(group_id, by_id)
    except StorageError as error:
        failure = error
    for key in offsets:
        answer.done(key, failure)


def _reset(context: KafkaContext, group_id: str, topic_id: Any, key: Partition, offset: int, answer: _Answer) -> None:
    try:
        is_there = context.share.reset(group_id, topic_id, key[1], offset, partial(answer.done, key))
    except (Refusal, StorageError) as error:
        answer.done(key, error)
    else:
        if not is_there:
            answer.done(key, RequestError(ErrorCode.unknown_topic_or_partition, _NO_PARTITION))


def refused(call: Call, error: RequestError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message, "responses": []}


API = Api(
    key=ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    min_version=0,
    max_version=0,
    handle=handle,
    on_error=refused,
    lane=ADMIN,
    settles=True,
)
