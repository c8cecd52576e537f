"""Which software connected clients say they are (KIP-511), and how many connections each has.

The names are the clients' own words, so the table is bounded: of software beyond ``KINDS_MAX`` kinds only the number of
connections is known. Any thread may call; a client says it once for each connection.
"""

import re
from typing import NamedTuple

from broker.metrics import Registry, names
from broker.runtime.threads import Lock

# Kafka's ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN.
_VALID = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
KINDS_MAX = 200
_LENGTH_MAX = 100


class Software(NamedTuple):
    name: str
    version: str


OTHER = Software("other", "")


def is_valid(name: str, version: str) -> bool:
    """Whether Kafka takes it."""
    return _VALID.fullmatch(name) is not None and _VALID.fullmatch(version) is not None


class ClientSoftware:
    def __init__(self) -> None:
        self._lock = Lock()
        self._connections: dict[Software, int] = {}

    def enter(self, name: str, version: str) -> Software:
        """A connection has said this. Give what is returned to ``leave`` when the connection is closed."""
        software = Software(name, version)
        if len(name) > _LENGTH_MAX or len(version) > _LENGTH_MAX:
            software = OTHER
        with self._lock:
            if software not in self._connections and len(self._connections) >= KINDS_MAX:
                software = OTHER
            self._connections[software] = self._connections.get(software, 0) + 1
        return software

    def leave(self, software: Software) -> None:
        with self._lock:
            left = self._connections[software] - 1
            if left:
                self._connections[software] = left
            else:
                del self._connections[software]

    def read(self) -> dict[tuple[str, ...], float]:
        with self._lock:
            return {tuple(software): float(count) for software, count in self._connections.items()}

    def register(self, registry: Registry) -> None:
        registry.gauge(names.CLIENT_SOFTWARE, self.read)
