"""The settings of one listener: the broker's settings, overridden by ``listener_settings``."""

import attrs

from broker.config.kafka_names import is_without_effect
from broker.config.listener import NODES_LISTENER
from broker.config.load import parse_setting
from broker.config.setting import setting_infos
from broker.config.settings import BrokerConfig
from broker.errors import ConfigError

# The names of the settings that a listener may override.
OF_LISTENER = {info.name for info in setting_infos(BrokerConfig) if info.of_listener}


def for_listener(config: BrokerConfig, name: str) -> BrokerConfig:
    """The configuration of the listener ``name``. Raises ConfigError for a setting that a listener cannot have."""
    values = {}
    prefix = f"{name.lower()}."  # Kafka writes the name in lower case
    for key, text in config.listener_settings.items():
        if not key.lower().startswith(prefix):
            continue
        key = key[len(prefix) :]
        if is_without_effect(key.partition(".")[2]) or is_without_effect(
            key
        ):  # the former: the setting of one SASL mechanism
            continue
        setting, value = parse_setting(key, text, f"listener_settings of {name}")
        if setting not in OF_LISTENER:
            raise ConfigError(
                f"Set {setting} for the whole broker rather than for the listener {name}: "
                f"a listener may have {', '.join(sorted(OF_LISTENER))} for itself."
            )
        values[setting] = value
    return attrs.evolve(config, **values) if values else config


def check_names(config: BrokerConfig) -> None:
    """Raises ConfigError if ``listener_settings`` names an unknown listener."""
    listeners = [*config.listeners, *([config.control_listener] if config.control_listener else [])]
    listener_names = [listener.name for listener in listeners] + [NODES_LISTENER] * (config.nodes > 1)
    for key in config.listener_settings:
        if not any(key.lower().startswith(f"{name.lower()}.") for name in listener_names):
            raise ConfigError(
                f"Begin {key!r} in listener_settings with the name of a listener: {', '.join(listener_names)}."
            )
