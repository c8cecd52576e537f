"""ListConfigResources: the names that DescribeConfigs knows, by type."""

from collections.abc import Iterator

import pytest

from broker.kafka.handlers.list_config_resources import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(node_id=5) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    return kafka.topic()


@pytest.fixture(scope="module")
def group(kafka: Kafka) -> str:
    """One for which something was set."""
    change = {"name": "share.isolation.level", "config_operation": 0, "value": "read_committed"}
    resource = {"resource_type": GROUP, "resource_name": "a group", "configs": [change]}
    answer = kafka.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert [ErrorCode.none] == [response.error_code for response in answer.responses]
    return "a group"


def listed(kafka: Kafka, *types: int) -> list[tuple[int, str]]:
    answer = kafka.ask(API.key, 1, resource_types=types)
    assert answer.error_code == ErrorCode.none
    return [(resource.resource_type, resource.resource_name) for resource in answer.config_resources]


def test_each_type_can_be_asked_for_by_itself(kafka: Kafka, topic: str, group: str) -> None:
    assert [(TOPIC, topic)] == listed(kafka, TOPIC)
    assert [(BROKER, "5")] == listed(kafka, BROKER)
    assert [(BROKER_LOGGER, "5")] == listed(kafka, BROKER_LOGGER)
    assert [(GROUP, group)] == listed(kafka, GROUP)
    assert [] == listed(kafka, CLIENT_METRICS)


def test_all_types_are_listed_where_none_is_named(kafka: Kafka, topic: str, group: str) -> None:
    everything = [(TOPIC, topic), (BROKER, "5"), (BROKER_LOGGER, "5"), (GROUP, group)]
    assert everything == listed(kafka)
    assert everything == listed(kafka, GROUP, BROKER, BROKER_LOGGER, CLIENT_METRICS, TOPIC, TOPIC)


def test_everything_that_is_listed_can_be_described(kafka: Kafka, topic: str, group: str) -> None:
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in listed(kafka)
    ]
    answer = kafka.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
    assert [ErrorCode.none] * 4 == [result.error_code for result in answer.results]


def test_version_0_lists_client_metrics_only(kafka: Kafka, topic: str, group: str) -> None:
    answer = kafka.ask(API.key, 0)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.none, ())


@pytest.mark.parametrize("types", [(1,), (64, TOPIC), (-1,)])
def test_an_unknown_type_is_refused(kafka: Kafka, types: tuple[int, ...]) -> None:
    answer = kafka.ask(API.key, 1, resource_types=types)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.unsupported_version, ())
