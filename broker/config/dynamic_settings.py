"""The settings that can be changed while the broker runs, and how each is put in force. Pure.

They are those of Kafka's DynamicBrokerConfig, without settings that have no effect here, and those of the housekeeper.
``broker.live_config`` keeps the changes, and ``broker.server.reconfiguration`` carries them out.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from broker.config.kafka_names import is_secret, is_without_effect
from broker.config.load import parse_setting
from broker.config.per_listener import check_names, for_listener
from broker.config.security_settings import TlsSettings
from broker.config.setting import Setting, setting_infos
from broker.config.settings import BrokerConfig
from broker.config.topic_settings import SETTINGS
from broker.errors import ConfigError

OF_LISTENER_PREFIX = "listener.name."


class Way(Enum):
    """How a setting is put in force."""

    STORAGE = "the logs, and the housekeeper"
    PROCESSORS = "the number of network threads"
    HANDLERS = "the number of handlers"
    CONNECTIONS = "the connection quotas"
    TLS = "the certificates and rules of listeners with TLS; new connections get them"


# By the setting's name in this broker.
TABLE: Mapping[str, Way] = {
    **{row.kafka.replace(".", "_"): Way.STORAGE for row in SETTINGS if row.kafka},
    "log_retention_check_interval_ms": Way.STORAGE,
    "log_flush_offset_checkpoint_interval_ms": Way.STORAGE,
    "log_cleaner_enable": Way.STORAGE,
    "log_cleaner_backoff_ms": Way.STORAGE,
    "log_cleaner_dedupe_buffer_size": Way.STORAGE,
    "producer_id_expiration_ms": Way.STORAGE,
    "producer_id_expiration_check_interval_ms": Way.STORAGE,
    "scrub_bytes_per_second": Way.STORAGE,
    "network_threads": Way.PROCESSORS,
    "io_threads": Way.HANDLERS,
    "max_connections": Way.CONNECTIONS,
    "max_connections_per_ip": Way.CONNECTIONS,
    "max_connections_per_ip_overrides": Way.CONNECTIONS,
    "max_connection_creation_rate": Way.CONNECTIONS,
    **{field.name: Way.TLS for field in attrs.fields(TlsSettings) if field.name.startswith("ssl_")},
}
# By the name that clients see; and by both names, either of which a listener's settings may use.
_INFOS = {info.seen: info for info in setting_infos(BrokerConfig)}
_BY_BOTH_NAMES = {**_INFOS, **{info.name: info for info in _INFOS.values()}}
# Those that clients see.
BROKER_SETTINGS: Mapping[str, Setting] = {
    name: info for name, info in _INFOS.items() if name != "ignored_kafka_settings"
}


def way_of(name: str) -> Way | None:
    """How the setting with the client's name ``name`` is put in force; None: it cannot be changed while the broker
    runs."""
    setting = setting_of(name)
    if setting is None or (name.startswith(OF_LISTENER_PREFIX) and not setting.of_listener):
        return None
    return TABLE.get(setting.name)


def setting_of(name: str) -> Setting | None:
    """The setting with the client's name ``name``, which may be a setting of one listener."""
    if name.startswith(OF_LISTENER_PREFIX):
        listener_and_setting = name.removeprefix(OF_LISTENER_PREFIX)
        # The name of a listener may itself contain dots.
        settings = [info for key, info in _BY_BOTH_NAMES.items() if listener_and_setting.endswith(f".{key}")]
        return max(settings, key=lambda info: len(info.name), default=None)
    return _INFOS.get(name)


def merged(static: BrokerConfig, changes: Iterable[Mapping[str, str]]) -> BrokerConfig:
    """The configuration with these changes, of which later changes take precedence. Raises ConfigError for invalid
    values."""
    values: dict[str, object] = {}
    of_listeners = dict(static.listener_settings)
    for name, text in {name: text for change in changes for name, text in change.items()}.items():
        if name.startswith(OF_LISTENER_PREFIX) and way_of(name) is not None:
            of_listeners[name.removeprefix(OF_LISTENER_PREFIX)] = text
        elif way_of(name) is not None:
            setting, value = parsed(name, text)
            values[setting] = value
    if not values and of_listeners == static.listener_settings:
        return static
    config = attrs.evolve(static, **values, listener_settings=of_listeners)  # type: ignore[arg-type]
    if of_listeners != static.listener_settings:
        check_names(config)
        for listener in (*config.listeners, *([config.control_listener] if config.control_listener else [])):
            for_listener(config, listener.name)
    return config


def parsed(name: str, text: str) -> tuple[str, object]:
    """The setting's name here, and its value. Raises ConfigError, which does not contain a secret."""
    try:
        return parse_setting(name, text, "the change")
    except ConfigError:
        if is_secret(name):
            raise ConfigError(f"Set {name} to a value of its type.") from None
        raise


def is_kept(name: str) -> bool:
    """Whether a change of this setting is kept: the setting can be changed, or is a setting of Kafka without effect
    here."""
    return way_of(name) is not None or is_without_effect(name)
