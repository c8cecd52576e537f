"""Whom a quota is for: values, their text in the catalogue, and which quota of several a client gets. Pure.

An entity is a user, a client id, a user with a client id, or an IP address; each name may also be the default, which stands for
all that have no quota of their own. An entity of the first three kinds is a pair of names here, of which one may be ABSENT.

Of all entities that match a client, the first of this order counts (Kafka's), for each kind of quota by itself:

| precedence | user | client id | shared by |
|---|---|---|---|
| 1 | its own | its own | the connections of this user with this client id |
| 2 | its own | default | the connections of this user with this client id |
| 3 | its own | - | all connections of this user |
| 4 | default | its own | the connections of this user with this client id |
| 5 | default | default | the connections of this user with this client id |
| 6 | default | - | all connections of this user |
| 7 | - | its own | the connections of all users with this client id |
| 8 | - | default | the connections of all users with this client id |

A client that sends no client id, or an empty one, gets the quotas of the default. (In Kafka it gets none of 2, 5 and 8.)
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import attrs

ABSENT: Final = None
DEFAULT: Final = ""  # no name is empty

USER, CLIENT_ID, IP = "user", "client-id", "ip"

# The name of a user and of a client id, each of them ABSENT, DEFAULT or a name.
Pair = tuple[str | None, str | None]


class Kind(StrEnum):
    """What is limited, as Kafka calls it."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


OF_CLIENTS: Final = (Kind.PRODUCE, Kind.FETCH, Kind.REQUEST, Kind.MUTATION)
OF_ADDRESSES: Final = (Kind.CONNECTION,)


@attrs.frozen(slots=True)
class Entity:
    """Whom a quota is for. Either ``ip`` or at least one of the others is not ABSENT."""

    user: str | None = ABSENT
    client_id: str | None = ABSENT
    ip: str | None = ABSENT

    @property
    def pair(self) -> Pair:
        return self.user, self.client_id

    @property
    def names(self) -> Mapping[str, str | None]:
        """By type, as in Kafka's requests, where null is the default."""
        both = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return {kind: name or None for kind, name in both if name is not ABSENT}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What can be limited for it."""
        return OF_CLIENTS if self.ip is ABSENT else OF_ADDRESSES

    def __str__(self) -> str:
        """The text in the catalogue: names are percent-encoded, as Kafka does, so none of them contains ``=``, ``,`` or ``<``."""
        return ",".join(f"{kind}={_encoded(name) if name else '<default>'}" for kind, name in self.names.items())


def parse_entity(text: str) -> Entity:
    """The inverse of ``str``."""
    names = {}
    for part in text.split(","):
        kind, _, name = part.partition("=")
        names[kind] = DEFAULT if name == "<default>" else _decoded(name)
    return Entity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def _encoded(name: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode())


def _decoded(text: str) -> str:
    return re.sub(rb"%(..)", lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()


def precedence(user: str, client_id: str) -> Iterator[tuple[Pair, Pair]]:
    """The entities that match a client, the first that has a quota counts; and with each, who shares what is recorded."""
    own = user, client_id
    yield own, own
    yield (user, DEFAULT), own
    yield (user, ABSENT), (user, ABSENT)
    yield (DEFAULT, client_id), own
    yield (DEFAULT, DEFAULT), own
    yield (DEFAULT, ABSENT), (user, ABSENT)
    yield (ABSENT, client_id), (ABSENT, client_id)
    yield (ABSENT, DEFAULT), (ABSENT, client_id)
