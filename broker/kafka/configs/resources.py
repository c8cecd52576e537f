"""Settings as the Kafka admin APIs show them: entries of topics, groups and this broker, each with the source of its value.

The log manager has the settings of topics. ``broker.live_config`` has the broker settings that were changed at run time, under ""
(all brokers) or under this broker's id, and says which can be changed: the others are read once, at the start. Settings of Kafka
that have no effect here are remembered and shown, except secrets.

Listeners are written as in Kafka, ``PLAINTEXT://host:port``, with the bound port. Listeners of other services are left out:
Kafka's tools cannot use them.

Runs on handler threads, because it reads the catalogue. ``listeners_text`` is pure.

Tests: tests/kafka/handlers/test_describe_configs.py,
tests/kafka/test_listener_names.py.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from broker.config import BrokerConfig, Setting
from broker.config.dynamic_settings import BROKER_SETTINGS, OF_LISTENER_PREFIX, setting_of
from broker.config.kafka_names import is_secret, is_without_effect
from broker.config.listener import Listener
from broker.config.topic_settings import BY_NAME, SETTINGS
from broker.errors import RequestError
from broker.kafka.configs import client_metrics
from broker.kafka.configs import group_settings as group_configs
from broker.kafka.context import KafkaContext
from broker.live_config import ALL_BROKERS, LiveConfig
from broker.storage.config import TopicInfo
from protocol.kafka.errors import ErrorCode


def listeners_text(listeners: Iterable[Listener], addresses: Mapping[str, tuple[str, int]]) -> str:
    """The value of ``listeners`` or ``advertised.listeners``. ``addresses``: (host, port) by the listener's name; a listener
    without an address is written as it was configured."""
    return ",".join(
        _address_text(each, *addresses.get(each.name, (each.host, each.port)))
        for each in listeners
        if each.scheme == "kafka"
    )


def _address_text(listener: Listener, host: str, port: int) -> str:
    name = listener.security_protocol if listener.name == listener.url_scheme else listener.name.upper()
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"


Entry = dict[str, Any]

_WITHOUT_EFFECT_DOC = "A setting of Kafka's that has no effect here."


class ResourceType(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Kafka's ConfigSource: where a value was set."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7}

_DEFAULTS = BrokerConfig()
# Settings without a default in Kafka, and the setting in another unit whose default Kafka shows instead.
_COARSER = {
    "log.retention.ms": ("log.retention.hours", "168"),
    "log.roll.ms": ("log.roll.hours", "168"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours", "0"),
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms", str(2**63 - 1)),
}


def require_topic(context: KafkaContext, name: str) -> TopicInfo:
    """Raises RequestError (unknown_topic_or_partition), or InvalidTopicName for a name that no topic can have."""
    info = context.logs.topic(name)
    if info is None:
        context.logs.check_name(name)
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
    return info


def is_this_broker(context: KafkaContext, name: str) -> bool:
    """False for "" (all brokers); RequestError with invalid_request for another broker, as in Kafka."""
    node_id = _broker_id(name)
    if node_id not in (None, context.node_id):
        raise _not_here(context, node_id)
    return node_id is not None


def entity_of(context: KafkaContext, name: str) -> str:
    """Whose settings are changed: "" for those of all brokers, or a broker's id. Any node changes those of any other. Raises
    RequestError (invalid_request)."""
    node_id = _broker_id(name)
    if node_id is None:
        return ALL_BROKERS
    if node_id not in ({context.node_id} if context.nodes is None else context.nodes.node_ids):
        raise _not_here(context, node_id)
    return str(node_id)


def _broker_id(name: str) -> int | None:
    """None for "". Raises RequestError (invalid_request)."""
    try:
        return int(name) if name else None
    except ValueError:
        raise RequestError(ErrorCode.invalid_request, f"A broker's id must be a number, not {name!r}.") from None


def _not_here(context: KafkaContext, node_id: int | None) -> RequestError:
    if context.nodes is not None and node_id in context.nodes.node_ids:
        message = f"This is broker {context.node_id}: ask broker {node_id} about itself."
    else:
        message = f"This is broker {context.node_id}; there is no broker {node_id} to ask about."
    return RequestError(ErrorCode.invalid_request, message)


def value_in_force(live: LiveConfig, name: str) -> str:
    """The value in force of a broker setting, as text. Raises RequestError for a setting that cannot be changed at run time."""
    if name not in BROKER_SETTINGS or not live.can_change(name):
        raise RequestError(ErrorCode.invalid_request, f"{name!r} is no setting that can be changed while running.")
    return _text(getattr(live.in_force, BROKER_SETTINGS[name].name)) or ""


class Settings:
    """The broker's settings at one moment, for one request."""

    def __init__(self, context: KafkaContext) -> None:
        self._live = context.live
        changes = self._live.changes
        self._of_all, self._of_this = changes[ALL_BROKERS], changes[self._live.this_broker]
        self._config = self._live.static
        # The configuration of single listeners, under Kafka's names.
        self._of_listeners = {_kafkas_name(key): text for key, text in self._config.listener_settings.items()}
        kafkas = context.config.listeners
        self._texts = {
            "listeners": listeners_text(
                kafkas,
                {
                    listener.name: (listener.host, context.ports.get(listener.name, listener.port))
                    for listener in kafkas
                },
            ),
            "advertised.listeners": listeners_text(kafkas, context.endpoints),
        }

    def topic_entries(self, own: Mapping[str, str]) -> list[Entry]:
        """Every setting of a topic that sets ``own`` itself."""
        return [self._topic_entry(setting, own.get(setting.name)) for setting in SETTINGS]

    def broker_entries(self) -> list[Entry]:
        """Every setting of this broker, and those without effect that have a value."""
        others = {*self._of_this, *self._of_all, *self._config.ignored_kafka_settings, *self._of_listeners}
        others -= BROKER_SETTINGS.keys()
        return [self._broker_entry(name, self._synonyms(name)) for name in [*BROKER_SETTINGS, *sorted(others)]]

    def group_entries(self, own: Mapping[str, str]) -> list[Entry]:
        """Every setting of a group with these ``own`` values."""
        names = (setting.name for setting in group_configs.SETTINGS)
        return [
            self._entry(group_configs.setting_of(self._config, name), own.get(name), Source.GROUP) for name in names
        ]

    def client_metrics_entries(self, own: Mapping[str, str]) -> list[Entry]:
        """Every setting of a subscription with these ``own`` values."""
        return [
            self._entry(setting, own.get(setting.name), Source.CLIENT_METRICS) for setting in client_metrics.SETTINGS
        ]

    def cluster_entries(self) -> list[Entry]:
        """The settings that were made for all brokers at run time."""
        return [
            self._broker_entry(name, [_synonym(name, _shown(name, value), Source.DYNAMIC_DEFAULT_BROKER)])
            for name, value in self._of_all.items()
        ]

    def default_of(self, name: str) -> str | None:
        """The default of a broker's setting; None if it has none, or is unknown."""
        return self._default(name) if name in BROKER_SETTINGS and not _is_hidden(name) else None

    def _topic_entry(self, setting: Setting, own: str | None) -> Entry:
        synonyms = self._synonyms(setting.kafka) if setting.kafka else []
        if own is not None:
            synonyms.insert(0, _synonym(setting.name, setting.text(setting.parse(own)), Source.TOPIC))
        default = self._default(setting.kafka) if setting.kafka else setting.default_text
        return _entry(setting.name, setting, synonyms, default)

    def _entry(self, setting: Setting, own: str | None, source: Source) -> Entry:
        synonyms = self._synonyms(setting.seen) if setting.kafka in BROKER_SETTINGS else []
        synonyms = synonyms or [_synonym(setting.seen, setting.default_text, Source.DEFAULT)]
        if own is not None:
            synonyms.insert(0, _synonym(setting.name, own, source))
        return _entry(setting.name, setting, synonyms)

    def _broker_entry(self, name: str, synonyms: list[Entry]) -> Entry:
        entry = _entry(name, setting_of(name), synonyms, None if synonyms else self._default(name))
        read_only = not self._live.can_change(name) and not is_without_effect(name)
        return {**entry, "read_only": read_only, "is_sensitive": _is_hidden(name)}

    def _synonyms(self, name: str) -> list[Entry]:
        """The places where a setting of the broker has a value, the value in force first. As in Kafka, empty if that is only the
        default of a setting in another unit."""
        synonyms = []
        if name in self._of_this:
            synonyms.append(_synonym(name, _shown(name, self._of_this[name]), Source.DYNAMIC_BROKER))
        if name in self._of_all:
            synonyms.append(_synonym(name, _shown(name, self._of_all[name]), Source.DYNAMIC_DEFAULT_BROKER))
        if name in self._of_listeners:
            synonyms.append(_synonym(name, _shown(name, self._of_listeners[name]), Source.STATIC_BROKER))
        if name not in BROKER_SETTINGS:
            setting = setting_of(name)
            if setting is not None:  # a listener's setting: without a value, the broker's counts
                return synonyms + self._synonyms(setting.seen)
            if name in self._config.ignored_kafka_settings:
                value = self._config.ignored_kafka_settings[name]
                synonyms.append(_synonym(name, _shown(name, value), Source.STATIC_BROKER))
            return synonyms
        info = BROKER_SETTINGS[name]
        value, default = getattr(self._config, info.name), getattr(_DEFAULTS, info.name)
        if value != default or info.name in self._config.given:
            text = None if _is_hidden(name) else self._texts.get(name) or _text(value)
            synonyms.append(_synonym(name, text, Source.STATIC_BROKER))
        if name not in _COARSER:
            synonyms.append(_synonym(name, self._default(name), Source.DEFAULT))
        elif synonyms:
            synonyms.append(_synonym(*_COARSER[name], Source.DEFAULT))
        return synonyms

    def _default(self, name: str) -> str | None:
        """The default of a broker setting."""
        info = BROKER_SETTINGS[name]
        value, default = getattr(self._config, info.name), getattr(_DEFAULTS, info.name)
        if name in self._texts:
            return self._texts[name] if value == default else listeners_text(_DEFAULTS.listeners, {})
        return _text(default)


