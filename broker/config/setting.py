"""The description of a setting, once for everything that reads, checks, shows or documents it.

The broker's settings are fields of `BrokerConfig`, made by `setting`; those of topics, of groups and of subscriptions to
metrics are rows of tables. The row of a topic's setting describes the broker's setting with its default, too. The tables
in docs/SETTINGS.md are generated from these, so that they cannot differ from the code.

Values: no thread, no I/O.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, get_args, get_origin

import attrs

from broker.errors import ConfigError, Refusal

# Kafka's Long.MAX_VALUE, which it uses for "never" and "no limit".
LONG_MAX = 2**63 - 1
# Kafka's Integer.MAX_VALUE: the largest value of a setting of type `int`.
INT_MAX = 2**31 - 1

# Kafka's names of types (ConfigDef.Type).
Kind = Literal["boolean", "int", "long", "double", "string", "list"]

_UNITS = {"bytes": "bytes", "ms": "ms", "us": "µs", "minutes": "minutes"}
# Python has one int for Kafka's "long" and "int". Settings in these units that have no upper bound are Kafka's longs.
_LONG_UNITS = ("ms", "bytes", "messages", "bytes/s")
_ACCEPTED: dict[Any, Any] = {int: int, float: (int, float), bool: bool, str: str}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class InvalidSetting(Refusal):
    """No setting has that name, or it cannot have that value."""


def words(value: Iterable[str] | str) -> list[str]:
    """Those of a list, or of one text with commas between them."""
    return [word.strip() for word in (value.split(",") if isinstance(value, str) else value) if word.strip()]


def some_of(known: Sequence[str], given: Iterable[str], setting: str) -> tuple[str, ...]:
    """The ``given`` words, each once. Raises ConfigError, which says to set ``setting``, if there is none or an unknown one."""
    chosen = tuple(dict.fromkeys(given))
    unknown = [word for word in chosen if word not in known]
    if unknown or not chosen:
        problem = f"there is no {unknown[0]!r} here" if unknown else "it is empty"
        raise ConfigError(f"Set {setting} {', '.join(known)}: {problem}.")
    return chosen


def _unit(name: str) -> str:
    return _UNITS.get(re.split(r"[._]", name)[-1], "")


@attrs.frozen
class Setting:
    """``parse`` and ``text`` are for the values of topics and groups; the broker's settings, which have a ``type``, are
    parsed by `load`. A list is a tuple of words, and ``choices`` are its possible words.

    A row's default that breaks the setting's own rules raises InvalidSetting.
    """

    name: str  # a field of `BrokerConfig`; of other settings, Kafka's name
    kind: Kind
    default: Any
    # Kafka's name of the broker's setting, or of the one with the default for all topics or groups; None if there is none.
    kafka: str | None
    doc: str
    least: float | None = None
    most: float | None = None
    choices: Sequence[str] = ()
    # Called with a value of a topic or a group: raises ValueError with a message that says which values are valid.
    check: Callable[[Any], object] | None = None
    unit: str = attrs.Factory(lambda self: _unit(self.name), takes_self=True)
    reason: str = "Kafka's default."  # why this is the default
    documented: str = ""  # the default in docs/SETTINGS.md, if it depends on the Python
    type: Any = None  # of a broker's setting: the annotation of its field
    section: str = ""  # its heading in docs/SETTINGS.md
    secret: bool = False  # its value is never shown: it appears in no repr and no error
    of_listener: bool = False  # a listener may override it (see `per_listener.py`)

    def __attrs_post_init__(self) -> None:
        if self.type is None:
            value = self.parse(self.default_text)
            if value != self.default or type(value) is not type(self.default):
                raise InvalidSetting(f"The default of {self.name} is {self.default!r}, which is not a {self.kind}.")

    @property
    def optional(self) -> bool:
        """True if the setting can be None, which means "not set"."""
        return type(None) in get_args(self.type)

    @property
    def plain_type(self) -> Any:
        """The type without None."""
        return _plain(self.type)

    @property
    def expected(self) -> str:
        """The description of valid values, as the end of a sentence."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        text = _KINDS.get(self.plain_type) or ("a list" if get_origin(self.plain_type) is tuple else "a table")
        if self.least is not None and self.most is not None:
            text += f" from {self.least} to {self.most}"
        elif self.least is not None:
            text += f" of at least {self.least}"
        elif self.most is not None:
            text += f" of at most {self.most}"
        return text + (" or nothing" if self.optional else "")

    def shown(self, value: Any) -> str:
        """The value, for the end of such a sentence; nothing if it is a secret."""
        return "" if self.secret else f": it is {value!r}"

    def accepts(self, value: Any) -> bool:
        """Whether a value has the right type and is within the bounds."""
        if value is None and self.optional:
            return True
        plain_type = self.plain_type
        # In Python a bool is an int; to an operator it is not.
        good = isinstance(value, _ACCEPTED.get(plain_type, object)) and isinstance(value, bool) <= (plain_type is bool)
        if good and plain_type is int:
            good = abs(value) <= LONG_MAX  # the protocol and the files have 64 bits
        if good and self.choices:
            good = value in self.choices
        if good and self.least is not None:
            good = value >= self.least
        if good and self.most is not None:
            good = value <= self.most
        return good

    def refusal(self, value: Any, source: str = "") -> ConfigError:
        """The error for a value that is not valid, from ``source`` if it is known."""
        where = f" in {source}" if source else ""
        return ConfigError(f"Set {self.name}{where} to {self.expected}{self.shown(value)}.")

    @property
    def seen(self) -> str:
        """The name of the broker's setting that clients see."""
        return self.kafka or self.name

    @property
    def field(self) -> str:
        """The name as a Python attribute."""
        return self.name.replace(".", "_")

    @property
    def default_text(self) -> str:
        return self.text(self.default)

    def parse(self, text: str) -> Any:
        """The value of ``text``. Raises InvalidSetting."""
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise self._refused(text, f"it is not a {self.kind}") from None
        if self.least is not None and not value >= self.least:  # so that NaN is refused
            raise self._refused(text, f"it must be at least {self.least}")
        if self.most is not None and value > self.most:
            raise self._refused(text, f"it must be at most {self.most}")
        if self.choices:
            for word in value if self.kind == "list" else (value,):
                if word not in self.choices:
                    raise self._refused(text, f"it must be one of {', '.join(self.choices)}")
        if self.check is not None:
            try:
                self.check(value)
            except ValueError as error:
                raise self._refused(text, str(error)) from None
        return value

    @staticmethod
    def text(value: Any) -> str:
        """A value as Kafka writes it: the inverse of ``parse``."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, Mapping):
            return ",".join(f"{key}:{item}" for key, item in value.items())
        return ",".join(map(Setting.text, value)) if isinstance(value, (tuple, list)) else str(value)

    def _refused(self, text: str, why: str) -> InvalidSetting:
        return InvalidSetting(f"Invalid value {text!r} for configuration {self.name}: {why}.")


def setting(default: Any, *, converter: Callable[[Any], Any] | None = None, **description: Any) -> Any:
    """A field of the broker's settings, checked against its bounds when it is set. ``description``: attributes of
    `Setting`; by default ``kafka`` is the field's name with dots, and ``unit`` the end of the name.

    ``default`` may be the row of a topic's setting, which then describes the field, too. A list is a text here, with
    commas between its words.
    """
    if isinstance(default, Setting):
        description = attrs.asdict(default, recurse=False) | description
        default = default.default_text if default.kind == "list" else default.default
    is_secret = description.get("secret", False)
    return attrs.field(
        default=default, metadata=description, validator=_Bounds(), repr=not is_secret, converter=converter
    )


# Of a setting that Kafka does not have; and of one that a listener may override.
own_setting = partial(setting, kafka=None)
listener_setting = partial(setting, of_listener=True)


@cache
def setting_infos(settings_class: type) -> tuple[Setting, ...]:
    """Every setting of a class, in the order of definition; its section is the first line of its group's docstring."""
    owners: dict[str, type] = {}  # by setting, the class that defines it
    for each in settings_class.__mro__:
        owners |= dict.fromkeys(inspect.get_annotations(each), each)
    return tuple(
        _info(field, (owners[field.name].__doc__ or "").strip().splitlines()[0].rstrip("."))
        for field in attrs.fields(settings_class)
        if field.metadata  # else it is no setting
    )


