"""Settings as Kafka's admin APIs see them: entries of topics and of this broker, with where each value comes from.

A topic's own settings are in the log manager; a broker's setting that was changed while running is in the catalogue, under
"" (all brokers) or under this broker's id. What can be changed so are the defaults that topics have for their own settings
(``log.retention.ms`` for ``retention.ms``), and nothing else: all other settings are read once, at the start.

No state of its own. Runs on handler threads: it reads the catalogue.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, get_origin

from broker.config import BrokerConfig, SettingInfo, setting_infos
from broker.errors import RequestError
from broker.storage.log_config import BY_NAME, SETTINGS, Setting
from protocol.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker
    from broker.storage.log_manager import TopicInfo

Entry = dict[str, Any]


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


_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7}
# Kafka's "long" and its "int" are both Python's int; ours without an upper bound in these units are Kafka's longs.
_LONG_UNITS = ("ms", "bytes", "messages", "bytes/s")

# The broker's settings by the name that clients see, and of those the ones that are the default of a topic's setting.
BROKER_SETTINGS: dict[str, SettingInfo] = {info.kafka or info.name: info for info in setting_infos(BrokerConfig)}
TOPIC_DEFAULTS: dict[str, Setting] = {setting.synonym: setting for setting in SETTINGS if setting.synonym}
_DEFAULTS = BrokerConfig()


def require_topic(broker: "KafkaBroker", name: str) -> "TopicInfo":
    """Raises RequestError with unknown_topic_or_partition, or with invalid_topic_exception for what can't be a topic's name."""
    info = broker.logs.topic(name)
    if info is None:
        broker.logs.check_name(name)
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
    return info


def is_this_broker(broker: "KafkaBroker", name: str) -> bool:
    """False for "" (all brokers); RequestError with invalid_request for any other than this one."""
    if not name:
        return False
    try:
        node_id = int(name)
    except ValueError:
        raise RequestError(ErrorCode.invalid_request, f"A broker's id is a number: {name!r} is none.") from None
    if node_id != broker.node_id:
        raise RequestError(
            ErrorCode.invalid_request, f"This is broker {broker.node_id}; there is no broker {node_id} to ask about."
        )
    return True


def stored_overrides(broker: "KafkaBroker") -> dict[str, dict[str, str]]:
    """What was changed while running: for all brokers under "", for this one under its id. What another version of this
    program may have stored besides is left out."""
    return {
        entity: {
            name: value for name, value in broker.catalogue.broker_configs(entity).items() if name in TOPIC_DEFAULTS
        }
        for entity in ("", str(broker.node_id))
    }


class Settings:
    """The broker's settings as they are at the moment: read once from the catalogue, used for one request."""

    def __init__(self, broker: "KafkaBroker") -> None:
        overrides = stored_overrides(broker)
        self._of_all, self._of_this = overrides[""], overrides[str(broker.node_id)]
        self._config = broker.config

    def topic_entries(self, own: Mapping[str, str]) -> list[Entry]:
        """Every setting of a topic that sets ``own`` itself."""
        return [self._topic_entry(setting, own.get(setting.name)) for setting in SETTINGS]

    def broker_entries(self) -> list[Entry]:
        """Every setting of this broker."""
        return [self._broker_entry(name, self._synonyms(name)) for name in BROKER_SETTINGS]

    def cluster_entries(self) -> list[Entry]:
        """What was set while running for all brokers."""
        return [
            self._broker_entry(name, [_synonym(name, value, Source.DYNAMIC_DEFAULT_BROKER)])
            for name, value in self._of_all.items()
        ]

    def _topic_entry(self, setting: Setting, own: str | None) -> Entry:
        synonyms = self._synonyms(setting.synonym) if setting.synonym else []
        if own is not None:
            synonyms.insert(0, _synonym(setting.name, setting.text(setting.parse(own)), Source.TOPIC))
        return {
            "name": setting.name,
            "value": synonyms[0]["value"] if synonyms else setting.default,
            "read_only": False,
            "config_source": synonyms[0]["source"] if synonyms else Source.DEFAULT,
            "is_sensitive": False,
            "synonyms": synonyms,
            "config_type": _TYPES[setting.kind],
            "documentation": setting.doc,
        }

    def _broker_entry(self, name: str, synonyms: list[Entry]) -> Entry:
        return {
            "name": name,
            "value": synonyms[0]["value"],
            "read_only": name not in TOPIC_DEFAULTS,
            "config_source": synonyms[0]["source"],
            "is_sensitive": False,
            "synonyms": synonyms,
            "config_type": _TYPES[_kind(name)],
            "documentation": BROKER_SETTINGS[name].doc,
        }

    def _synonyms(self, name: str) -> list[Entry]:
        """Where a setting of the broker has a value, what is in force first."""
        found = []
        if name in self._of_this:
            found.append(_synonym(name, self._of_this[name], Source.DYNAMIC_BROKER))
        if name in self._of_all:
            found.append(_synonym(name, self._of_all[name], Source.DYNAMIC_DEFAULT_BROKER))
        info = BROKER_SETTINGS[name]
        value, default = getattr(self._config, info.name), getattr(_DEFAULTS, info.name)
        if value != default:
            found.append(_synonym(name, _text(name, value), Source.STATIC_BROKER))
        found.append(_synonym(name, _text(name, default), Source.DEFAULT))
        return found


def _synonym(name: str, value: str | None, source: Source) -> Entry:
    return {"name": name, "value": value, "source": source}


def _kind(name: str) -> str:
    """Kafka's type of a broker's setting."""
    if name in TOPIC_DEFAULTS:
        return TOPIC_DEFAULTS[name].kind
    info = BROKER_SETTINGS[name]
    if info.plain_type is int:
        return "long" if info.unit in _LONG_UNITS and info.most is None else "int"
    if get_origin(info.plain_type) is tuple:
        return "list"
    return {bool: "boolean", float: "double"}.get(info.plain_type, "string")


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return ",".join(str(item) for item in value)
    return str(value)


def is_list(name: str) -> bool:
    """True for a setting, of a topic or of a broker, whose value is a list of words."""
    if name in BROKER_SETTINGS:
        return _kind(name) == "list"
    return name in BY_NAME and BY_NAME[name].kind == "list"
