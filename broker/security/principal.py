"""Principals: who a client is. A value; ``str()`` is the form that ACLs and super.users use, such as ``User:alice``."""

import attrs

from broker.errors import ConfigError

USER = "User"


@attrs.frozen(slots=True)
class Principal:
    """Kafka's KafkaPrincipal. ``name`` is any text: it may contain colons, commas and spaces."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# A client of a listener that does not ask who it is.
ANONYMOUS = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """``User:alice``. Raises ConfigError without a type or a name."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"Write the principal {text!r} as TYPE:NAME, for example User:alice.")
    return Principal(kind, name)
