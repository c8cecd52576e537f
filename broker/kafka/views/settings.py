"""``/api/v1/settings``: the broker's settings with their values, and where each was set. Secrets are not shown.

``listeners`` are all of them, as URLs. Kafka's admin API shows Kafka's own only, in the form that its tools understand.

Tests: tests/kafka/views/test_settings.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.config import BrokerConfig
from broker.kafka.configs.resources import Settings as Entries
from broker.kafka.configs.resources import Source
from broker.kafka.context import KafkaContext
from broker.kafka.views.view_context import ViewContext
from broker.network.routes import Answer, Call, Route, json_answer
from broker.security.acl import Operation, ResourceType

_SOURCES: Mapping[int, str] = {
    Source.TOPIC: "topic",
    Source.DYNAMIC_BROKER: "dynamic",
    Source.DYNAMIC_DEFAULT_BROKER: "dynamic-default",
    Source.STATIC_BROKER: "static",
    Source.DEFAULT: "default",
    Source.GROUP: "group",
}


class Settings:
    def __init__(self, context: ViewContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/settings", self.page)]

    def page(self, call: Call) -> Answer:
        self._context.callers.require(call, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        settings = Entries(self._context.kafka)
        entries = call.work.each(settings.broker_entries())
        shown = [_shown(entry, settings.default_of(entry["name"])) for entry in entries]
        for each in shown:
            if each["name"] == "listeners":
                config = self._context.kafka.config
                each["value"] = ",".join(map(str, config.listeners))
                each["default"] = ",".join(map(str, BrokerConfig().listeners))
        return json_answer({"settings": shown})


def of_topic(kafka: KafkaContext, own: Mapping[str, str]) -> list[dict[str, Any]]:
    """The settings of a topic that sets ``own`` itself. The default is what it would have without."""
    settings = Entries(kafka)
    defaults = {entry["name"]: entry["value"] for entry in settings.topic_entries({})}
    return [_shown(entry, defaults[entry["name"]]) for entry in settings.topic_entries(own)]


def _shown(entry: Mapping[str, Any], default: str | None) -> dict[str, Any]:
    """A setting as Kafka's admin API describes it, in the terms of this API."""
    return {
        "name": entry["name"],
        "value": None if entry["is_sensitive"] else entry["value"],
        "default": None if entry["is_sensitive"] else default,
        "source": _SOURCES[entry["config_source"]],
        "secret": entry["is_sensitive"],
        "live": not entry["read_only"],
        "doc": entry["documentation"],
    }
