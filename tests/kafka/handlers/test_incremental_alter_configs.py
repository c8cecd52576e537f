"""IncrementalAlterConfigs: single settings, and words of lists."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.errors import ConfigError
from broker.kafka.handlers.incremental_alter_configs import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.changing import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    broker_values,
    change,
    in_force,
    own,
    replace,
)
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

# Where a value was set.
DEFAULT, OF_GROUP = 5, 8

all_versions = loop_over("version", versions(API))


@all_versions
def test_one_setting_changes_and_the_others_stay(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(retention_ms="1000", segment_ms="5000")
    result = change(kafka, TOPIC, topic, ("retention.ms", SET, "2000"), ("flush.ms", SET, "10"), version=version)
    assert (ErrorCode.none, None) == (result.error_code, result.error_message)
    assert {"retention.ms": "2000", "segment.ms": "5000", "flush.ms": "10"} == own(kafka, topic)
    assert (2000, 10) == (in_force(kafka, topic).retention_ms, in_force(kafka, topic).flush_ms)


@all_versions
def test_a_setting_is_taken_back(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(retention_ms="1000", segment_ms="5000")
    result = change(kafka, TOPIC, topic, ("retention.ms", DELETE, None), ("flush.ms", DELETE, None), version=version)
    assert result.error_code == ErrorCode.none
    assert {"segment.ms": "5000"} == own(kafka, topic)
    assert in_force(kafka, topic).retention_ms == 604_800_000


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        ("compact", APPEND, "delete", "compact,delete"),
        ("compact", APPEND, "compact", "compact"),
        ("compact", APPEND, "delete,compact", "compact,delete"),
        (None, APPEND, "compact", "delete,compact"),  # onto the default
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        ("compact, delete", SUBTRACT, " delete ", "compact"),
    ],
)
def test_words_are_added_to_and_removed_from_lists(
    kafka: Kafka, before: str | None, operation: int, value: str, after: str
) -> None:
    topic = kafka.topic(**({} if before is None else {"cleanup_policy": before}))
    assert change(kafka, TOPIC, topic, ("cleanup.policy", operation, value)).error_code == ErrorCode.none
    assert {"cleanup.policy": after} == own(kafka, topic)
    assert in_force(kafka, topic).cleanup_policy == tuple(after.split(","))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", APPEND, "1")], ErrorCode.invalid_config),
        ([("retention.ms", SUBTRACT, "1")], ErrorCode.invalid_config),
        ([("no.such.setting", APPEND, "1")], ErrorCode.invalid_config),
        ([("no.such.setting", SET, "1")], ErrorCode.invalid_config),
        ([("retention.ms", SET, "soon")], ErrorCode.invalid_config),
        ([("cleanup.policy", APPEND, "burn")], ErrorCode.invalid_config),
        ([("retention.ms", SET, None)], ErrorCode.invalid_request),
        ([("cleanup.policy", APPEND, None)], ErrorCode.invalid_request),
        ([("retention.ms", 7, "1")], ErrorCode.invalid_request),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.invalid_request),
    ],
    ids=str,
)
@all_versions
def test_what_cannot_be_changes_nothing(
    kafka: Kafka, version: int, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    topic = kafka.topic(segment_ms="5000")
    result = change(kafka, TOPIC, topic, ("segment.ms", SET, "6000"), *changes, version=version)
    assert code == result.error_code
    assert result.error_message
    assert {"segment.ms": "5000"} == own(kafka, topic)


@all_versions
def test_validate_only_changes_nothing(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    result = change(kafka, TOPIC, topic, ("retention.ms", SET, "1"), validate_only=True, version=version)
    assert result.error_code == ErrorCode.none
    assert own(kafka, topic) == {}
    result = change(kafka, BROKER, "", ("log.retention.ms", SET, "1"), validate_only=True, version=version)
    assert result.error_code == ErrorCode.none
    assert broker_values(kafka, "") == {}


def test_tiered_storage_settings_are_accepted_unless_required(kafka: Kafka) -> None:
    topic = kafka.topic()
    tiers = {
        "local.retention.bytes": "-1",
        "local.retention.ms": "5000",
        "remote.log.copy.disable": "true",
        "remote.log.delete.on.disable": "true",
        "remote.storage.enable": "false",
    }
    assert change(kafka, TOPIC, topic, *[(name, SET, value) for name, value in tiers.items()]).error_code == 0
    assert own(kafka, topic) == tiers
    refused = change(kafka, TOPIC, topic, ("remote.storage.enable", SET, "true"))
    assert (refused.error_code, own(kafka, topic)) == (ErrorCode.invalid_config, tiers)


def test_loggers_cannot_be_changed(kafka: Kafka) -> None:
    assert change(kafka, BROKER_LOGGER, "1", ("root", SET, "DEBUG")).error_code == ErrorCode.invalid_request


@pytest.fixture
def fresh() -> Iterator[Kafka]:
    with Kafka(log_retention_ms=9000) as kafka:
        yield kafka


def test_own_broker_setting_overrides_the_common_one(fresh: Kafka) -> None:
    topic = fresh.topic()
    name = "log.retention.ms"
    assert broker_values(fresh, "1")[name] == ("9000", 4)
    assert change(fresh, BROKER, "1", (name, SET, "1000")).error_code == ErrorCode.none
    assert change(fresh, BROKER, "", (name, SET, "2000")).error_code == ErrorCode.none
    assert (in_force(fresh, topic).retention_ms, broker_values(fresh, "1")[name]) == (1000, ("1000", 2))
    change(fresh, BROKER, "1", (name, DELETE, None))
    assert (in_force(fresh, topic).retention_ms, broker_values(fresh, "1")[name]) == (2000, ("2000", 3))
    change(fresh, BROKER, "", (name, DELETE, None))
    assert (in_force(fresh, topic).retention_ms, broker_values(fresh, "1")[name]) == (9000, ("9000", 4))


def test_a_list_of_the_brokers_grows(fresh: Kafka) -> None:
    topic = fresh.topic()
    assert change(fresh, BROKER, "", ("log.cleanup.policy", APPEND, "compact")).error_code == ErrorCode.none
    assert in_force(fresh, topic).cleanup_policy == ("delete", "compact")


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("queued.max.requests", SET),
        ("queued.max.requests", DELETE),
        ("no.such.setting", SET),
        ("no.such.setting", APPEND),
    ],
)
def test_other_settings_of_the_broker_cannot_be_changed(kafka: Kafka, name: str, operation: int) -> None:
    result = change(kafka, BROKER, "1", (name, operation, "4"))
    assert result.error_code == ErrorCode.invalid_request
    assert name in result.error_message


def test_ineffective_kafka_settings_are_remembered(tmp_path: Any) -> None:
    name = "sasl.login.refresh.min.period.seconds"
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert change(kafka, BROKER, "1", (name, SET, "58000")).error_code == ErrorCode.none
        assert change(kafka, BROKER, "", (name, SET, "57000"), validate_only=True).error_code == ErrorCode.none
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert broker_values(kafka, "1")[name] == ("58000", 2)
        assert broker_values(kafka, "") == {}
        assert change(kafka, BROKER, "1", (name, DELETE, None)).error_code == ErrorCode.none
        assert name not in broker_values(kafka, "1")


def test_secrets_and_excess_settings_are_not_remembered(kafka: Kafka) -> None:
    for name, value in (
        ("sasl.jaas.config", "geheim"),
        ("broker.rack", "x" * 10_000),
        ("authorizer.class.name", "org.x.Authorizer"),
    ):
        result = change(kafka, BROKER, "1", (name, SET, value))
        assert (result.error_code, name in result.error_message) == (ErrorCode.invalid_request, True)
        assert "geheim" not in result.error_message
    many = [(f"listener.name.l{n}.ssl.provider", SET, "TLS") for n in range(1_100)]
    assert change(kafka, BROKER, "1", *many).error_code == ErrorCode.invalid_request
    result = change(kafka, BROKER, "1", ("backgroud.threads", SET, "1"))
    assert "Did you mean background.threads?" in result.error_message


def test_a_groups_settings_are_kept_and_come_back(tmp_path: Any) -> None:
    name = "consumer.session.timeout.ms"
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert change(kafka, GROUP, "mine", (name, SET, " 50000")).error_code == ErrorCode.none
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert group_value(kafka, "mine", name) == ("50000", OF_GROUP)
        assert group_value(kafka, "other", name) == ("45000", DEFAULT)
        assert change(kafka, GROUP, "mine", (name, SET, "51000"), validate_only=True).error_code == ErrorCode.none
        assert group_value(kafka, "mine", name) == ("50000", OF_GROUP)
        assert replace(kafka, GROUP, "mine", {"share.auto.offset.reset": "earliest"}).error_code == ErrorCode.none
        assert group_value(kafka, "mine", name) == ("45000", DEFAULT)
        assert group_value(kafka, "mine", "share.auto.offset.reset") == ("earliest", OF_GROUP)


@pytest.mark.parametrize(
    ("group", "setting", "value", "code"),
    [
        ("g", "no.such.setting", "1", ErrorCode.invalid_config),
        ("g", "consumer.session.timeout.ms", "soon", ErrorCode.invalid_config),
        ("g", "consumer.session.timeout.ms", "1000", ErrorCode.invalid_config),
        ("g", "share.auto.offset.reset", "never", ErrorCode.invalid_config),
        ("", "consumer.session.timeout.ms", "50000", ErrorCode.invalid_request),
    ],
)
def test_a_groups_settings_are_checked(kafka: Kafka, group: str, setting: str, value: str, code: ErrorCode) -> None:
    result = change(kafka, GROUP, group, (setting, SET, value))
    assert result.error_code == code
    assert result.error_message


def group_value(kafka: Kafka, group: str, name: str) -> tuple[str, int]:
    resource = {"resource_type": GROUP, "resource_name": group, "configuration_keys": [name]}
    (result,) = kafka.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource]).results
    (entry,) = result.configs
    return entry.value, entry.config_source


def test_broker_change_is_in_force_after_a_restart(tmp_path: Any) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka:
        topic = kafka.topic()
        change(kafka, BROKER, "", ("log.retention.ms", SET, "4321"))
    with Kafka(data_dir=str(tmp_path)) as kafka:
        assert in_force(kafka, topic).retention_ms == 4321
        assert in_force(kafka, kafka.topic()).retention_ms == 4321
        assert broker_values(kafka, "1")["log.retention.ms"] == ("4321", 3)


def test_change_contradicting_the_configuration_prevents_the_start(tmp_path: Any) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka:
        change(kafka, BROKER, "", ("log.cleaner.max.compaction.lag.ms", SET, "1000"))
    with (
        pytest.raises(ConfigError, match=r"log\.cleaner\.max\.compaction\.lag\.ms"),
        Kafka(data_dir=str(tmp_path), log_cleaner_min_compaction_lag_ms=2000),
    ):
        pass


def names_of_threads(kafka: Kafka) -> list[int]:
    (data, *_) = kafka.broker.server.sockets.planes
    return [len(data.processors), len(data.handlers)]


def test_thread_counts_change_at_runtime_and_survive_restarts(tmp_path: Any) -> None:
    with Kafka(data_dir=str(tmp_path), network_threads=2, io_threads=4) as kafka:
        assert names_of_threads(kafka) == [2, 4]
        result = change(kafka, BROKER, "1", ("num.network.threads", SET, "1"), ("num.io.threads", SET, "8"))
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert names_of_threads(kafka) == [1, 8]
        assert change(kafka, BROKER, "", ("num.network.threads", SET, "4")).error_code == ErrorCode.none  # 1 counts
        assert names_of_threads(kafka) == [1, 8]
    with Kafka(data_dir=str(tmp_path), network_threads=2, io_threads=4) as kafka:
        assert names_of_threads(kafka) == [1, 8]
        assert broker_values(kafka, "1")["num.network.threads"] == ("1", 2)
        result = change(kafka, BROKER, "1", ("num.network.threads", DELETE, None))  # from 1 to 4 at once
        assert result.error_code == ErrorCode.invalid_request
        assert "in several steps" in result.error_message
        assert change(kafka, BROKER, "1", ("num.network.threads", SET, "2")).error_code == ErrorCode.none
        assert change(kafka, BROKER, "1", ("num.network.threads", DELETE, None)).error_code == ErrorCode.none
        assert names_of_threads(kafka)[0] == 4


def test_connection_and_housekeeper_limits_change_at_runtime(fresh: Kafka) -> None:
    quotas, logs = fresh.broker.server.sockets.quotas, fresh.inside.logs
    result = change(
        fresh,
        BROKER,
        "",
        ("max.connections", SET, "50"),
        ("max.connections.per.ip", SET, "40"),
        ("max.connections.per.ip.overrides", SET, "10.0.0.1:7,::1:8"),
        ("log.cleaner.backoff.ms", SET, "7"),
        ("producer.id.expiration.ms", SET, "8"),
        ("scrub_bytes_per_second", SET, "0"),
    )
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    assert (quotas.max_connections, quotas.max_per_address) == (50, 40)
    assert quotas.per_address_overrides == {"10.0.0.1": 7, "::1": 8}
    assert (logs.config.log_cleaner_backoff_ms, logs.config.producer_id_expiration_ms) == (7, 8)
    assert logs.housekeeper._config is logs.config
    change(fresh, BROKER, "", *((name, DELETE, None) for name in broker_values(fresh, "")))
    assert quotas.per_address_overrides == {}
    assert logs.config.log_cleaner_backoff_ms == 15_000
    assert broker_values(fresh, "") == {}


def test_a_default_that_contradicts_a_topic_changes_nothing(fresh: Kafka) -> None:
    topic = fresh.topic(min_compaction_lag_ms="5000")
    result = change(
        fresh, BROKER, "", ("log.cleaner.max.compaction.lag.ms", SET, "1000"), ("log.retention.ms", SET, "1")
    )
    assert result.error_code == ErrorCode.invalid_request
    assert topic in result.error_message
    assert broker_values(fresh, "") == {}
    assert in_force(fresh, topic).retention_ms == 9000


def test_listener_limits_precede_the_brokers() -> None:
    with Kafka(listener_settings={"kafka.max_connections": "60"}) as kafka:
        quotas = kafka.broker.server.sockets.quotas
        assert quotas.listeners["kafka"].max_connections == 60
        name = "listener.name.kafka.max.connections"
        assert broker_values(kafka, "1")[name] == ("60", 4)
        result = change(kafka, BROKER, "1", (name, SET, "50"), ("max.connections", SET, "70"))
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert (quotas.max_connections, quotas.listeners["kafka"].max_connections) == (70, 50)
        assert broker_values(kafka, "1")[name] == ("50", 2)
        for wrong in ("listener.name.nobody.max.connections", "listener.name.kafka.num.io.threads"):
            assert change(kafka, BROKER, "1", (wrong, SET, "5")).error_code == ErrorCode.invalid_request
        change(kafka, BROKER, "1", (name, DELETE, None))
        assert quotas.listeners["kafka"].max_connections == 60
