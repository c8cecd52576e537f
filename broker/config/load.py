"""Makes a ``BrokerConfig`` from TOML text, environment variables and ``--set`` pairs. Errors name the setting and say how to
correct it.

A setting may have its own name (``log_retention_ms``) or Kafka's (``log.retention.ms``), so that lines of a
``server.properties`` can be copied. TOML turns dotted names into nested tables; they are joined again here. Kafka's
settings in other units (``log.retention.hours``) are converted, and settings without effect here are kept by name.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, get_args, get_origin

import attrs

from broker.config.kafka_names import COARSER, answer, is_secret, is_without_effect, spelled
from broker.config.setting import LONG_MAX, Setting, setting_infos, words
from broker.config.settings import BrokerConfig
from broker.config.topic_settings import SETTINGS
from broker.errors import ConfigError

# Kafka's prefix of the name of a listener's setting.
_OF_LISTENER = "listener.name."
# That of the environment variables: BROKER_NUM_PARTITIONS.
VARIABLE = "BROKER_"
# A variable that is as much like that of a setting is a mistake. Others are somebody else's: Kubernetes, for example, sets
# BROKER_PORT for a service that is called broker.
_LIKENESS = 0.9


def load(
    toml: str | None = None,
    *,
    source: str = "the configuration",
    variables: Mapping[str, str] = MappingProxyType({}),
    overrides: Iterable[str] = (),
    **settings: Any,
) -> BrokerConfig:
    """``settings`` (values) take precedence over ``overrides`` (``key=value``), those over environment ``variables``, and those
    over ``toml``. ``source`` names the TOML in errors. Raises ConfigError."""
    collected = _Collected()
    if toml is not None:
        _from_toml(toml, source, collected)
    _from_variables(variables, collected)
    for pair in overrides:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"Write --set {pair} as --set key=value.")
        key = spelled(key.strip(), _BY_NAME)
        if not collected.take_kafka_only(key, text.strip(), "--set"):
            info = _find(key, "--set")
            collected.values[info.name] = _structure(info, text.strip(), "--set")
    for key, value in settings.items():
        if not collected.take_kafka_only(key, value, "the arguments"):
            info = _find(key, "the arguments")
            # A text for a list, which would be taken as a sequence of letters, is parsed as in a file.
            is_list = get_origin(info.plain_type) is tuple
            as_in_a_file = is_list and (isinstance(value, str) or not isinstance(value, Iterable))
            collected.values[info.name] = _structure(info, value, "the arguments") if as_in_a_file else value
    values = collected.all()
    return BrokerConfig(**values, given=frozenset(values))


class _Collected:
    """Values by the names of settings here, and Kafka's settings in another unit or without effect."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._coarse: dict[str, dict[int, int]] = {}
        self._ignored: dict[str, str] = {}

    def take_kafka_only(self, key: str, value: Any, source: str) -> bool:
        """Remember the value of a setting that only Kafka has, and return True. Raises ConfigError."""
        if key in _BY_NAME:
            return False
        if key.startswith(_OF_LISTENER):
            of_listeners = self.values.setdefault("listener_settings", {})
            self.values["listener_settings"] = {**of_listeners, key.removeprefix(_OF_LISTENER): Setting.text(value)}
            return True
        if key in COARSER:
            name, factor, rank = COARSER[key]
            self._coarse.setdefault(name, {})[rank] = _converted(_BY_NAME[name], key, factor, value, source)
            return True
        if is_without_effect(key):
            self._ignored[key] = "" if is_secret(key) else Setting.text(value)
            return True
        return False

    def all(self) -> dict[str, Any]:
        """All values. As in Kafka, milliseconds take precedence over minutes and minutes over hours, wherever each is
        set."""
        values = {name: of_name[min(of_name)] for name, of_name in self._coarse.items()} | self.values
        if self._ignored:
            values["ignored_kafka_settings"] = {**values.get("ignored_kafka_settings", {}), **self._ignored}
        return values


def _converted(info: Setting, key: str, factor: int, value: Any, source: str) -> int:
    """The value of a setting in ``COARSER``, in the unit of ``info``. Raises ConfigError, which has Kafka's name and
    bounds. -1, 0 and 1, the least values, are the same in every unit."""
    most = info.most if factor == 1 else int(info.most or LONG_MAX) // factor
    info = attrs.evolve(info, name=key, most=most)
    number: int = _structure(info, value, source)
    if not info.accepts(number):
        raise info.refusal(value, source)
    return number * factor if number > 0 else number


