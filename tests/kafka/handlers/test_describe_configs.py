"""DescribeConfigs: every setting, what it is worth and where that comes from."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.config import BrokerConfig
from broker.config.dynamic_settings import BROKER_SETTINGS
from broker.config.server_settings import default_processors
from broker.config.topic_settings import SETTINGS
from broker.kafka.handlers.describe_configs import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.changing import SET, change
from tests.kafka.handlers.kafka_client import Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
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
    (result,) = kafka.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=synonyms).results
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
    described = values(describe(kafka, TOPIC, kafka.topic(), version=version))
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
    }.items() <= described.items()


@all_versions
def test_a_value_says_where_it_was_set(kafka: Kafka, version: int) -> None:
    described = entries(describe(kafka, TOPIC, kafka.topic(retention_ms=" 1000 "), version=version, synonyms=True))
    own, static, default = described["retention.ms"], described["retention.bytes"], described["segment.ms"]
    assert ("1000", OF_TOPIC) == (own.value, own.config_source)
    # Kafka's own default is log.retention.hours, which it names only beside a log.retention.ms that is set.
    assert [("retention.ms", "1000", OF_TOPIC)] == synonyms(own)
    assert ("5000000", STATIC) == (static.value, static.config_source)
    assert [("log.retention.bytes", "5000000", STATIC), ("log.retention.bytes", "-1", DEFAULT)] == synonyms(static)
    assert ("604800000", DEFAULT) == (default.value, default.config_source)
    assert [] == synonyms(default)
    assert [("log.segment.bytes", "1073741824", DEFAULT)] == synonyms(described["segment.bytes"])
    assert not any(entry.read_only or entry.is_sensitive for entry in described.values())


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
    topic, broker = kafka.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=resources, include_documentation=True).results
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
    described = entries(describe(kafka, kind, name, "compression.type", "no.such.setting", version=version))
    assert {"compression.type"} == described.keys()


@all_versions
def test_empty_list_of_names_means_all(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    result = describe(kafka, TOPIC, topic, version=version, configuration_keys=[])
    assert len(result.configs) > 20


@all_versions
def test_this_broker_tells_its_settings(kafka: Kafka, version: int) -> None:
    described = entries(describe(kafka, BROKER, "1", version=version, synonyms=True))
    assert ("2", STATIC) == (described["num.network.threads"].value, described["num.network.threads"].config_source)
    assert [
        ("num.network.threads", "2", STATIC),
        ("num.network.threads", str(default_processors()), DEFAULT),
    ] == synonyms(described["num.network.threads"])
    assert ("8", DEFAULT) == (described["num.io.threads"].value, described["num.io.threads"].config_source)
    assert kafka.broker.data_dir == described["log.dirs"].value
    host, port = kafka.address
    assert described["listeners"].value == described["advertised.listeners"].value == f"PLAINTEXT://{host}:{port}"
    assert described["auto.create.topics.enable"].value == "true"
    assert described["node.id"].value == "1"


def test_default_in_milliseconds_precedes_the_one_in_hours() -> None:
    with Kafka(log_retention_ms=9000) as kafka:
        change(kafka, BROKER, "", ("log.retention.ms", SET, "8000"))
        change(kafka, BROKER, "1", ("log.retention.ms", SET, "7000"))
        topic = kafka.topic(retention_ms="6000")
        described = entries(describe(kafka, TOPIC, topic, synonyms=True))["retention.ms"]
        assert synonyms(described) == [
            ("retention.ms", "6000", OF_TOPIC),
            ("log.retention.ms", "7000", DYNAMIC_BROKER),
            ("log.retention.ms", "8000", DYNAMIC_DEFAULT),
            ("log.retention.ms", "9000", STATIC),
            ("log.retention.hours", "168", DEFAULT),
        ]


def test_synonyms_are_listed_in_order_of_precedence() -> None:
    with Kafka(io_threads=4) as kafka:
        change(kafka, BROKER, "", ("num.io.threads", SET, "5"))
        change(kafka, BROKER, "1", ("num.io.threads", SET, "6"))
        entry = entries(describe(kafka, BROKER, "1", synonyms=True))["num.io.threads"]
        assert (entry.value, entry.config_source, entry.config_type) == ("6", DYNAMIC_BROKER, INT)
        assert [("6", DYNAMIC_BROKER), ("5", DYNAMIC_DEFAULT), ("4", STATIC), ("8", DEFAULT)] == [
            (value, source) for _, value, source in synonyms(entry)
        ]


def test_a_default_that_somebody_sets_was_set() -> None:
    """Whatever its value, a setting says in which of the ways it was given, the last one first."""
    infos = [info for info in BROKER_SETTINGS.values() if info.name not in ("listeners", "data_dir")]
    with Kafka(**{info.name: getattr(BrokerConfig(), info.name) for info in infos}) as kafka:
        described = entries(describe(kafka, BROKER, "1", synonyms=True))
        assert {(entry.name, entry.config_source) for entry in described.values()} == {
            (name, STATIC) for name in described
        }
        changed = {
            entry.name: entry.value
            for entry in described.values()
            if entry.value and not entry.read_only and not entry.name.startswith("ssl.")  # those are one broker's
        }
        for broker in ("", "1"):
            changes = ((name, SET, value) for name, value in changed.items())
            assert change(kafka, BROKER, broker, *changes).error_message is None
        described = entries(describe(kafka, BROKER, "1", synonyms=True))
        every_way = [DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT]
        for name, value in changed.items():
            assert [source for *_, source in synonyms(described[name])] == every_way
            assert [each[:2] for each in synonyms(described[name])[:3]] == [(name, value)] * 3
        topic = kafka.topic(**{setting.name: setting.default_text for setting in SETTINGS})
        for entry in entries(describe(kafka, TOPIC, topic, synonyms=True)).values():
            assert entry.config_source == OF_TOPIC, entry.name


def test_listeners_are_written_as_kafka_does() -> None:
    listeners = (
        "kafka://127.0.0.1:0",
        "kafka://localhost:0?name=docker&advertised=broker:19092",
        "shuffle://127.0.0.1:0",
    )
    with Kafka(listeners=listeners) as kafka:
        described = entries(describe(kafka, BROKER, "1"))
        first, second = (kafka.inside.ports[name] for name in ("kafka", "docker"))
        assert described["listeners"].value == f"PLAINTEXT://127.0.0.1:{first},DOCKER://localhost:{second}"
        assert described["advertised.listeners"].value == f"PLAINTEXT://127.0.0.1:{first},DOCKER://broker:19092"
        assert first != second != 0


def test_ineffective_settings_are_shown_and_secrets_hidden() -> None:
    settings = {"background.threads": "4", "delegation.token.secret.key": "geheim"}
    with Kafka(ignored_kafka_settings=settings) as kafka:
        described = entries(describe(kafka, BROKER, "1", synonyms=True))
        threads, password = described["background.threads"], described["delegation.token.secret.key"]
        assert (threads.value, threads.config_source, threads.is_sensitive) == ("4", STATIC, False)
        assert (password.value, password.is_sensitive) == (None, True)
        assert synonyms(password) == [("delegation.token.secret.key", None, STATIC)]
        assert "ignored_kafka_settings" not in described


@all_versions
def test_a_group_has_the_settings_of_kafka_4(kafka: Kafka, version: int) -> None:
    described = entries(describe(kafka, GROUP, "any", version=version, synonyms=True))
    assert {name: entry.value for name, entry in described.items()} == {
        "consumer.heartbeat.interval.ms": "5000",
        "consumer.session.timeout.ms": "45000",
        "share.auto.offset.reset": "latest",
        "share.delivery.count.limit": "5",
        "share.heartbeat.interval.ms": "5000",
        "share.isolation.level": "read_uncommitted",
        "share.partition.max.record.locks": "2000",
        "share.record.lock.duration.ms": "30000",
        "share.renew.acknowledge.enable": "true",
        "share.session.timeout.ms": "45000",
    }
    entry = described["consumer.session.timeout.ms"]
    assert synonyms(entry) == [("group.consumer.session.timeout.ms", "45000", DEFAULT)]
    assert describe(kafka, GROUP, "", version=version).error_code == ErrorCode.invalid_request


def test_only_dynamic_settings_are_not_read_only(kafka: Kafka) -> None:
    described = entries(describe(kafka, BROKER, "1"))
    assert not described["log.retention.ms"].read_only
    assert not described["message.max.bytes"].read_only
    assert not described["num.network.threads"].read_only
    assert not described["max.connections"].read_only
    assert described["queued.max.requests"].read_only
    assert described["listeners"].read_only


@all_versions
def test_all_brokers_resource_has_only_common_settings(kafka: Kafka, version: int) -> None:
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
def test_missing_topic_has_no_settings(kafka: Kafka, version: int, name: str, code: ErrorCode) -> None:
    result = describe(kafka, TOPIC, name, version=version)
    assert (code, ()) == (result.error_code, result.configs)
    assert result.error_message


def test_loggers_and_kinds_that_are_not_there(kafka: Kafka) -> None:
    assert entries(describe(kafka, BROKER_LOGGER, "1")) == {}
    assert describe(kafka, BROKER_LOGGER, "").error_code == ErrorCode.invalid_request
    assert describe(kafka, CLIENT_METRICS, "").error_code == ErrorCode.invalid_request
    assert describe(kafka, 99, "x").error_code == ErrorCode.invalid_request


def test_failing_resource_does_not_affect_the_next(kafka: Kafka) -> None:
    resources = [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
        for name in ("nowhere", kafka.topic())
    ]
    results = kafka.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources).results
    assert [ErrorCode.unknown_topic_or_partition, ErrorCode.none] == [result.error_code for result in results]
