"""Settings of topics, brokers and groups: what is in force, who set it, and how it is changed.

Brokers before Kafka 2.3 cannot change single settings; the error then says which API is missing.

Tests: tests/cli/test_configs.py, tests/cli/test_topics.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from broker.client.kafka.admin.requests import ask_any, ask_controller, ask_node
from broker.client.kafka.errors import code_name
from broker.client.kafka.routing import Routing
from protocol.kafka.api_keys import ApiKey

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32

# A kind and a name: of a topic, the number of a broker (empty: what holds for all of them), a group, or
# a subscription to metrics of clients.
Resource = tuple[int, str]

_SET, _DELETE = 0, 1
SOURCES = {
    0: "unknown",
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
# Set for the resource itself, at run time.
_OWN: dict[int, set[int]] = {TOPIC: {1}, BROKER: {2, 3, 4}, GROUP: {8}, CLIENT_METRICS: {7}}
_DEFAULTS = {0, 5}


@attrs.frozen
class Entry:
    """``value`` is None for a secret. ``source``: one of ``SOURCES``. ``default``: what is in force where nothing is set, None
    if the broker does not tell it. ``is_own``: set for this resource, not inherited."""

    name: str
    value: str | None
    source: str
    default: str | None
    is_own: bool
    is_default: bool
    is_read_only: bool
    is_secret: bool
    documentation: str | None


@attrs.frozen
class Answer:
    """``code`` is 0 for success, and then ``said`` is empty."""

    code: int
    said: str
    entries: Mapping[str, Entry] = attrs.field(factory=dict)


def describe_configs(
    routing: Routing, resources: Iterable[Resource], keys: Sequence[str] | None = None, documentation: bool = False
) -> dict[Resource, Answer]:
    """All settings of each resource, or those with the names ``keys``. A broker is asked for its own settings."""
    found: dict[Resource, Answer] = {}
    for node, own in _by_node(resources).items():
        wanted = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None if keys is None else list(keys)}
            for kind, name in own
        ]
        fields = {"resources": wanted, "include_synonyms": True, "include_documentation": documentation}
        versions = (1, 4)
        if node is None:
            answer = ask_any(routing, ApiKey.DESCRIBE_CONFIGS, versions, fields)
        else:
            answer = ask_node(routing, node, ApiKey.DESCRIBE_CONFIGS, versions, fields)
        for one in answer.results:
            resource = (int(one.resource_type), one.resource_name)
            entries = {entry.name: _entry(resource[0], entry) for entry in one.configs}
            found[resource] = _answer(one, entries)
    return found


def _entry(kind: int, one: Any) -> Entry:
    source, own = int(one.config_source), _OWN.get(kind, set())
    # A broker's setting may also be in its file, which is not its default; a topic's default is what the broker has.
    others = [synonym for synonym in one.synonyms if synonym.source not in (own if kind != BROKER else own | {4})]
    default = _in_other_units(one.name, others[0]) if others else None
    return Entry(
        one.name,
        one.value,
        SOURCES.get(source, f"source {source}"),
        one.value if default is None and source in _DEFAULTS else default,
        source in own,
        source in _DEFAULTS,
        bool(one.read_only),
        bool(one.is_sensitive),
        getattr(one, "documentation", None) or None,
    )


def _in_other_units(name: str, synonym: Any) -> str | None:
    """The value of a synonym; with its name where that ends in another unit, as in log.retention.hours=168."""
    if synonym.value is None or synonym.name.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]:
        return synonym.value  # type: ignore[no-any-return]
    return f"{synonym.name}={synonym.value}"


def alter_configs(
    routing: Routing, changes: Mapping[Resource, Mapping[str, str | None]], validate_only: bool = False
) -> dict[Resource, Answer]:
    """Set settings, or take them back (None)."""
    found: dict[Resource, Answer] = {}
    for node, own in _by_node(changes).items():
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
                    for key, value in changes[kind, name].items()
                ],
            }
            for kind, name in own
        ]
        fields = {"resources": resources, "validate_only": validate_only}
        key, versions = ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1)
        if node is None:
            answer = ask_controller(routing, key, versions, fields)
        else:
            answer = ask_node(routing, node, key, versions, fields)
        for one in answer.responses:
            found[int(one.resource_type), one.resource_name] = _answer(one, {})
    return found


def _by_node(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    """The settings of one broker are asked of that broker, all others of any."""
    by_node: dict[int | None, list[Resource]] = {}
    for kind, name in resources:
        node = int(name) if kind == BROKER and name.isdecimal() else None
        by_node.setdefault(node, []).append((kind, name))
    return by_node


def _answer(one: Any, entries: Mapping[str, Entry]) -> Answer:
    code = int(one.error_code)
    said = ((one.error_message or "").strip().rstrip(".") or code_name(code)) if code else ""
    return Answer(code, said, entries)
