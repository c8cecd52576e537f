"""A setting as Kafka defines it for a topic or a group: its name, type, default and bounds, and the text that stands for a value.

Values: no thread, no I/O. The table of the topics' settings is ``topic_settings.py``; that of the groups' is Kafka's own affair
(``broker/kafka/configs/group_settings.py``).
"""

import re
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import attrs

from broker.errors import Refusal

# Kafka's Long.MAX_VALUE, which it uses for "never" and "no limit".
LONG_MAX = 2**63 - 1
# Kafka's Integer.MAX_VALUE: the largest value of a setting of type `int`.
INT_MAX = 2**31 - 1

# Kafka's names of types (ConfigDef.Type).
Kind = Literal["boolean", "int", "long", "double", "string", "list"]

T = TypeVar("T")


class InvalidSetting(Refusal):
    """There is no setting of that name, or it cannot have that value."""


@attrs.frozen
class KafkaSetting(Generic[T]):
    """``default`` is Kafka's. ``synonym`` is the broker's setting that gives the default for all topics, or None. A list is a
    tuple of words, and ``choices`` are the words that it may hold. A default that breaks the setting's own rules raises
    InvalidSetting."""

    name: str
    kind: Kind
    default: T
    synonym: str | None
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    # Called with a value: raises ValueError, which says what it must be.
    check: Callable[[T], object] | None = None

    def __attrs_post_init__(self) -> None:
        value = self.parse(self.default_text)
        if value != self.default or type(value) is not type(self.default):
            raise InvalidSetting(f"The default of {self.name} is {self.default!r}, which is not a {self.kind}.")

    @property
    def field(self) -> str:
        """The name as that of a Python attribute."""
        return self.name.replace(".", "_")

    @property
    def default_text(self) -> str:
        return self.text(self.default)

    def parse(self, text: str) -> T:
        """The value that ``text`` stands for. Raises InvalidSetting."""
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
