"""The definition of a setting: `setting` for the broker's settings, `KafkaSetting` for those of topics and groups.

`setting` is an attrs field with a unit, bounds, Kafka's name, a description, and the reason for the default. The tables
in docs/SETTINGS.md are generated from these, so that they cannot differ from the code.

`KafkaSetting` has Kafka's name, type, default and bounds, and parses and formats values. `topic_settings.py` has the
table of the topics' settings; the groups' settings belong to the Kafka service
(``broker/kafka/configs/group_settings.py``).

Values: no thread, no I/O.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

import attrs

from broker.errors import ConfigError, Refusal

# The reason for a default that needs no explanation.
KAFKA = "Kafka's default."

_UNIT_SUFFIXES = ("bytes", "ms", "us", "minutes", "ratio")
_UNIT_NAMES = {"us": "µs", "ratio": ""}
_SAME = "same"
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@attrs.frozen
class SettingInfo:
    """The definition of a setting."""

    name: str
    kafka: str | None  # Kafka's name; None for a setting that Kafka does not have
    unit: str
    default: Any
    doc: str
    reason: str  # why this is the default
    section: str
    type: Any
    least: float | None
    most: float | None
    choices: Sequence[str]
    secret: bool = False  # its value is never shown
    of_listener: bool = False  # a listener may override it (see `per_listener.py`)

    @property
    def optional(self) -> bool:
        """True if the setting can be None, which means "not set"."""
        return type(None) in get_args(self.type)

    @property
    def plain_type(self) -> Any:
        """The type without None."""
        return next(kind for kind in get_args(self.type) if kind is not type(None)) if self.optional else self.type

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
        accepted: Any = {int: int, float: (int, float), bool: bool, str: str}.get(self.plain_type, object)
        # In Python a bool is an int; to an operator it is not.
        good = isinstance(value, accepted) and isinstance(value, bool) <= (self.plain_type is bool)
        if good and self.plain_type is int:
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


def setting(
    default: Any,
    *,
    doc: str,
    reason: str,
    kafka: str | None = _SAME,
    unit: str | None = None,
    least: float | None = None,
    most: float | None = None,
    choices: Sequence[str] = (),
    converter: Callable[[Any], Any] | None = None,
    secret: bool = False,
    of_listener: bool = False,
) -> Any:
    """An attrs field with the metadata that ``setting_infos`` reads, checked against its bounds when it is set.

    ``kafka``: Kafka's name; by default the field's name with dots, None if Kafka has no such setting. ``unit``: by
    default the end of the field's name. The value of a ``secret`` appears in no repr and no error. ``of_listener``: a
    listener may override it.
    """
    metadata = {
        "doc": doc,
        "reason": reason,
        "kafka": kafka,
        "unit": unit,
        "least": least,
        "most": most,
        "choices": tuple(choices),
        "secret": secret,
        "of_listener": of_listener,
    }
    extra: dict[str, Any] = {"converter": converter} if converter else {}
    return attrs.field(default=default, metadata=metadata, validator=_check, repr=not secret, **extra)


def setting_infos(settings_class: type) -> list[SettingInfo]:
    """Every setting of a class, in the order of definition; its section is the first line of its group's docstring."""
    infos = []
    for field in attrs.fields(settings_class):
        if not field.metadata:  # no setting
            continue
        owner = next(c for c in reversed(settings_class.__mro__) if field.name in inspect.get_annotations(c))
        infos.append(_info(field, (owner.__doc__ or "").strip().splitlines()[0].rstrip(".")))
    return infos


def _info(field: "attrs.Attribute[Any]", section: str = "") -> SettingInfo:
    meta = field.metadata
    unit = meta["unit"]
    if unit is None:
        suffix = field.name.rsplit("_", 1)[-1]
        unit = _UNIT_NAMES.get(suffix, suffix) if suffix in _UNIT_SUFFIXES else ""
    kafka = field.name.replace("_", ".") if meta["kafka"] == _SAME else meta["kafka"]
    return SettingInfo(
        name=field.name,
        kafka=kafka,
        unit=unit,
        default=field.default,
        doc=meta["doc"],
        reason=meta["reason"],
        section=section,
        type=field.type,
        least=meta["least"],
        most=meta["most"],
        choices=meta["choices"],
        secret=meta["secret"],
        of_listener=meta["of_listener"],
    )


