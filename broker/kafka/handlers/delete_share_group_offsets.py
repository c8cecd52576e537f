"""DeleteShareGroupOffsets (92, KIP-932): forget the progress of a share group without members in some topics.

When a member comes again, the group begins with them anew, where ``share.auto.offset.reset`` says. Answered when that is durable.

Tests: tests/kafka/handlers/test_share_group_offsets.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.kafka.handlers.alter_share_group_offsets import refused
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_MESSAGES = {
    ErrorCode.non_empty_group: "Stop the members of the group first.",
    ErrorCode.group_id_not_found: "There is no share group of this id.",
}
Result = tuple[int, str | None]


def handle(context: KafkaContext, call: Call) -> None:
    body, connection = call.body, call.connection
    group_id = body.group_id
    require(context, connection, Operation.DELETE, ResourceType.GROUP, group_id)
    names = list(dict.fromkeys(topic.topic_name for topic in body.topics))
    hidden = denied(context, connection, Operation.READ, ResourceType.TOPIC, names)
    refusal = context.groups.refusal(group_id)
    if refusal:
        raise RequestError(refusal, "Another node coordinates the group.")
    begun = {topic for topic, _ in context.share.offsets(group_id)}
    results: dict[str, Result] = {}
    topic_ids = {}
    for name in names:
        info = context.logs.topic(name)
        if name in hidden:
            results[name] = ErrorCode.topic_authorization_failed, "Not authorized."
        elif info is None:
            results[name] = ErrorCode.unknown_topic_or_partition, "There is no such topic."
        elif name not in begun:
            results[name] = ErrorCode.unknown_topic_or_partition, "There is no offset of this topic to delete."
        else:
            topic_ids[name] = info.topic_id

    def done(failure: StorageError | None) -> None:
        result: Result = (ErrorCode.none, None) if failure is None else error_fields(failure)
        call.reply(_fields(results | dict.fromkeys(topic_ids, result), topic_ids))

    if names and len(hidden) == len(names):
        done(None)  # the client is told nothing of the group
        return
    error = context.groups.share.delete_offsets(group_id, list(topic_ids.values()), done)
    if error:
        raise RequestError(error, _MESSAGES.get(error, ""))


def _fields(results: Mapping[str, Result], topic_ids: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "responses": [
            {
                "topic_name": name,
                "topic_id": topic_ids.get(name),
                "error_code": code,
                "error_message": message,
            }
            for name, (code, message) in results.items()
        ],
    }


API = Api(
    key=ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    min_version=0,
    max_version=0,
    handle=handle,
    on_error=refused,
    lane=ADMIN,
    settles=True,
)
