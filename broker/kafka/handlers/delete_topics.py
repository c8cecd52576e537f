"""DeleteTopics (20): by name, and from version 6 on by topic id as well."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import attrs

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import may, refusal
from broker.kafka.checks import NAMED_TWICE, change_together, error_fields, repeated
from broker.kafka.context import KafkaContext
from broker.network.service import Connection
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from broker.storage.config import TopicInfo
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# From this version on a client knows THROTTLING_QUOTA_EXCEEDED (KIP-599).
_STRICT_SINCE = 5
Wanted = tuple[str | None, UUID | None]


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    wanted = list(_wanted(call.body))
    if not context.config.delete_topic_enable:
        # Code 73 came with version 3; older clients would not know it.
        code = ErrorCode.topic_deletion_disabled if call.api_version >= 3 else ErrorCode.invalid_request
        error = RequestError(code, "Topics cannot be deleted here: delete.topic.enable is false.")
        return {"responses": [_result(*key, error) for key in wanted]}
    may_delete = _Rights(context, call.connection)
    topics = [may_delete.check(key, _find(context, *key)) for key in wanted]
    # All are looked up before any is deleted: a topic may be named twice, by its name and by its id.
    twice = repeated(
        info.name if isinstance(info, TopicInfo) else key for key, info in zip(wanted, topics, strict=True)
    )
    responses: dict[Any, dict[str, Any]] = {}

    def delete(item: tuple[Wanted, Any]) -> None:
        key, info = item
        identity = info.name if isinstance(info, TopicInfo) else key
        if identity in twice:
            responses[identity] = _result(*key, NAMED_TWICE)
        elif isinstance(info, _Denied):
            responses[identity] = _result(info.name, key[1], refusal(ResourceType.TOPIC))
        elif isinstance(info, RequestError):
            responses[identity] = _result(*key, info)
        else:
            call.work.checkpoint()  # each waits for the disk
            responses[identity] = _delete(context, call, info)

    for some, failure in change_together(context, list(zip(wanted, topics, strict=True)), delete):
        responses.update({key: _result(*key, failure) for key, _ in some})
    return {"responses": list(responses.values())}


def _wanted(request: Any) -> Iterator[Wanted]:
    if hasattr(request, "topic_names"):  # versions 1 to 5
        for name in request.topic_names:
            yield name, None
    else:
        for topic in request.topics:
            yield topic.name, topic.topic_id


def _find(context: KafkaContext, name: str | None, topic_id: UUID | None) -> TopicInfo | RequestError:
    if (name is None) == (topic_id is None):
        return RequestError(ErrorCode.invalid_request, "Give the name of a topic or its id, and not both.")
    if name is not None:
        info = context.logs.topic(name)
        return info or RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
    assert topic_id is not None
    info = context.logs.topic_by_id(topic_id)
    return info or RequestError(ErrorCode.unknown_topic_id, f"There is no topic with the id {topic_id}.")


@attrs.frozen
class _Denied:
    """A topic that the client may not delete. ``name`` None: the request has its id, and the client may not know its name."""

    name: str | None


class _Rights:
    """As in Kafka: a client that may delete the cluster's topics may delete each. Others need DELETE on the topic, and are told
    whether a name exists only with DESCRIBE. Ids cannot be guessed, so it is no secret that there is no topic with an id."""

    def __init__(self, context: KafkaContext, connection: Connection) -> None:
        self._context = context
        self._connection = connection
        self._all = may(context, connection, Operation.DELETE, ResourceType.CLUSTER, audited=False)

    def check(self, key: Wanted, topic: TopicInfo | RequestError) -> TopicInfo | RequestError | _Denied:
        if self._all:
            return topic
        name, topic_id = key
        if isinstance(topic, TopicInfo):
            describable = self._may(Operation.DESCRIBE, topic.name, audited=name is not None)
            # By id DELETE is enough, as in Kafka: the client has shown that it knows the topic.
            if (describable or name is None) and self._may(Operation.DELETE, topic.name):
                return topic
            return _Denied(topic.name if describable else name)
        if name is not None and topic_id is None and not self._may(Operation.DESCRIBE, name):
            return _Denied(name)
        return topic

    def _may(self, operation: Operation, name: str, *, audited: bool = True) -> bool:
        return may(self._context, self._connection, operation, ResourceType.TOPIC, name, audited=audited)


def _delete(context: KafkaContext, call: Call, info: TopicInfo) -> dict[str, Any]:
    try:
        call.check_mutations(_STRICT_SINCE)
        context.logs.delete_topic(info.name)
        call.mutated(info.partitions, _STRICT_SINCE)
    except (Refusal, StorageError) as error:
        return _result(info.name, info.topic_id, error)
    return _result(info.name, info.topic_id)


def _result(name: str | None, topic_id: UUID | None, error: Refusal | StorageError | None = None) -> dict[str, Any]:
    code, message = error_fields(error) if error else (ErrorCode.none, None)
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}


API = Api(key=ApiKey.DELETE_TOPICS, min_version=1, max_version=6, handle=handle, lane=ADMIN)
