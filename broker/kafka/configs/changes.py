"""Changes of settings while the broker runs: of topics, of groups, and of the broker. Of the broker's own settings only the
defaults for topics can be changed; other settings of Kafka that have no effect here are only remembered.

AlterConfigs and IncrementalAlterConfigs differ in the form of a request. Both lead to changes: a new value by the setting's name,
or None to remove the value. A change is durable and in force when the request is answered.

Runs on handler threads, because it writes to the catalogue.

Tests: tests/kafka/handlers/test_alter_configs.py, tests/kafka/handlers/test_incremental_alter_configs.py.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from broker.config.kafka_names import WITHOUT_EFFECT, is_secret, is_without_effect
from broker.config.topic_settings import BY_NAME
from broker.errors import ConfigError, Refusal, RequestError, StorageError
from broker.kafka.api import Call
from broker.kafka.checks import error_fields, repeated
from broker.kafka.configs import group_settings as group_configs
from broker.kafka.configs.resources import (
    BROKER_SETTINGS,
    TOPIC_DEFAULTS,
    ResourceType,
    is_this_broker,
    require_topic,
    stored_overrides,
)
from broker.kafka.configs.rights import require_config
from broker.kafka.context import KafkaContext
from broker.log import get_logger
from broker.runtime.threads import Lock
from broker.security.acl import Operation
from broker.storage.log.log_config import LogConfig
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

# Changes of broker settings are made one after the other, each checked against those before. They are so rare that one lock
# is enough for all brokers of a process.
_LOCK = Lock()

# The longest value (characters) that is only remembered, and how many such values there may be for all brokers, or for one.
_REMEMBERED_MAX = 8192
_REMEMBERED_COUNT_MAX = 1000

Changes = dict[str, str | None]
# Returns the changes from the values that a resource sets now, and a function for the value in force where it sets none.
Plan = Callable[[Mapping[str, str], Callable[[str], str]], Changes]


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
    """Raises RequestError with invalid_request where a setting has no value."""
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
        entity = str(context.node_id) if is_this_broker(context, name) else ""
        _alter_broker(context, entity, validate_only, plan)
    elif kind == ResourceType.GROUP:
        entity = group_configs.require_name(name)
        with _LOCK:
            checked = group_configs.check(plan(group_configs.own(context, name), group_configs.in_force))
            if not validate_only:
                context.catalogue.alter_broker_configs(checked, entity)
    elif kind == ResourceType.BROKER_LOGGER:
        raise RequestError(ErrorCode.invalid_request, "Log levels are set at the start (logging_level).")
    else:
        raise RequestError(ErrorCode.invalid_request, f"Resources of type {kind} have no settings here.")


def _topic_value(context: KafkaContext, name: str) -> str:
    """The value that is in force for a topic without a value of its own."""
    if name not in BY_NAME:
        raise RequestError(ErrorCode.invalid_config, f"There is no topic setting {name!r}.")
    return context.logs.config.defaults.text(name)


def _alter_broker(context: KafkaContext, entity: str, validate_only: bool, plan: Plan) -> None:
    with _LOCK:
        overrides = stored_overrides(context)
        present = overrides[entity]
        changes = plan(present, lambda name: _broker_value(context, name))
        for name, value in changes.items():
            if name not in BROKER_SETTINGS:
                _check_remembered(name, value)
            elif name not in TOPIC_DEFAULTS:
                raise RequestError(
                    ErrorCode.invalid_request, f"{name} is read at the start: set it in the configuration and restart."
                )
        overrides[entity] = {name: value for name, value in {**present, **changes}.items() if value is not None}
        if len(overrides[entity]) > _REMEMBERED_COUNT_MAX + len(TOPIC_DEFAULTS):
            raise RequestError(ErrorCode.invalid_request, "Take some settings back: so many are not remembered.")
        try:
            defaults = _defaults(context, overrides)
        except Refusal as error:
            # As in Kafka: invalid_config is for settings of topics (KAFKA-13609).
            raise RequestError(ErrorCode.invalid_request, error.message) from error
        if not validate_only:
            context.catalogue.alter_broker_configs(changes, entity)
            _put_in_force(context, defaults)


def _check_remembered(name: str, value: str | None) -> None:
    """Raises RequestError (invalid_request) for what is not a setting of Kafka, and for values that are not to be kept."""
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


def _broker_value(context: KafkaContext, name: str) -> str:
    """The value in force of a broker setting that is a default for topics."""
    if name not in TOPIC_DEFAULTS:
        raise RequestError(ErrorCode.invalid_request, f"{name!r} is no setting that can be changed while running.")
    return context.logs.config.defaults.text(TOPIC_DEFAULTS[name].name)


def load_defaults(context: KafkaContext) -> None:
    """Put in force the changes of earlier runs. Called at the start, before the first request.

    Raises ConfigError if they contradict the configuration of this run.
    """
    if context.config.ignored_kafka_settings:
        log.warning("settings_ignored", settings=sorted(context.config.ignored_kafka_settings))
    with _LOCK:
        overrides = stored_overrides(context)
        try:
            defaults = _defaults(context, overrides)
        except Refusal as error:
            changed = ", ".join(sorted({name for settings in overrides.values() for name in settings}))
            raise ConfigError(
                f"Set what agrees with the settings that were changed while the broker was running ({changed}): {error}"
            ) from error
        if any(overrides.values()):
            _put_in_force(context, defaults)


def _defaults(context: KafkaContext, overrides: Mapping[str, Mapping[str, str]]) -> LogConfig:
    """The defaults for topics. This broker's own settings override those for all brokers, which override the configuration."""
    merged = {**overrides[""], **overrides[str(context.node_id)]}
    by_topic_name = {TOPIC_DEFAULTS[name].name: value for name, value in merged.items() if name in TOPIC_DEFAULTS}
    return LogConfig.from_overrides(LogConfig.from_broker(context.config), by_topic_name)


def _put_in_force(context: KafkaContext, defaults: LogConfig) -> None:
    logs = context.logs
    logs.config = attrs.evolve(logs.config, defaults=defaults)
    for info in logs.topics():
        config = LogConfig.from_overrides(defaults, info.configs)
        for partition in range(info.partitions):
            log = logs.get(info.name, partition)
            if log is not None:
                log.config = config
