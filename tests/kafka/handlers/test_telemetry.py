"""GetTelemetrySubscriptions and PushTelemetry: there for clients while there are subscriptions, and then as in Kafka."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.compression import ZSTD, compress
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.otlp_writer import gauges

GET, PUSH = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY
CLIENT_METRICS = 16
SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def change(kafka: Kafka, name: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [{"name": setting, "config_operation": how, "value": value} for setting, how, value in changes]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    (answer,) = kafka.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False).responses
    return int(answer.error_code)


def subscribe(kafka: Kafka, metrics: str = "*", interval_ms: int = 60_000) -> None:
    settings = [("metrics", SET, metrics), ("interval.ms", SET, str(interval_ms))]
    assert change(kafka, "all", *settings) == ErrorCode.none


def advertised(kafka: Kafka) -> set[int]:
    answer = kafka.ask(ApiKey.API_VERSIONS, 3, client_software_name="a-client", client_software_version="1.5")
    return {key.api_key for key in answer.api_keys} & {GET, PUSH}


def get(kafka: Kafka, instance_id: UUID | None = None) -> Any:
    return kafka.ask(GET, 0, client_instance_id=instance_id)


def push(kafka: Kafka, asked: Any, data: bytes, **other: Any) -> int:
    fields = {
        "client_instance_id": asked.client_instance_id,
        "subscription_id": asked.subscription_id,
        "terminating": False,
        "compression_type": 0,
        "metrics": data,
    }
    return int(kafka.ask(PUSH, 0, **fields | other).error_code)


def test_clients_find_the_apis_while_there_are_subscriptions(kafka: Kafka) -> None:
    assert advertised(kafka) == set()
    subscribe(kafka)
    assert advertised(kafka) == {GET, PUSH}
    assert change(kafka, "all", ("metrics", DELETE, None), ("interval.ms", DELETE, None)) == ErrorCode.none
    assert advertised(kafka) == set()


def test_subscribed_client_pushes_metrics_that_can_be_read(kafka: Kafka) -> None:
    subscribe(kafka, "org.apache.kafka.", 500)
    advertised(kafka)
    asked = get(kafka)
    assert (asked.error_code, asked.requested_metrics) == (ErrorCode.none, ("org.apache.kafka.",))
    assert asked.push_interval.total_seconds() == 0.5
    assert (asked.accepted_compression_types, asked.telemetry_max_bytes) == ((4, 3, 1, 2), 1 << 20)
    assert not asked.delta_temporality
    data = compress(ZSTD, gauges(org__apache__kafka__producer__connection__count=3, other=1))
    assert push(kafka, asked, data, compression_type=ZSTD) == ErrorCode.none
    ((labels, value),) = kafka.inside.telemetry.series().items()
    assert (labels[1:], value) == (("test", "org.apache.kafka.producer.connection.count", ""), 3.0)


def test_errors_are_kafka_s(kafka: Kafka) -> None:
    subscribe(kafka)
    asked = get(kafka)
    again = get(kafka, asked.client_instance_id)
    assert (again.error_code, again.requested_metrics) == (ErrorCode.throttling_quota_exceeded, ())
    assert push(kafka, asked, b"", subscription_id=0) == ErrorCode.unknown_subscription_id
    assert get(kafka, asked.client_instance_id).subscription_id == asked.subscription_id
    assert push(kafka, asked, b"") == ErrorCode.throttling_quota_exceeded
    assert push(kafka, asked, b"", client_instance_id=None) == ErrorCode.invalid_request
    assert push(kafka, get(kafka), b"", compression_type=9) == ErrorCode.unsupported_compression_type
    assert push(kafka, get(kafka), bytes((1 << 20) + 1)) == ErrorCode.telemetry_too_large
    assert push(kafka, get(kafka), b"\xff") == ErrorCode.invalid_record
    assert push(kafka, get(kafka), b"", terminating=True) == ErrorCode.none


def test_subscription_may_match_the_clients_own_description(kafka: Kafka) -> None:
    wanted = (
        "client_software_name=a-client,client_software_version=1[.].*,client_id=test,client_source_address=127.0.0.1"
    )
    assert change(kafka, "one", ("metrics", SET, "a"), ("match", SET, wanted)) == ErrorCode.none
    assert get(kafka).requested_metrics == ()
    advertised(kafka)
    assert get(kafka).requested_metrics == ("a",)


def test_subscriptions_are_resources_with_settings(kafka: Kafka) -> None:
    subscribe(kafka, "a")
    assert change(kafka, "all", ("metrics", APPEND, "b")) == ErrorCode.none
    assert change(kafka, "all", ("interval.ms", APPEND, "b")) == ErrorCode.invalid_config
    assert change(kafka, "all", ("interval.ms", SET, "1")) == ErrorCode.invalid_request
    assert change(kafka, "all", ("nothing", SET, "1")) == ErrorCode.invalid_request
    assert change(kafka, "", ("metrics", SET, "a")) == ErrorCode.invalid_request
    for version in (0, 1):
        (listed,) = kafka.ask(ApiKey.LIST_CONFIG_RESOURCES, version, resource_types=[CLIENT_METRICS]).config_resources
        assert listed.resource_name == "all"
    resource = {"resource_type": CLIENT_METRICS, "resource_name": "all", "configuration_keys": None}
    (shown,) = kafka.ask(
        ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True, include_documentation=True
    ).results
    assert shown.error_code == ErrorCode.none
    assert {("interval.ms", "60000", 7), ("match", "", 5), ("metrics", "a,b", 7)} == {
        (config.name, config.value, config.config_source) for config in shown.configs
    }


def test_operator_limits_the_size_of_a_push() -> None:
    with Kafka(telemetry_max_bytes=500) as kafka:
        subscribe(kafka)
        asked = get(kafka)
        assert asked.telemetry_max_bytes == 500
        assert push(kafka, asked, bytes(501)) == ErrorCode.telemetry_too_large
        asked = get(kafka)
        assert push(kafka, asked, compress(ZSTD, bytes(501)), compression_type=ZSTD) == ErrorCode.telemetry_too_large
        assert push(kafka, get(kafka), gauges(a=1.0)) == ErrorCode.none
