"""From TOML text and ``--set`` pairs to a ``BrokerConfig``, with errors that name the setting and what to change.

A setting may be written under our name (``log_retention_ms``) or under Kafka's (``log.retention.ms``), so that lines of
a ``server.properties`` can be taken over; TOML makes nested tables of dotted names, which are put together again.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

import cattrs

from broker.config.setting import SettingInfo, setting_infos
from broker.config.settings import BrokerConfig
from broker.errors import ConfigError


def load(
    toml: str | None = None, *, source: str = "the configuration", overrides: Iterable[str] = (), **settings: Any
) -> BrokerConfig:
    """``settings`` (already values) win over ``overrides`` (``key=value``), which win over ``toml`` (from ``source``)."""
    values: dict[str, Any] = {}
    if toml is not None:
        values.update(_from_toml(toml, source))
    for pair in overrides:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"Write --set {pair} as --set key=value.")
        info = _find(key.strip(), "--set")
        values[info.name] = _structure(info, text.strip(), "--set")
    for key, value in settings.items():
        values[_find(key, "the arguments").name] = value
    return BrokerConfig(**values)


def _from_toml(text: str, source: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Mend {source}, which is not valid TOML: {error}.") from error
    values: dict[str, Any] = {}
    for key, value in _flatten(document):
        info = _find(key, source)
        if info.name in values:
            raise ConfigError(f"Set {info.name} only once in {source}: it is there under two names.")
        values[info.name] = _structure(info, value, source)
    return values


def _flatten(table: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        full = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and full not in _BY_NAME:
            yield from _flatten(value, full)
        else:
            yield full, value


def _find(key: str, source: str) -> SettingInfo:
    info = _BY_NAME.get(key)
    if info is None:
        nearest = difflib.get_close_matches(
            key.replace(".", "_"), [name for name in _BY_NAME if "." not in name], 1, 0.5
        )
        hint = f"did you mean {nearest[0]!r}" if nearest else "docs/OPERATIONS.md lists them all"
        raise ConfigError(f"There is no setting {key!r} (in {source}); {hint}.")
    return info


def _structure(info: SettingInfo, value: Any, source: str) -> Any:
    if value == "" and info.optional:
        return None
    try:
        return _CONVERTER.structure(value, info.type)
    except ConfigError:
        raise
    except Exception as error:  # cattrs raises what the conversion raised, and groups of it
        raise ConfigError(f"Set {info.name} in {source} to {info.expected}: it is {value!r}.") from error


def _whole_number(value: Any, _type: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(value)
    return int(value)


def _number(value: Any, _type: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(value)
    return float(value)


def _true_or_false(value: Any, _type: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[value.lower()]


def _text(value: Any, _type: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _texts(value: Any, _type: Any) -> tuple[Any, ...]:
    """A list, or in one text with commas between."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise TypeError(value)
    return tuple(part.strip() for part in parts if part.strip())


def _table(value: Any, kind: Any) -> dict[str, Any]:
    """A table, or in one text ``name=value`` or ``name://value`` (Kafka's way with listeners) with commas between."""
    if isinstance(value, str):
        pairs = [re.split(r"://|=", part.strip(), maxsplit=1) for part in value.split(",") if part.strip()]
        value = dict(pairs)
    value_type = get_args(kind)[1]
    return {name: _CONVERTER.structure(item, value_type) for name, item in value.items()}


def _origin(kind: Any) -> Any:
    return get_origin(kind)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(int, _whole_number)
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(bool, _true_or_false)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook_func(lambda kind: _origin(kind) is tuple, _texts)
    converter.register_structure_hook_func(lambda kind: _origin(kind) is Mapping, _table)
    return converter


_INFOS = setting_infos(BrokerConfig)
_BY_NAME = {info.name: info for info in _INFOS} | {info.kafka: info for info in _INFOS if info.kafka}
# Kafka's older name for the directory, which everybody knows.
_BY_NAME["log.dir"] = _BY_NAME["data_dir"]
_CONVERTER = _converter()
