"""DescribeConfigs (32): the settings of topics and of this broker, what they are worth now and where that was set."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.errors import RequestError, StorageError
from broker.kafka.admin import error_fields
from broker.kafka.api import Api, Call
from broker.kafka.config_resources import Entry, ResourceType, Settings, is_this_broker, require_topic
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    return {"results": [_describe(broker, call.body, resource) for resource in call.body.resources]}


def _describe(broker: "KafkaBroker", request: Any, resource: Any) -> dict[str, Any]:
    code, message, entries = int(ErrorCode.none), None, list[Entry]()
    try:
        entries = _entries(broker, resource.resource_type, resource.resource_name)
    except (RequestError, StorageError) as error:
        code, message = error_fields(error)
    # No keys, be it null or an empty list, means all of them.
    if resource.configuration_keys:
        entries = [entry for entry in entries if entry["name"] in resource.configuration_keys]
    for entry in entries:
        if not request.include_synonyms:
            entry["synonyms"] = []
        if not getattr(request, "include_documentation", False):  # from version 3 on
            entry["documentation"] = None
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": entries,
    }


def _entries(broker: "KafkaBroker", kind: int, name: str) -> list[Entry]:
    if kind == ResourceType.TOPIC:
        return Settings(broker).topic_entries(require_topic(broker, name).configs)
    if kind == ResourceType.BROKER:
        settings = Settings(broker)
        return settings.broker_entries() if is_this_broker(broker, name) else settings.cluster_entries()
    if kind == ResourceType.BROKER_LOGGER:
        if not name:
            raise RequestError(ErrorCode.invalid_request, "Name the broker whose loggers you mean.")
        is_this_broker(broker, name)
        return []  # There is one log level for all, and it is set at the start.
    raise RequestError(ErrorCode.invalid_request, f"Resources of type {kind} have no settings here.")


API = Api(key=ApiKey.DESCRIBE_CONFIGS, min_version=1, max_version=4, handle=handle)
