"""AlterConfigs (33), the older form: all values that a resource sets. Values that are not named are removed."""

from collections.abc import Callable, Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.configs.changes import alter, refuse_null
from broker.kafka.configs.own_values import Changes, Plan
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from protocol.kafka.api_keys import ApiKey


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    return {"responses": alter(context, call, call.body.resources, call.body.validate_only, _plan)}


def _plan(resource: Any) -> Plan:
    def plan(own: Mapping[str, str], _in_force: Callable[[str], str]) -> Changes:
        refuse_null(resource.configs)
        return {**dict.fromkeys(own), **{config.name: config.value for config in resource.configs}}

    return plan


API = Api(key=ApiKey.ALTER_CONFIGS, min_version=0, max_version=2, handle=handle, lane=ADMIN, settles=True)
