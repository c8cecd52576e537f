"""A client that asks for much and reads nothing: large fetches on one connection, many at a time, whose answers it never takes.

The answers wait in the broker, and `invariants.check` knows how many bytes of them there may be.
"""

import math
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.sim.fabric import ClientSocket
from tests.sim.history import History
from tests.sim.host import PORT

# Requests that are written together; before the last has been answered, the next ones are there.
_FETCHES = 50
# Bytes that a request asks for, as many as any client of the simulation.
_FETCH_BYTES = 100_000
# It begins when there is something to fetch.
_RECORDS_LEAST = 10


class Greedy:
    """All that it decides comes from a stream of its own."""

    def __init__(self, name: str, world: Any, fabric: Any, history: History, partitions: list[tuple[str, int]]) -> None:
        self.name = name
        self.world = world
        self.fabric = fabric
        self.rng = world.rng(name)
        self.closed = False
        self._logs = {key: history.partition(*key) for key in partitions}
        self._socket: ClientSocket | None = None
        self._outbox = b""
        self._connect_at = 0.0
        self._leave_at = math.inf

    @property
    def _leaves(self) -> bool:
        return self.world.now >= self._leave_at

    def ready(self) -> bool:
        if self.closed:
            return False
        if self._socket is None:
            return self.world.now >= self._connect_at
        return self._socket.lost or self._leaves or self._socket.room > 0

    def deadline(self) -> float | None:
        if self.closed:
            return None
        return self._connect_at if self._socket is None else self._leave_at

    def step(self) -> None:
        if self._socket is None:
            self._connect()
        elif self._socket.lost or self._leaves:
            self._drop()
        else:
            if not self._outbox:
                self._outbox = self._fetch() * _FETCHES
            self._outbox = self._outbox[self._socket.send(self._outbox) :]

    def _connect(self) -> None:
        self._connect_at = self.world.now + 0.02 + self.rng.random() * 0.1
        if max(log.known_end for log in self._logs.values()) < _RECORDS_LEAST:
            return
        self._socket = self.fabric.connect(PORT, host="10.0.0.67")
        if self._socket is not None:
            self._leave_at = self.world.now + 1.0 + self.rng.random() * 4.0
            self.world.note(f"{self.name} connects as {self._socket.wire.number}")

    def _fetch(self) -> bytes:
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, partition in sorted(self._logs, key=lambda key: -self._logs[key].known_end):
            topics.setdefault(topic, []).append(
                {"partition": partition, "fetch_offset": 0, "partition_max_bytes": _FETCH_BYTES}
            )
        fields = {
            "max_wait": 0,
            "max_bytes": _FETCH_BYTES,
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }
        return control.encode_request(ApiKey.FETCH, 4, 7, self.name, fields)

    def _drop(self) -> None:
        assert self._socket is not None
        if self.rng.random() < 0.5:
            self._socket.reset()
        else:
            self._socket.close()
        self._socket = None
        self._outbox = b""
        self._leave_at = math.inf

    def close(self) -> None:
        """For good."""
        if self._socket is not None:
            self._drop()
        self.closed = True
