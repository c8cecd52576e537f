"""What the tests of AlterConfigs and IncrementalAlterConfigs share: both change the same things."""

from typing import Any

from broker.kafka.handlers import alter_configs, incremental_alter_configs
from broker.storage.log.log_config import LogConfig
from protocol.kafka.api_keys import ApiKey
from tests.kafka.handlers.kafka_client import Kafka

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def replace(
    kafka: Kafka, kind: int, name: str, configs: dict[str, str | None], validate_only: bool = False, version: int = 2
) -> Any:
    """The result of AlterConfigs for one resource."""
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    (result,) = kafka.ask(alter_configs.API.key, version, resources=[resource], validate_only=validate_only).responses
    assert (kind, name) == (result.resource_type, result.resource_name)
    return result


def change(
    kafka: Kafka,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
    version: int = 1,
) -> Any:
    """The result of IncrementalAlterConfigs for one resource; each change is (name, operation, value)."""
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "config_operation": op, "value": value} for key, op, value in changes],
    }
    (result,) = kafka.ask(
        incremental_alter_configs.API.key, version, resources=[resource], validate_only=validate_only
    ).responses
    assert (kind, name) == (result.resource_type, result.resource_name)
    return result


def own(kafka: Kafka, topic: str) -> dict[str, str]:
    """What a topic sets itself."""
    info = kafka.inside.logs.topic(topic)
    assert info is not None
    return dict(info.configs)


def in_force(kafka: Kafka, topic: str) -> LogConfig:
    """What the topic's log goes by."""
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    return log.config


def broker_values(kafka: Kafka, name: str) -> dict[str, tuple[str, int]]:
    """(value, source) of the settings made for a broker, or for all ('')."""
    resource = {"resource_type": BROKER, "resource_name": name, "configuration_keys": None}
    (result,) = kafka.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource]).results
    return {entry.name: (entry.value, entry.config_source) for entry in result.configs}