def _check(_instance: Any, field: "attrs.Attribute[Any]", value: Any) -> None:
    info = _info(field)
    if not info.accepts(value):
        raise info.refusal(value)


# Kafka's Long.MAX_VALUE, which it uses for "never" and "no limit".
LONG_MAX = 2**63 - 1
# Kafka's Integer.MAX_VALUE: the largest value of a setting of type `int`.
INT_MAX = 2**31 - 1

# Kafka's names of types (ConfigDef.Type).
Kind = Literal["boolean", "int", "long", "double", "string", "list"]

T = TypeVar("T")


class InvalidSetting(Refusal):
    """No setting has that name, or it cannot have that value."""


@attrs.frozen
class KafkaSetting(Generic[T]):
    """``default`` is Kafka's. ``synonym``: the broker's setting with the default for all topics, or None. A list is a
    tuple of words, and ``choices`` are its possible words. A default that breaks the setting's own rules raises
    InvalidSetting."""

    name: str
    kind: Kind
    default: T
    synonym: str | None
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    # Called with a value: raises ValueError with a message that says which values are valid.
    check: Callable[[T], object] | None = None
    # Of the broker's setting: see `setting`.
    unit: str | None = None
    reason: str = KAFKA

    def __attrs_post_init__(self) -> None:
        value = self.parse(self.default_text)
        if value != self.default or type(value) is not type(self.default):
            raise InvalidSetting(f"The default of {self.name} is {self.default!r}, which is not a {self.kind}.")

    @property
    def field(self) -> str:
        """The name as a Python attribute."""
        return self.name.replace(".", "_")

    @property
    def default_text(self) -> str:
        return self.text(self.default)

    def parse(self, text: str) -> T:
        """The value of ``text``. Raises InvalidSetting."""
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise self._refused(text, f"it is not a {self.kind}") from None
        if self.minimum is not None and not value >= self.minimum:  # so that NaN is refused
            raise self._refused(text, f"it must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise self._refused(text, f"it must be at most {self.maximum}")
        if self.choices:
            for word in value if self.kind == "list" else (value,):
                if word not in self.choices:
                    raise self._refused(text, f"it must be one of {', '.join(self.choices)}")
        if self.check is not None:
            try:
                self.check(value)
            except ValueError as error:
                raise self._refused(text, str(error)) from None
        return value  # type: ignore[no-any-return]  # the parser of its kind

    def text(self, value: T) -> str:
        """The inverse of ``parse``."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def _refused(self, text: str, why: str) -> InvalidSetting:
        return InvalidSetting(f"Invalid value {text!r} for configuration {self.name}: {why}.")


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


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


_PARSERS: dict[Kind, Callable[[str], Any]] = {
    "boolean": _boolean,
    "int": _integer(32),
    "long": _integer(64),
    "double": float,
    "string": str,
    "list": _list,
}


def topic_default(row: KafkaSetting[Any], *, least: float | None = None, choices: Sequence[str] = ()) -> Any:
    """The field of the broker's setting that is the default of a topic's setting, as ``row`` describes both. Pass
    ``least`` and ``choices`` if the broker's setting accepts less, or shows the choices in another order.

    A list is a text here, with commas between its words. Raises InvalidSetting for choices that a topic does not have.
    """
    for choice in choices:
        row.parse(choice)
    return setting(
        row.default_text if row.kind == "list" else row.default,
        doc=row.doc,
        reason=row.reason,
        kafka=row.synonym,
        unit=row.unit,
        least=row.minimum if least is None else least,
        most=INT_MAX if row.kind == "int" and row.maximum is None else row.maximum,
        choices=choices or row.choices,
    )
