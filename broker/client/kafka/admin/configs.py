"""Settings of topics, brokers and groups (values in force, their sources, changes), and topics: their partitions,
leaders and sizes, and how they are created, extended and deleted.

Brokers before Kafka 2.3 cannot change single settings; the error then names the missing API. The description of a topic
reports the errors of its partitions instead of failing, because administrators look for them.

Tests: tests/cli/test_configs.py,
tests/cli/test_topics.py.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from broker.client.kafka.admin.requests import Versions, ask, ask_any, ask_controller, ask_node, refused
from broker.client.kafka.config import Address
from broker.client.kafka.errors import KafkaClientError, code_name
from broker.client.kafka.routing import Routing
from broker.client.kafka.values import TopicPartition
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32

# Kind and name: a topic, the number of a broker (empty: the settings of all brokers), a group, or a subscription to
# metrics of clients.
Resource = tuple[int, str]

_SET, _DELETE = 0, 1
SOURCES = {
    0: "unknown",
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
# Sources of a value that was set for the resource itself, at run time.
_OWN: dict[int, set[int]] = {TOPIC: {1}, BROKER: {2, 3, 4}, GROUP: {8}, CLIENT_METRICS: {7}}
_DEFAULTS = {0, 5}


@attrs.frozen
class Entry:
    """``value`` is None for a secret. ``source``: one of ``SOURCES``. ``default``: the value in force if nothing is
    set, None if the broker does not tell it. ``is_own``: set for this resource, not inherited."""

    name: str
    value: str | None
    source: str
    default: str | None
    is_own: bool
    is_default: bool
    is_read_only: bool
    is_secret: bool
    documentation: str | None


@attrs.frozen
class Answer:
    """``code`` is 0 for success, and then ``said`` is empty."""

    code: int
    said: str
    entries: Mapping[str, Entry] = attrs.field(factory=dict)


def describe_configs(
    routing: Routing, resources: Iterable[Resource], keys: Sequence[str] | None = None, documentation: bool = False
) -> dict[Resource, Answer]:
    """All settings of each resource, or those with the names ``keys``. Settings of a broker are asked of that
    broker."""
    answers: dict[Resource, Answer] = {}
    for node, own in _by_node(resources).items():
        wanted = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None if keys is None else list(keys)}
            for kind, name in own
        ]
        fields = {"resources": wanted, "include_synonyms": True, "include_documentation": documentation}
        versions = (1, 4)
        if node is None:
            answer = ask_any(routing, ApiKey.DESCRIBE_CONFIGS, versions, fields)
        else:
            answer = ask_node(routing, node, ApiKey.DESCRIBE_CONFIGS, versions, fields)
        for result in answer.results:
            resource = (int(result.resource_type), result.resource_name)
            entries = {entry.name: _entry(resource[0], entry) for entry in result.configs}
            answers[resource] = _answer(result, entries)
    return answers


def _entry(kind: int, config: Any) -> Entry:
    source, own = int(config.config_source), _OWN.get(kind, set())
    # A broker's setting may also be in its file, which is not its default; a topic's default is the broker's setting.
    others = [synonym for synonym in config.synonyms if synonym.source not in (own if kind != BROKER else own | {4})]
    default = _in_other_units(config.name, others[0]) if others else None
    return Entry(
        config.name,
        config.value,
        SOURCES.get(source, f"source {source}"),
        config.value if default is None and source in _DEFAULTS else default,
        source in own,
        source in _DEFAULTS,
        bool(config.read_only),
        bool(config.is_sensitive),
        getattr(config, "documentation", None) or None,
    )


def _in_other_units(name: str, synonym: Any) -> str | None:
    """The value of a synonym, with the synonym's name if that has another unit, as in log.retention.hours=168."""
    if synonym.value is None or synonym.name.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]:
        return synonym.value  # type: ignore[no-any-return]
    return f"{synonym.name}={synonym.value}"


