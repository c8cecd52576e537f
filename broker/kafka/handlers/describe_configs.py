"""DescribeConfigs (32): the settings of topics, groups, client metrics and this broker, and where each was set."""

from collections.abc import Iterable, Mapping
from typing import Any

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.checks import error_fields
from broker.kafka.configs.changes import require_config
from broker.kafka.configs.client_metrics import require_name as require_subscription
from broker.kafka.configs.group_settings import require_name as require_group_name
from broker.kafka.configs.resources import Entry, ResourceType, Settings, is_this_broker, require_topic
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

Resource = tuple[int, str]
Keys = frozenset[str] | None


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    settings = Settings(context)
    wanted = list(_distinct(call.body.resources).items())
    return {"results": call.array(wanted, lambda resource: _describe(context, call, settings, *resource))}


def _distinct(resources: Iterable[Any]) -> dict[Resource, Keys]:
    """The settings asked of each resource. A repeated resource is described once, with all the settings asked of it."""
    wanted: dict[Resource, Keys] = {}
    for item in resources:
        resource = item.resource_type, item.resource_name
        # No keys, be it null or an empty list, means all of them.
        keys = frozenset(item.configuration_keys) if item.configuration_keys else None
        before = wanted.get(resource, frozenset())
        wanted[resource] = None if keys is None or before is None else keys | before
    return wanted


def _describe(context: KafkaContext, call: Call, settings: Settings, resource: Resource, keys: Keys) -> dict[str, Any]:
    call.work.checkpoint()
    request = call.body
    code, message, entries = int(ErrorCode.none), None, list[Entry]()
    try:
        require_config(context, call.connection, Operation.DESCRIBE_CONFIGS, *resource)
        entries = _entries(context, settings, *resource)
    except (Refusal, StorageError) as error:
        code, message = error_fields(error)
    if keys is not None:
        entries = [entry for entry in entries if entry["name"] in keys]
    for entry in entries:
        if not request.include_synonyms:
            entry["synonyms"] = []
        if not getattr(request, "include_documentation", False):  # from version 3 on
            entry["documentation"] = None
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource[0],
        "resource_name": resource[1],
        "configs": entries,
    }


def _entries(context: KafkaContext, settings: Settings, kind: int, name: str) -> list[Entry]:
    if kind == ResourceType.TOPIC:
        return settings.topic_entries(require_topic(context, name).configs)
    if kind == ResourceType.BROKER:
        return settings.broker_entries() if is_this_broker(context, name) else settings.cluster_entries()
    if kind == ResourceType.GROUP:
        require_group_name(name)
        return settings.group_entries(context.groups.configs.own(name))
    if kind == ResourceType.CLIENT_METRICS:
        require_subscription(name)
        return settings.client_metrics_entries(context.telemetry.configs.own(name))
    if kind == ResourceType.BROKER_LOGGER:
        if not name:
            raise RequestError(ErrorCode.invalid_request, "Name the broker whose loggers you mean.")
        is_this_broker(context, name)
        return []  # All loggers have one level, which is set at the start.
    raise RequestError(ErrorCode.invalid_request, f"Resources of type {kind} have no settings here.")


API = Api(key=ApiKey.DESCRIBE_CONFIGS, min_version=1, max_version=4, handle=handle, lane=ADMIN)
