"""DeleteTopics (20): by name, and from version 6 on by topic id as well."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker.errors import RequestError, StorageError
from broker.kafka.admin import error_fields, repeated
from broker.kafka.api import Api, Call
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker

Wanted = tuple[str | None, UUID | None]


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    wanted = list(_wanted(call.body))
    twice = repeated(name for name, _ in wanted if name is not None) | repeated(
        tid for _, tid in wanted if tid is not None
    )
    responses, answered = [], set[Any]()
    for name, topic_id in wanted:
        key = name if name is not None else topic_id
        if key in twice:
            if key in answered:
                continue
            answered.add(key)
            error = RequestError(ErrorCode.invalid_request, "Name each topic only once in a request.")
            responses.append(_result(name, topic_id, error))
        else:
            responses.append(_delete(broker, call, name, topic_id))
    return {"responses": responses}


def _wanted(request: Any) -> Iterator[Wanted]:
    if hasattr(request, "topic_names"):  # versions 1 to 5
        for name in request.topic_names:
            yield name, None
    else:
        for topic in request.topics:
            yield topic.name, topic.topic_id


def _delete(broker: "KafkaBroker", call: Call, name: str | None, topic_id: UUID | None) -> dict[str, Any]:
    try:
        if not broker.config.delete_topic_enable:
            # Code 73 came with version 3; older clients would not know it.
            code = ErrorCode.topic_deletion_disabled if call.api_version >= 3 else ErrorCode.invalid_request
            raise RequestError(code, "Topics cannot be deleted here: delete.topic.enable is false.")
        if name is not None and topic_id is not None:
            raise RequestError(ErrorCode.invalid_request, "Give the name of a topic or its id, not both.")
        if name is not None:
            info = broker.logs.topic(name)
            if info is None:
                raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
        else:
            if topic_id is None:
                raise RequestError(ErrorCode.invalid_request, "Give the name of a topic or its id.")
            info = next((info for info in broker.logs.topics() if info.topic_id == topic_id), None)
            if info is None:
                raise RequestError(ErrorCode.unknown_topic_id, f"There is no topic with the id {topic_id}.")
        broker.logs.delete_topic(info.name)
        return _result(info.name, info.topic_id)
    except (RequestError, StorageError) as error:
        return _result(name, topic_id, error)


def _result(
    name: str | None, topic_id: UUID | None, error: RequestError | StorageError | None = None
) -> dict[str, Any]:
    code, message = error_fields(error) if error else (ErrorCode.none, None)
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}


API = Api(key=ApiKey.DELETE_TOPICS, min_version=1, max_version=6, handle=handle)
