"""IncrementalAlterConfigs (44): set or remove single settings, add to or remove from lists (KIP-339)."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.configs.changes import alter, refuse_null
from broker.kafka.configs.own_values import Changes, Plan
from broker.kafka.configs.resources import is_list
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


class Operation(IntEnum):
    """Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    return {"responses": alter(context, call, call.body.resources, call.body.validate_only, _plan)}


def _plan(resource: Any) -> Plan:
    def plan(own: Mapping[str, str], in_force: Callable[[str], str]) -> Changes:
        refuse_null(config for config in resource.configs if config.config_operation != Operation.DELETE)
        return {config.name: _changed(config, own, in_force) for config in resource.configs}

    return plan


def _changed(config: Any, own: Mapping[str, str], in_force: Callable[[str], str]) -> str | None:
    operation = config.config_operation
    if operation == Operation.SET:
        return str(config.value)
    if operation == Operation.DELETE:
        return None
    if operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise RequestError(ErrorCode.invalid_request, f"There is no operation {operation}.")
    # If nothing is set yet, a list begins with the value in force: cleanup.policy + compact is "delete,compact".
    present = _words(own[config.name] if config.name in own else in_force(config.name))
    if not is_list(config.name):
        raise RequestError(ErrorCode.invalid_config, f"{config.name} is no list: it can only be set.")
    words = _words(config.value)
    if operation == Operation.APPEND:
        return ",".join(present + [word for word in words if word not in present])
    return ",".join(word for word in present if word not in words)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


API = Api(key=ApiKey.INCREMENTAL_ALTER_CONFIGS, min_version=0, max_version=1, handle=handle, lane=ADMIN, settles=True)
