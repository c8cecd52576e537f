"""DescribeConfigs: every setting, what it is worth and where that comes from."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers.describe_configs import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, get, versions

all_versions = pytest.mark.parametrize("version", versions(API))
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS = 2, 4, 8, 16
# Where a value was set.
OF_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(log_retention_bytes=5_000_000, network_threads=2) as kafka:
        yield kafka


def describe(
    kafka: Kafka, kind: int, name: str, *keys: str, version: int = API.max_version, synonyms: bool = False, **more: Any
) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None, **more}
    (result,) = kafka.ask(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=[resource],
        include_synonyms=synonyms,
        include_documentation=False,
    ).results
    assert (kind, name) == (result.resource_type, result.resource_name)
    return result


def entries(result: Any) -> dict[str, Any]:
    assert result.error_code == ErrorCode.none, result.error_message
    return {entry.name: entry for entry in result.configs}


def values(result: Any) -> dict[str, tuple[str, int]]:
    return {name: (entry.value, entry.config_source) for name, entry in entries(result).items()}


def synonyms(entry: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


@all_versions
def test_a_topic_has_kafkas_settings_with_kafkas_defaults(kafka: Kafka, version: int) -> None:
    found = values(describe(kafka, TOPIC, kafka.topic(), version=version))
    assert {
        "cleanup.policy": ("delete", DEFAULT),
        "compression.type": ("producer", DEFAULT),
        "delete.retention.ms": ("86400000", DEFAULT),
        "max.message.bytes": ("1048588", DEFAULT),
        "message.timestamp.type": ("CreateTime", DEFAULT),
        "min.cleanable.dirty.ratio": ("0.5", DEFAULT),
        "min.insync.replicas": ("1", DEFAULT),
        "preallocate": ("false", DEFAULT),
        "retention.ms": ("604800000", DEFAULT),
        "segment.bytes": ("1073741824", DEFAULT),
        "flush.messages": (str(2**63 - 1), DEFAULT),
    }.items() <= found.items()


@all_versions
def test_a_value_says_where_it_was_set(kafka: Kafka, version: int) -> None:
    found = entries(describe(kafka, TOPIC, kafka.topic(retention_ms=" 1000 "), version=version, synonyms=True))
    own, static, default = found["retention.ms"], found["retention.bytes"], found["segment.ms"]
    assert ("1000", OF_TOPIC) == (own.value, own.config_source)
    assert [
        ("retention.ms", "1000", OF_TOPIC),
        ("log.retention.ms", "604800000", DEFAULT),
    ] == synonyms(own)
    assert ("5000000", STATIC) == (static.value, static.config_source)
    assert [("log.retention.bytes", "5000000", STATIC), ("log.retention.bytes", "-1", DEFAULT)] == synonyms(static)
    assert ("604800000", DEFAULT) == (default.value, default.config_source)
    assert [("log.roll.ms", "604800000", DEFAULT)] == synonyms(default)
    assert not any(entry.read_only or entry.is_sensitive for entry in found.values())


@all_versions
def test_synonyms_and_documentation_come_only_when_asked_for(kafka: Kafka, version: int) -> None:
    entry = entries(describe(kafka, TOPIC, kafka.topic(), version=version))["retention.ms"]
    assert entry.synonyms == ()
    assert get(entry, "documentation") is None


@pytest.mark.parametrize("version", range(3, API.max_version + 1))
def test_settings_have_a_type_and_a_documentation(kafka: Kafka, version: int) -> None:
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in ((TOPIC, kafka.topic()), (BROKER, "1"))
    ]
    topic, broker = kafka.ask(
        ApiKey.DESCRIBE_CONFIGS, version, resources=resources, include_synonyms=False, include_documentation=True
    ).results
    assert {
        "cleanup.policy": LIST,
        "compression.type": STRING,
        "max.message.bytes": INT,
        "min.cleanable.dirty.ratio": DOUBLE,
        "preallocate": BOOLEAN,
        "retention.ms": LONG,
    }.items() <= {name: entry.config_type for name, entry in entries(topic).items()}.items()
    assert {
        "num.network.threads": INT,
        "log.retention.ms": LONG,
        "log.segment.bytes": INT,
        "group.min.session.timeout.ms": INT,
        "socket.request.max.bytes": INT,
        "queued.max.request.bytes": LONG,
        "connections.max.idle.ms": LONG,
        "log.cleanup.policy": LIST,
        "listeners": LIST,
        "auto.create.topics.enable": BOOLEAN,
        "log.cleaner.min.cleanable.ratio": DOUBLE,
        "log.dirs": STRING,
    }.items() <= {name: entry.config_type for name, entry in entries(broker).items()}.items()
    for entry in (*topic.configs, *broker.configs):
        assert entry.documentation, entry.name


@all_versions
@pytest.mark.parametrize("kind", [TOPIC, BROKER])
def test_only_the_settings_that_are_named_are_told(kafka: Kafka, version: int, kind: int) -> None:
    name = kafka.topic() if kind == TOPIC else "1"
    found = entries(describe(kafka, kind, name, "compression.type", "no.such.setting", version=version))
    assert {"compression.type"} == found.keys()


@all_versions
def test_an_empty_list_of_names_is_all_of_them(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    result = describe(kafka, TOPIC, topic, version=version, configuration_keys=[])
    assert len(result.configs) > 20


@all_versions
def test_this_broker_tells_its_settings(kafka: Kafka, version: int) -> None:
    found = entries(describe(kafka, BROKER, "1", version=version, synonyms=True))
    assert ("2", STATIC) == (found["num.network.threads"].value, found["num.network.threads"].config_source)
    assert [("num.network.threads", "2", STATIC), ("num.network.threads", "3", DEFAULT)] == synonyms(
        found["num.network.threads"]
    )
    assert ("8", DEFAULT) == (found["num.io.threads"].value, found["num.io.threads"].config_source)
    assert kafka.broker.data_dir == found["log.dirs"].value
    assert found["listeners"].value.startswith("kafka://127.0.0.1")
    assert found["auto.create.topics.enable"].value == "true"
    assert found["node.id"].value == "1"


def test_only_what_can_be_changed_while_running_is_not_read_only(kafka: Kafka) -> None:
    found = entries(describe(kafka, BROKER, "1"))
    assert not found["log.retention.ms"].read_only
    assert not found["message.max.bytes"].read_only
    assert found["num.network.threads"].read_only
    assert found["listeners"].read_only


@all_versions
def test_all_brokers_have_only_what_was_set_for_all(kafka: Kafka, version: int) -> None:
    assert entries(describe(kafka, BROKER, "", version=version)) == {}


@pytest.mark.parametrize("name", ["2", "one", "-1"])
@pytest.mark.parametrize("kind", [BROKER, BROKER_LOGGER])
def test_other_brokers_are_not_known(kafka: Kafka, kind: int, name: str) -> None:
    result = describe(kafka, kind, name)
    assert result.error_code == ErrorCode.invalid_request
    assert result.error_message
    assert result.configs == ()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nowhere", ErrorCode.unknown_topic_or_partition),
        ("not a name", ErrorCode.invalid_topic_exception),
        ("", ErrorCode.invalid_topic_exception),
    ],
)
@all_versions
def test_a_topic_that_is_not_there_has_no_settings(kafka: Kafka, version: int, name: str, code: ErrorCode) -> None:
    result = describe(kafka, TOPIC, name, version=version)
    assert (code, ()) == (result.error_code, result.configs)
    assert result.error_message


def test_loggers_and_kinds_that_are_not_there(kafka: Kafka) -> None:
    assert entries(describe(kafka, BROKER_LOGGER, "1")) == {}
    assert describe(kafka, BROKER_LOGGER, "").error_code == ErrorCode.invalid_request
    assert describe(kafka, CLIENT_METRICS, "x").error_code == ErrorCode.invalid_request
    assert describe(kafka, 99, "x").error_code == ErrorCode.invalid_request


def test_one_resource_may_fail_and_the_next_be_told(kafka: Kafka) -> None:
    resources = [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
        for name in ("nowhere", kafka.topic())
    ]
    results = kafka.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources).results
    assert [ErrorCode.unknown_topic_or_partition, ErrorCode.none] == [result.error_code for result in results]