def _from_variables(variables: Mapping[str, str], collected: _Collected) -> None:
    """An empty variable counts as not set, so that one can be left out where others are listed."""
    ours = {VARIABLE + info.name.upper(): info for info in _INFOS}
    for variable, text in variables.items():
        if not text.strip() or not variable.startswith(VARIABLE):
            continue
        info = ours.get(variable)
        if info is not None:
            collected.values[info.name] = _structure(info, text.strip(), variable)
        elif nearest := difflib.get_close_matches(variable, ours, 1, _LIKENESS):
            raise ConfigError(
                f"There is no setting for the environment variable {variable}; did you mean {nearest[0]}?"
            )


def _from_toml(text: str, source: str, collected: _Collected) -> None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Correct {source}, which is not valid TOML: {error}.") from error
    for key, value in _flatten(document):
        key = spelled(key, _BY_NAME)
        if collected.take_kafka_only(key, value, source):
            continue
        info = _find(key, source)
        if info.name in collected.values:
            raise ConfigError(f"Set {info.name} only once in {source}: it appears under two names.")
        collected.values[info.name] = _structure(info, value, source)


def _flatten(table: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        full = f"{path}.{key}" if path else key
        info = _BY_NAME.get(full)
        # Kafka has max.connections and max.connections.per.ip.
        if isinstance(value, Mapping) and (info is None or get_origin(info.plain_type) is not Mapping):
            yield from _flatten(value, full)
        else:
            yield full, value


def parse_setting(key: str, text: str, source: str) -> tuple[str, Any]:
    """The setting's name here and its value. ``key``: either of its names. Raises ConfigError."""
    info = _find(key, source)
    return info.name, _structure(info, text, source)


def _find(key: str, source: str) -> Setting:
    info = _BY_NAME.get(key)
    if info is None:
        raise ConfigError(f"There is no setting {key!r} (in {source}); {_hint(key)}.")
    return info


def _hint(key: str) -> str:
    """A suggestion for an unknown name."""
    if instead := answer(key):
        return instead
    if key in _OF_TOPICS:
        return f"topics have one, and {_BY_NAME[_OF_TOPICS[key]].name} sets it for all of them"
    ours = [name for name in _BY_NAME if "." not in name]
    nearest = difflib.get_close_matches(key.replace(".", "_"), ours, 1)
    if nearest:
        return f"did you mean {nearest[0]!r}"
    return "docs/SETTINGS.md lists all settings"


def _structure(info: Setting, value: Any, source: str) -> Any:
    if value == "" and info.optional:
        return None
    try:
        return _value(value, info.plain_type)
    except Exception as error:  # of any type that the conversion of such a value raises
        raise info.refusal(value, source) from (None if info.secret else error)  # which has the value, too


def _value(value: Any, kind: Any) -> Any:
    """What TOML or a text says, as a value of this type. Raises an exception of any type if it says no such thing."""
    if get_origin(kind) is tuple:
        return _texts(value)
    if get_origin(kind) is Mapping:
        return _table(value, get_args(kind)[1])
    if kind is bool:
        return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]
    if isinstance(value, bool) or not isinstance(value, (str, kind) if kind is not float else (str, int, float)):
        raise TypeError(value)
    return kind(value) if kind in (int, float) else value  # a listener's URL is parsed by the setting's converter


def _texts(value: Any) -> tuple[str, ...]:
    """A list, or one text with commas between the items."""
    if not isinstance(value, (str, list, tuple)) or not all(isinstance(part, str) for part in value):
        raise TypeError(value)
    return tuple(words(value))


def _table(value: Any, value_type: Any) -> dict[str, Any]:
    """A table, or one text with commas between ``name=value``, ``name://value`` (Kafka's form of listeners) or
    ``name:number`` (Kafka's form of address limits)."""
    if isinstance(value, str):
        value = dict(
            part.rsplit(":", 1) if value_type is int and "=" not in part else re.split(r"://|=", part, maxsplit=1)
            for part in words(value)
        )
    return {name: _value(item, value_type) for name, item in value.items()}


_INFOS = setting_infos(BrokerConfig)
_BY_NAME = {info.name: info for info in _INFOS} | {info.kafka: info for info in _INFOS if info.kafka}
# Kafka's older name for the directory, which is still in use.
_BY_NAME["log.dir"] = _BY_NAME["data_dir"]
# The settings of topics with a default among the broker's settings.
_OF_TOPICS = {setting.name: setting.kafka for setting in SETTINGS if setting.kafka in _BY_NAME}
