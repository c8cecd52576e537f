"""CreateTopics (19). A topic exists for every client when its result says so: nothing is created behind the reply."""

from collections.abc import Iterator, Mapping
from typing import Any

from broker.config.topic_settings import SETTINGS
from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, refusal, uncreatable
from broker.kafka.checks import (
    MAX_PARTITIONS_PER_REQUEST,
    NAMED_TWICE,
    change_together,
    check_replicas,
    check_room,
    check_time,
    deadline_of,
    error_fields,
    one_replica,
    repeated,
)
from broker.kafka.configs.resources import Settings
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema.control import Counted

# "The broker's default", for the number of partitions and for the replication factor.
DEFAULT = -1
# From this version on a client knows THROTTLING_QUOTA_EXCEEDED (KIP-599).
_STRICT_SINCE = 6

# A result's error in place of the topic's settings, for a client that may create the topic but not read them.
_HIDDEN: Mapping[str, Any] = {
    "topic_config_error_code": ErrorCode.topic_authorization_failed,
    "num_partitions": -1,
    "replication_factor": -1,
    "configs": None,
}


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    request = call.body
    twice = repeated(topic.name for topic in request.topics)
    results = [_failed(name, NAMED_TWICE) for name in sorted(twice)]
    names = [topic.name for topic in request.topics]
    forbidden = uncreatable(context, call.connection, names)
    unseen = denied(context, call.connection, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names, audited=False)
    room = MAX_PARTITIONS_PER_REQUEST
    settings = Settings(context)
    deadline = deadline_of(call, request.timeout)

    def create(topic: Any) -> None:
        nonlocal room
        try:
            if topic.name in forbidden:
                raise refusal(ResourceType.TOPIC)
            check_time(context, call.work, deadline)
            partitions = _partitions(context, topic)
            check_room(partitions, room)
            if not request.validate_only:
                call.check_mutations(_STRICT_SINCE)
            result = _create(context, settings, topic, partitions, request.validate_only)
            results.append({**result, **_HIDDEN} if topic.name in unseen else result)
            if not request.validate_only:
                call.mutated(partitions, _STRICT_SINCE)
            room -= partitions
        except (Refusal, StorageError) as error:
            results.append(_failed(topic.name, error))

    wanted = [topic for topic in request.topics if topic.name not in twice]
    for some, error in change_together(context, wanted, create):
        results += [_failed(topic.name, error) for topic in some]
    return {"topics": results}


def _create(
    context: KafkaContext, settings: Settings, topic: Any, partitions: int, validate_only: bool
) -> dict[str, Any]:
    configs = {config.name: config.value for config in topic.configs}
    note = one_replica(context, topic.name, topic.replication_factor, topic.assignments)
    info = context.logs.create_topic(topic.name, partitions, configs, validate_only=validate_only)
    return {
        "name": topic.name,
        "topic_id": None if validate_only else info.topic_id,
        "error_code": ErrorCode.none,
        "error_message": note,
        "num_partitions": partitions,
        "replication_factor": 1,
        # Made when the reply is written: there are some 30 of each topic.
        "configs": Counted(len(SETTINGS), _config_entries(settings, configs)),
    }


def _config_entries(settings: Settings, configs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for entry in settings.topic_entries(configs):
        yield {key: entry[key] for key in ("name", "value", "read_only", "config_source", "is_sensitive")}


def _partitions(context: KafkaContext, topic: Any) -> int:
    """The number of partitions to create. Raises RequestError if it or the replication is not possible here."""
    if topic.assignments:
        return _assigned(context, topic)
    if topic.replication_factor != DEFAULT and topic.replication_factor < 1:
        raise RequestError(
            ErrorCode.invalid_replication_factor, "The replication factor must be at least 1, or -1 for the default."
        )
    if topic.num_partitions != DEFAULT and topic.num_partitions < 1:
        raise RequestError(ErrorCode.invalid_partitions, "A topic needs at least 1 partition, or -1 for the default.")
    brokers = 1 if context.nodes is None else context.nodes.count
    if topic.replication_factor > brokers:
        there_are = "is 1 broker" if brokers == 1 else f"are {brokers} brokers"
        raise RequestError(
            ErrorCode.invalid_replication_factor,
            f"A replication factor of {topic.replication_factor} cannot be reached: there {there_are}.",
        )
    return context.config.num_partitions if topic.num_partitions == DEFAULT else int(topic.num_partitions)


def _assigned(context: KafkaContext, topic: Any) -> int:
    """The number of partitions of a manual assignment: numbers from 0 on without gaps, each on nodes of the cluster."""
    if topic.replication_factor != DEFAULT:
        raise RequestError(ErrorCode.invalid_request, "With a manual assignment the replication factor must be -1.")
    if topic.num_partitions != DEFAULT:
        raise RequestError(ErrorCode.invalid_request, "With a manual assignment the number of partitions must be -1.")
    for assignment in topic.assignments:
        check_replicas(context, assignment.broker_ids)
    numbers = sorted(assignment.partition_index for assignment in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise RequestError(
            ErrorCode.invalid_replica_assignment, "A manual assignment must name each partition from 0 on exactly once."
        )
    return len(numbers)


def _failed(name: str, error: Refusal | StorageError) -> dict[str, Any]:
    code, message = error_fields(error)
    return {"name": name, "topic_id": None, "error_code": code, "error_message": message, "configs": None}


API = Api(key=ApiKey.CREATE_TOPICS, min_version=2, max_version=7, handle=handle, lane=ADMIN)
