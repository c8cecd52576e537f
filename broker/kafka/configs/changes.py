"""Changes of settings at run time: of topics, groups, client metrics and the broker; and the rights to see or change settings.

``broker.live_config`` says which of the broker's own settings can be changed; settings of Kafka that have no effect here are only
remembered. AlterConfigs and IncrementalAlterConfigs differ in the form of a request. Both lead to changes: a new value by the
setting's name, or None to remove the value. A change is durable and in force when the request is answered.

Changes run on handler threads, because they write to the catalogue; rights are checked on any thread.

Tests: tests/kafka/handlers/test_alter_configs.py,
tests/kafka/handlers/test_incremental_alter_configs.py,
tests/kafka/test_authorization_matrix.py.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from broker.config.dynamic_settings import BROKER_SETTINGS, Way, setting_of, way_of
from broker.config.kafka_names import WITHOUT_EFFECT, is_secret, is_without_effect
from broker.config.setting import InvalidSetting
from broker.config.topic_settings import BY_NAME
from broker.errors import ConfigError, Refusal, RequestError, StorageError
from broker.kafka.api import Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_fields, repeated
from broker.kafka.configs.own_values import Changes, Plan
from broker.kafka.configs.resources import (
    ResourceType,
    entity_of,
    require_topic,
    value_in_force,
)
from broker.kafka.context import KafkaContext
from broker.live_config import ALL_BROKERS
from broker.log import get_logger
from broker.network.service import Connection
from broker.security.acl import CLUSTER_NAME, Operation
from broker.security.acl import ResourceType as AclResource
from protocol.kafka.errors import ErrorCode


def require_config(
    context: KafkaContext, connection: Connection, operation: Operation, config_type: int, name: str
) -> None:
    """Raises RequestError if the client may not do this (DESCRIBE_CONFIGS or ALTER_CONFIGS) with the settings of a resource.

    Resources without settings are allowed here and refused by the handlers, as in Kafka.
    """
    if config_type == ResourceType.TOPIC:
        require(context, connection, operation, AclResource.TOPIC, name)
    elif config_type == ResourceType.GROUP:
        require(context, connection, operation, AclResource.GROUP, name)
    elif config_type in (
        ResourceType.BROKER,
        ResourceType.BROKER_LOGGER,
        ResourceType.CLIENT_METRICS,
    ):
        require(context, connection, operation, AclResource.CLUSTER, CLUSTER_NAME)


log = get_logger("kafka")

# The longest value (characters) that is only remembered, and the maximum number of such values for all brokers, or for one.
_REMEMBERED_MAX = 8192
_REMEMBERED_COUNT_MAX = 1000


def alter(
    context: KafkaContext, call: Call, resources: Sequence[Any], validate_only: bool, plan: Callable[[Any], Plan]
) -> list[dict[str, Any]]:
    """The results for the resources of a request. Each fails or succeeds by itself."""
    twice = repeated((resource.resource_type, resource.resource_name) for resource in resources)
    results = []
    for resource in resources:
        call.work.checkpoint()  # each waits for the disk
        code, message = int(ErrorCode.none), None
        try:
            if (resource.resource_type, resource.resource_name) in twice:
                raise RequestError(ErrorCode.invalid_request, "Name each resource only once in a request.")
            if repeated(config.name for config in resource.configs):
                raise RequestError(ErrorCode.invalid_request, "Name each setting only once for a resource.")
            require_config(
                context, call.connection, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name
            )
            _alter_one(context, resource, validate_only, plan(resource))
        except (Refusal, StorageError) as error:
            code, message = error_fields(error)
        results.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return results


def refuse_null(configs: Iterable[Any]) -> None:
    """Raises RequestError with invalid_request if a setting has no value."""
    names = [config.name for config in configs if config.value is None]
    if names:
        raise RequestError(ErrorCode.invalid_request, f"Give {', '.join(names[:10])} a value, not null.")


def _alter_one(context: KafkaContext, resource: Any, validate_only: bool, plan: Plan) -> None:
    kind, name = resource.resource_type, resource.resource_name
    if kind == ResourceType.TOPIC:
        if not name:
            raise RequestError(
                ErrorCode.invalid_request, "Name the topic; the defaults of all topics are the broker's."
            )
        info = require_topic(context, name)
        changes = plan(info.configs, lambda setting: _topic_value(context, setting))
        context.logs.alter_topic_configs(name, changes, validate_only=validate_only)
    elif kind == ResourceType.BROKER:
        _alter_broker(context, entity_of(context, name), validate_only, plan)
    elif kind == ResourceType.GROUP:
        context.groups.configs.alter(name, plan, validate_only=validate_only)
    elif kind == ResourceType.CLIENT_METRICS:
        context.telemetry.configs.alter(name, plan, validate_only=validate_only)
    elif kind == ResourceType.BROKER_LOGGER:
        raise RequestError(ErrorCode.invalid_request, "Log levels are set at the start (logging_level).")
    else:
        raise RequestError(ErrorCode.invalid_request, f"Resources of type {kind} have no settings here.")


def _topic_value(context: KafkaContext, name: str) -> str:
    """The value in force for a topic without a value of its own."""
    if name not in BY_NAME:
        raise RequestError(ErrorCode.invalid_config, f"There is no topic setting {name!r}.")
    return context.logs.config.defaults.text(name)


def _alter_broker(context: KafkaContext, entity: str, validate_only: bool, plan: Plan) -> None:
    live = context.live

    def checked(present: Mapping[str, str]) -> Changes:
        changes = plan(present, lambda name: value_in_force(live, name))
        for name, value in changes.items():
            if live.can_change(name):
                if way_of(name) is Way.TLS and entity == ALL_BROKERS:
                    raise RequestError(
                        ErrorCode.invalid_request, f"Change {name} for this broker ({context.node_id}), not for all."
                    )
                if way_of(name) is Way.TLS and entity not in live.changes:
                    raise RequestError(
                        ErrorCode.invalid_request, f"Ask broker {entity} itself: only it can try the files of {name}."
                    )
                continue
            if name in BROKER_SETTINGS or setting_of(name) is not None:
                raise RequestError(
                    ErrorCode.invalid_request, f"{name} is read at the start: set it in the configuration and restart."
                )
            _check_remembered(name, value)
        kept = {name for name, value in {**present, **changes}.items() if value is not None}
        if sum(not live.can_change(name) for name in kept) > _REMEMBERED_COUNT_MAX:
            raise RequestError(ErrorCode.invalid_request, "Take some settings back: so many are not remembered.")
        return changes

    try:
        live.alter(entity, checked, validate_only=validate_only)
    except (ConfigError, InvalidSetting) as error:
        # As in Kafka: invalid_config is for settings of topics (KAFKA-13609).
        raise RequestError(ErrorCode.invalid_request, str(error)) from error


def _check_remembered(name: str, value: str | None) -> None:
    """Raises RequestError (invalid_request) for a name that Kafka does not have, and for values that must not be kept."""
    if not is_without_effect(name):
        near = difflib.get_close_matches(name, [*BROKER_SETTINGS, *WITHOUT_EFFECT], 1, 0.8)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise RequestError(ErrorCode.invalid_request, f"There is no broker setting {name!r}.{hint}")
    if value is not None and is_secret(name):
        raise RequestError(
            ErrorCode.invalid_request, f"{name} has no use here, and a secret without a use is not kept."
        )
    if value is not None and len(value) > _REMEMBERED_MAX:
        raise RequestError(
            ErrorCode.invalid_request, f"The value of {name} is longer than {_REMEMBERED_MAX} characters."
        )


def report_ignored(context: KafkaContext) -> None:
    """At the start: name the settings of the configuration that have no effect."""
    if context.config.ignored_kafka_settings:
        log.warning("settings_ignored", settings=sorted(context.config.ignored_kafka_settings))
