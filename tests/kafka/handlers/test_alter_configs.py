"""AlterConfigs: all of a resource's own settings at once."""

import pytest

from broker.kafka.handlers.alter_configs import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.changing import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    TOPIC,
    broker_values,
    in_force,
    own,
    replace,
)
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@all_versions
def test_named_settings_are_set_and_others_removed(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(retention_ms="1000", segment_ms="5000")
    result = replace(kafka, TOPIC, topic, {"retention.ms": "2000", "cleanup.policy": "compact"}, version=version)
    assert (ErrorCode.none, None) == (result.error_code, result.error_message)
    assert {"retention.ms": "2000", "cleanup.policy": "compact"} == own(kafka, topic)
    config = in_force(kafka, topic)
    assert (2000, 604_800_000, True) == (config.retention_ms, config.segment_ms, config.compact)


@all_versions
def test_nothing_named_takes_everything_back(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(retention_ms="1000")
    assert replace(kafka, TOPIC, topic, {}, version=version).error_code == ErrorCode.none
    assert own(kafka, topic) == {}


@all_versions
def test_validate_only_changes_nothing(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(retention_ms="1000")
    good = replace(kafka, TOPIC, topic, {"segment.ms": "7"}, validate_only=True, version=version)
    bad = replace(kafka, TOPIC, topic, {"segment.ms": "x"}, validate_only=True, version=version)
    assert (ErrorCode.none, ErrorCode.invalid_config) == (good.error_code, bad.error_code)
    assert {"retention.ms": "1000"} == own(kafka, topic)
    assert in_force(kafka, topic).retention_ms == 1000


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({"retention.ms": "soon"}, ErrorCode.invalid_config),
        ({"no.such.setting": "1"}, ErrorCode.invalid_config),
        ({"retention.ms": None}, ErrorCode.invalid_request),
    ],
    ids=str,
)
@all_versions
def test_what_cannot_be_changes_nothing(
    kafka: Kafka, version: int, configs: dict[str, str | None], code: ErrorCode
) -> None:
    topic = kafka.topic(segment_ms="5000")
    result = replace(kafka, TOPIC, topic, {**configs, "segment.ms": "6000"}, version=version)
    assert code == result.error_code
    assert result.error_message
    assert {"segment.ms": "5000"} == own(kafka, topic)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "not a name", ErrorCode.invalid_topic_exception),
        (TOPIC, "", ErrorCode.invalid_request),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "one", ErrorCode.invalid_request),
        (BROKER_LOGGER, "1", ErrorCode.invalid_request),
        (CLIENT_METRICS, "x", ErrorCode.invalid_request),
        (99, "x", ErrorCode.invalid_request),
    ],
)
@all_versions
def test_what_is_not_there_cannot_be_changed(kafka: Kafka, version: int, kind: int, name: str, code: ErrorCode) -> None:
    result = replace(kafka, kind, name, {"retention.ms": "1"}, version=version)
    assert code == result.error_code
    assert result.error_message


def test_repeated_resource_or_setting_is_refused(kafka: Kafka) -> None:
    topic, other = kafka.topic(), kafka.topic()
    configs = [{"name": "retention.ms", "value": "1"}]
    resources = [
        {"resource_type": TOPIC, "resource_name": topic, "configs": configs},
        {"resource_type": TOPIC, "resource_name": other, "configs": configs * 2},
        {"resource_type": TOPIC, "resource_name": topic, "configs": configs},
    ]
    responses = kafka.ask(API.key, 2, resources=resources, validate_only=False).responses
    assert [(topic, 42), (other, 42), (topic, 42)] == [(r.resource_name, r.error_code) for r in responses]
    assert own(kafka, topic) == own(kafka, other) == {}


def test_broker_changes_and_resets_topic_defaults() -> None:
    with Kafka() as kafka:
        plain, with_own = kafka.topic(), kafka.topic(retention_ms="1000")
        changed = {"log.retention.ms": "5000", "message.max.bytes": "2000"}
        assert replace(kafka, BROKER, "", changed).error_code == ErrorCode.none
        assert (5000, 2000) == (in_force(kafka, plain).retention_ms, in_force(kafka, plain).max_message_bytes)
        assert (1000, 2000) == (in_force(kafka, with_own).retention_ms, in_force(kafka, with_own).max_message_bytes)
        assert in_force(kafka, kafka.topic()).retention_ms == 5000
        assert {"log.retention.ms": ("5000", 3), "message.max.bytes": ("2000", 3)} == broker_values(kafka, "")
        assert broker_values(kafka, "1")["log.retention.ms"] == ("5000", 3)

        assert replace(kafka, BROKER, "", {"log.retention.ms": "6000"}).error_code == ErrorCode.none
        assert (6000, 1_048_588) == (in_force(kafka, plain).retention_ms, in_force(kafka, plain).max_message_bytes)


@pytest.mark.parametrize(
    "configs",
    [
        {"queued.max.requests": "4"},  # read at the start
        {"num.io.threads": "17"},  # more than twice as many
        {"no.such.setting": "1"},
        {"log.retention.ms": "soon"},
        {"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "1"},
    ],
    ids=str,
)
def test_unchangeable_broker_setting_refuses_the_whole_change(kafka: Kafka, configs: dict[str, str | None]) -> None:
    result = replace(kafka, BROKER, "", {"log.segment.bytes": "5000", **configs})
    assert result.error_code == ErrorCode.invalid_request
    assert result.error_message
    assert broker_values(kafka, "") == {}
    assert in_force(kafka, kafka.topic()).segment_bytes == 1 << 30
