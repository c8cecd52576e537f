"""Clients that no broker deserves: noise, half a request, a request and no reading, a connection and nothing else."""

from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.kafka_connection import fetch_fields
from tests.sim.fabric import ClientSocket
from tests.sim.host import PORT


class Vandal:
    """Opens connections to ``port``, says whatever ``_nonsense`` is, and lets go of them. Nobody else may notice."""

    port = PORT
    connections_max = 4
    pause_max_s = 0.15
    half_closes = True

    def __init__(self, name: str, world: Any, fabric: Any) -> None:
        self.name = name
        self.world = world
        self.fabric = fabric
        self.rng = world.rng(name)
        self.closed = False
        self._sockets: list[tuple[ClientSocket, bytearray]] = []
        self._next = world.now

    def ready(self) -> bool:
        return not self.closed and self.world.now >= self._next

    def deadline(self) -> float | None:
        return None if self.closed else self._next

    def step(self) -> None:
        rng = self.rng
        self._next = self.world.now + rng.random() * self.pause_max_s
        if len(self._sockets) < self.connections_max and rng.random() < 0.4:
            socket = self.fabric.connect(self.port, host="10.0.0.66")
            if socket is not None:
                self._sockets.append((socket, bytearray(self._nonsense())))
                self.world.note(f"{self.name} connects as {socket.wire.number}")
            return
        for entry in list(self._sockets):
            socket, data = entry
            if data and rng.random() < 0.7:
                size = socket.send(data[: rng.randrange(1, 2 * len(data) + 1)])
                del data[:size]
            elif socket.lost or rng.random() < 0.04:
                self._drop(entry)
            elif self.half_closes and rng.random() < 0.1:
                data.clear()
                socket.shut_down_writing()

    def _drop(self, entry: tuple[ClientSocket, bytearray]) -> None:
        self._sockets.remove(entry)
        if self.rng.random() < 0.5:
            entry[0].reset()
        else:
            entry[0].close()

    def close(self) -> None:
        for entry in list(self._sockets):
            self._drop(entry)
        self.closed = True

    def _nonsense(self) -> bytes:
        raise NotImplementedError


class KafkaVandal(Vandal):
    """It asks about ``topics`` as other clients do, but too often."""

    def __init__(self, name: str, world: Any, fabric: Any, topics: list[str]) -> None:
        super().__init__(name, world, fabric)
        self._topics = topics

    def _nonsense(self) -> bytes:
        rng = self.rng
        kind = rng.choice((0, 1, 2, 3, 3, 3, 4, 5, 6))
        if kind == 0:
            return rng.randbytes(rng.randrange(1, 200))
        if kind == 1:  # a length that lies
            return rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\7")) + rng.randbytes(20)
        if kind == 2:
            return b""
        version = rng.choice((0, 1, 5, 9))
        metadata = control.encode_request(
            ApiKey.METADATA, version, 7, "vandal", {"topics": [{"name": rng.choice(self._topics)}]}
        )
        if kind == 3:  # many requests, of which no answer is read
            return rng.choice((metadata, self._everything())) * rng.choice((1, 10, 200))
        if kind == 4:  # a piece of a frame
            return metadata[: rng.randrange(1, len(metadata))]
        if kind == 5:  # damaged
            damaged = bytearray(metadata)
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
            return bytes(damaged)
        large = rng.randrange(50_000, 300_000)  # a large request that never arrives as a whole
        return large.to_bytes(4, "big") + metadata[4:] + rng.randbytes(rng.randrange(1, 4000))

    def _everything(self) -> bytes:
        fields = fetch_fields(self._topics[0], max_bytes=100_000, min_bytes=0)
        return control.encode_request(ApiKey.FETCH, 4, 7, "vandal", fields)
