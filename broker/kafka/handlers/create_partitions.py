"""CreatePartitions (37): more partitions for an existing topic. Partitions are never taken away."""

from collections.abc import Mapping
from typing import Any

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, refusal
from broker.kafka.checks import (
    MAX_PARTITIONS_PER_REQUEST,
    NAMED_TWICE,
    check_replicas,
    check_room,
    check_time,
    deadline_of,
    error_fields,
    one_replica,
    repeated,
)
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# From this version on a client knows THROTTLING_QUOTA_EXCEEDED (KIP-599).
_STRICT_SINCE = 3


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    request = call.body
    twice = repeated(topic.name for topic in request.topics)
    results = [_result(name, NAMED_TWICE) for name in sorted(twice)]
    forbidden = denied(
        context, call.connection, Operation.ALTER, ResourceType.TOPIC, (topic.name for topic in request.topics)
    )
    room = MAX_PARTITIONS_PER_REQUEST
    deadline = deadline_of(call, request.timeout)
    for topic in request.topics:
        if topic.name in twice:
            continue
        try:
            if topic.name in forbidden:
                raise refusal(ResourceType.TOPIC)
            check_time(context, call.work, deadline)
            added = _check(context, topic, room)
            room -= added
            if not request.validate_only:
                call.check_mutations(_STRICT_SINCE)
                context.logs.add_partitions(topic.name, topic.count)
                call.mutated(added, _STRICT_SINCE)
            note = one_replica(context, topic.name, 1, topic.assignments or ())
            results.append({**_result(topic.name), "error_message": note})
        except (Refusal, StorageError) as error:
            results.append(_result(topic.name, error))
    return {"results": results}


def _check(context: KafkaContext, topic: Any, room: int) -> int:
    """The number of partitions to add. Raises RequestError if they cannot be added."""
    info = context.logs.topic(topic.name)
    if info is None:
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {topic.name!r}.")
    added: int = topic.count - info.partitions
    if added == 0:
        raise RequestError(
            ErrorCode.invalid_partitions, f"Topic {topic.name!r} has {info.partitions} partition(s) already."
        )
    if added < 0:
        raise RequestError(
            ErrorCode.invalid_partitions,
            f"Topic {topic.name!r} has {info.partitions} partition(s); {topic.count} would not be an increase.",
        )
    check_room(added, room)
    if topic.assignments is not None:
        if len(topic.assignments) != added:
            raise RequestError(
                ErrorCode.invalid_replica_assignment,
                f"{added} partition(s) would be added, but {len(topic.assignments)} assignment(s) are given.",
            )
        for assignment in topic.assignments:
            check_replicas(context, assignment.broker_ids)
    return added


def _result(name: str, error: Refusal | StorageError | None = None) -> dict[str, Any]:
    code, message = error_fields(error) if error else (ErrorCode.none, None)
    return {"name": name, "error_code": code, "error_message": message}


API = Api(key=ApiKey.CREATE_PARTITIONS, min_version=0, max_version=3, handle=handle, lane=ADMIN)