def _entry(name: str, setting: Setting | None, synonyms: list[Entry], default: str | None = None) -> Entry:
    """A setting with the first of its synonyms in force, else ``default``. None: one without effect, of unknown type."""
    return {
        "name": name,
        "value": synonyms[0]["value"] if synonyms else default,
        "read_only": False,
        "config_source": synonyms[0]["source"] if synonyms else Source.DEFAULT,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": _TYPES[setting.kind if setting else "string"],
        "documentation": setting.doc if setting else _WITHOUT_EFFECT_DOC,
    }


def _synonym(name: str, value: str | None, source: Source) -> Entry:
    return {"name": name, "value": value, "source": source}


def _is_hidden(name: str) -> bool:
    """Whether the value of a broker's setting is never shown."""
    info = setting_of(name)  # also a listener's, under either of its two names
    return is_secret(name) or (info is not None and info.secret)


def _shown(name: str, value: str) -> str | None:
    return None if _is_hidden(name) else value


def _kafkas_name(key: str) -> str:
    """Kafka's name of a listener's setting that the configuration calls ``key``."""
    setting = setting_of(OF_LISTENER_PREFIX + key)
    if setting is None:
        return OF_LISTENER_PREFIX + key
    listener = key.lower().removesuffix(setting.name).removesuffix(setting.seen)
    return OF_LISTENER_PREFIX + listener + setting.seen


def _text(value: Any) -> str | None:
    return None if value is None else Setting.text(value)


def is_list(name: str) -> bool:
    """True for a setting, of a topic, of client metrics or of a broker, whose value is a list of words."""
    setting = BROKER_SETTINGS.get(name) or BY_NAME.get(name) or client_metrics.BY_NAME.get(name)
    return setting is not None and setting.kind == "list"