def _info(field: "attrs.Attribute[Any]", section: str = "") -> Setting:
    own = {"name": field.name, "default": field.default, "type": field.type, "section": section}
    return Setting(**{"kafka": field.name.replace("_", "."), "kind": _kind(field), **field.metadata, **own})


def _kind(field: "attrs.Attribute[Any]") -> Kind:
    annotation: Any = field.type
    kind = _plain(annotation)
    if kind is int:
        unit = field.metadata.get("unit", _unit(field.name))
        return "long" if unit in _LONG_UNITS and field.metadata.get("most") is None else "int"
    if get_origin(kind) is tuple:
        return "list"
    return "boolean" if kind is bool else "double" if kind is float else "string"


@cache  # asked for each value of each setting
def _plain(kind: Any) -> Any:
    return next(each for each in get_args(kind) if each is not type(None)) if type(None) in get_args(kind) else kind


class _Bounds:
    """Checks the values of one field. A start makes several `BrokerConfig`s of 200 settings, so the description is made once."""

    def __init__(self) -> None:
        self._info: Setting | None = None

    def __call__(self, _instance: Any, field: "attrs.Attribute[Any]", value: Any) -> None:
        info = self._info
        if info is None:
            info = self._info = _info(field)
        if not info.accepts(value):
            raise info.refusal(value)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _integer(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):  # int() would also take "1_000" and digits of other scripts
            raise ValueError
        value = int(text)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError
        return value

    return parse


_PARSERS: dict[Kind, Callable[[str], Any]] = {
    "boolean": _boolean,
    "int": _integer(32),
    "long": _integer(64),
    "double": float,
    "string": str,
    "list": lambda text: tuple(words(text)),
}