def alter_configs(
    routing: Routing, changes: Mapping[Resource, Mapping[str, str | None]], validate_only: bool = False
) -> dict[Resource, Answer]:
    """Set settings, or reset them (None)."""
    answers: dict[Resource, Answer] = {}
    for node, own in _by_node(changes).items():
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
                    for key, value in changes[kind, name].items()
                ],
            }
            for kind, name in own
        ]
        fields = {"resources": resources, "validate_only": validate_only}
        key, versions = ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1)
        if node is None:
            answer = ask_controller(routing, key, versions, fields)
        else:
            answer = ask_node(routing, node, key, versions, fields)
        for response in answer.responses:
            answers[int(response.resource_type), response.resource_name] = _answer(response, {})
    return answers


def _by_node(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    """Group the resources by the broker to ask: a broker's settings are asked of that broker, all others (None) of
    any."""
    by_node: dict[int | None, list[Resource]] = {}
    for kind, name in resources:
        node = int(name) if kind == BROKER and name.isdecimal() else None
        by_node.setdefault(node, []).append((kind, name))
    return by_node


def _answer(result: Any, entries: Mapping[str, Entry]) -> Answer:
    code = int(result.error_code)
    message = ((result.error_message or "").strip().rstrip(".") or code_name(code)) if code else ""
    return Answer(code, message, entries)


_METADATA: Versions = (1, 12)
# How long (ms) a broker may take to tell all others of a change.
_CHANGE_MS = 30_000
_CREATE_MIN_WITH_DEFAULTS = 4  # before this version, Kafka has no default for the number of partitions and replicas


@attrs.frozen
class Partition:
    """``leader`` is None if there is none. ``code``: the broker's error for this partition, else 0."""

    number: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    code: int


@attrs.frozen
class Topic:
    name: str
    topic_id: UUID | None
    is_internal: bool
    code: int
    partitions: tuple[Partition, ...]


@attrs.frozen
class Topics:
    """``brokers``: the address of each broker by its number."""

    brokers: Mapping[int, Address]
    topics: tuple[Topic, ...]

    def leaders(self) -> dict[TopicPartition, Address | None]:
        """The address of the leader of each partition; None if there is none."""
        return {
            (topic.name, partition.number): None if partition.leader is None else self.brokers.get(partition.leader)
            for topic in self.topics
            for partition in topic.partitions
        }


@attrs.frozen
class Outcome:
    """The result of changing one topic. ``code`` is 0 for success."""

    name: str
    code: int
    message: str | None


def describe_topics(routing: Routing, names: Collection[str] | None = None) -> Topics:
    """These topics, or all (None), by name. A topic that does not exist has a code, and no topic is created."""

    def attempt() -> Topics:
        requested = None if names is None else [{"name": name} for name in sorted(set(names))]
        connection = routing.any_connection()
        version = connection.version(ApiKey.METADATA, *_METADATA)
        fields: dict[str, Any] = {"topics": requested}
        if version >= 4:
            fields["allow_auto_topic_creation"] = False
        answer = connection.ask(ApiKey.METADATA, version, fields)
        brokers = {node.node_id: (node.host, node.port) for node in answer.brokers}
        return Topics(
            brokers, tuple(_topic(topic) for topic in sorted(answer.topics, key=lambda topic: str(topic.name)))
        )

    return routing.retrying(attempt)


def _topic(topic: Any) -> Topic:
    partitions = tuple(
        Partition(
            partition.partition_index,
            partition.leader_id if partition.leader_id >= 0 else None,
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
            tuple(getattr(partition, "offline_replicas", ())),
            int(partition.error_code),
        )
        for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    )
    return Topic(
        topic.name, getattr(topic, "topic_id", None), bool(topic.is_internal), int(topic.error_code), partitions
    )


def sizes(routing: Routing, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The bytes of the largest replica of each partition. A partition is absent if no broker tells its size: the user
    may not ask, or the partition is offline."""
    wanted: dict[str, list[int]] = {}
    for topic, partition in partitions:
        wanted.setdefault(topic, []).append(partition)
    fields = {"topics": [{"topic": name, "partitions": own} for name, own in wanted.items()]}
    largest: dict[TopicPartition, int] = {}
    try:
        for connection in routing.every_broker():
            answer = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, (1, 4), fields)
            for directory in answer.results:
                for topic in directory.topics:
                    for partition in topic.partitions:
                        key = (topic.name, partition.partition_index)
                        if not partition.is_future_key:
                            largest[key] = max(largest.get(key, 0), partition.partition_size)
    except KafkaClientError:
        return largest
    return largest


def create_topics(
    routing: Routing,
    names: Sequence[str],
    *,
    partitions: int | None,
    replication_factor: int | None,
    settings: Mapping[str, str],
    validate_only: bool = False,
) -> list[Outcome]:
    """``partitions`` and ``replication_factor``: None for the broker's defaults, which exist from Kafka 2.4 on."""
    configs = [{"name": name, "value": value} for name, value in settings.items()]
    topics = [
        {
            "name": name,
            "num_partitions": partitions or -1,
            "replication_factor": replication_factor or -1,
            "assignments": [],
            "configs": configs,
        }
        for name in names
    ]
    lowest = 2 if partitions and replication_factor else _CREATE_MIN_WITH_DEFAULTS
    fields = {"topics": topics, "timeout": _CHANGE_MS, "validate_only": validate_only}
    answer = ask_controller(routing, ApiKey.CREATE_TOPICS, (lowest, 7), fields)
    return _outcomes(answer.topics)


def delete_topics(routing: Routing, names: Sequence[str]) -> list[Outcome]:
    # From version 6 on, a topic is given by its name or its id; this list serves both layouts.
    def fields(version: int) -> dict[str, Any]:
        if version >= 6:
            return {"topics": [{"name": name, "topic_id": None} for name in names], "timeout": _CHANGE_MS}
        return {"topic_names": list(names), "timeout": _CHANGE_MS}

    version = routing.retrying(lambda: routing.any_connection().version(ApiKey.DELETE_TOPICS, 1, 6))
    answer = ask_controller(routing, ApiKey.DELETE_TOPICS, (1, version), fields(version))
    return _outcomes(answer.responses)


def add_partitions(routing: Routing, counts: Mapping[str, int], validate_only: bool = False) -> list[Outcome]:
    """Extend topics to the total numbers of partitions in ``counts``."""
    topics = [{"name": name, "count": count, "assignments": None} for name, count in counts.items()]
    fields = {"topics": topics, "timeout": _CHANGE_MS, "validate_only": validate_only}
    return _outcomes(ask_controller(routing, ApiKey.CREATE_PARTITIONS, (0, 3), fields).results)


def _outcomes(results: Iterable[Any]) -> list[Outcome]:
    return [Outcome(result.name, int(result.error_code), getattr(result, "error_message", None)) for result in results]


def why_offline(routing: Routing, partition: TopicPartition, leader: Address) -> str | None:
    """The broker's own message about a partition that cannot be read, if it has any (from Kafka 2.8 on)."""
    fields = {"topics": [{"name": partition[0], "partition_indexes": [partition[1]]}]}
    try:
        answer = ask(routing.connection(leader), ApiKey.DESCRIBE_PRODUCERS, (0, 0), fields)
    except KafkaClientError:
        return None
    for topic in answer.topics:
        for partition_error in topic.partitions:
            if partition_error.error_code and partition_error.error_message:
                return str(partition_error.error_message)
    return None


def check_exists(topic: Topic) -> None:
    """Raises BrokerAnswerError."""
    if topic.code == ErrorCode.unknown_topic_or_partition:
        refused(topic.code, "there is no such topic", f"{topic.name}")
    if topic.code and not topic.partitions:
        refused(topic.code, None, f"{topic.name}")
