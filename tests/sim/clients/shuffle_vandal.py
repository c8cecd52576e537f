"""A client that the shuffle service does not deserve: noise, half a frame, requests without reading, partitions without end."""

from typing import Any

from protocol.shuffle import messages, writer_frames
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from tests.sim.clients.shuffle_client import SHUFFLE_PORT
from tests.sim.clients.shuffle_steward import VANDALS
from tests.sim.fabric import ClientSocket


class ShuffleVandal:
    def __init__(self, name: str, world: Any, fabric: Any, work: Any, generation: Generation) -> None:
        self.name = name
        self.world = world
        self.fabric = fabric
        self.rng = world.rng(name)
        self.closed = False
        self._generation = generation
        self._sockets: list[tuple[ClientSocket, bytearray]] = []
        self._next = world.now

    def ready(self) -> bool:
        return not self.closed and self.world.now >= self._next

    def deadline(self) -> float | None:
        return None if self.closed else self._next

    def step(self) -> None:
        rng = self.rng
        self._next = self.world.now + rng.random() * 0.2
        if len(self._sockets) < 3 and rng.random() < 0.4:
            socket = self.fabric.connect(SHUFFLE_PORT, host="10.0.0.66")
            if socket is not None:
                self._sockets.append((socket, bytearray(b"".join(self._nonsense() for _ in range(rng.choice((1, 3)))))))
            return
        for entry in list(self._sockets):
            socket, data = entry
            if data and rng.random() < 0.7:
                size = socket.send(data[: rng.randrange(1, 2 * len(data) + 1)])
                del data[:size]
            elif socket.lost or rng.random() < 0.04:
                self._drop(entry)

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
        rng = self.rng
        # Never one that others use.
        partition = ResultPartitionID.of(VANDALS.ljust(16, b"\0"), rng.randrange(3), attempt=rng.randrange(3))
        receiver = rng.randbytes(16)
        opened = writer_frames.encode_open_partition(
            rng.randbytes(16), partition, rng.randrange(1, 100), rng.randrange(2), ttl_ms=1_000
        )
        end = 0 if self._generation is Generation.V1_16 else rng.randrange(3)
        request = messages.encode_partition_request(
            self._generation, partition, IndexSet(0, end), receiver, rng.randrange(3)
        )
        task_event = messages.encode_task_event_request(b"\0\0\0\x06?", partition, receiver)
        return rng.choice(  # type: ignore[no-any-return]
            (
                rng.randbytes(rng.randrange(1, 200)),
                rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\7")) + b"\xba\xdc\x0f\xfe" + receiver,
                b"",
                opened,
                opened + writer_frames.encode_push_buffer(1, 0, 0, 1, False, rng.randbytes(500)),
                opened + writer_frames.encode_push_buffer(1, 0, 7, 1, False, b"too late"),
                opened + writer_frames.encode_finish_partition(1),
                writer_frames.encode_push_buffer(rng.randrange(5), 0, 0, 1, False, b"for nobody"),
                opened[: rng.randrange(1, len(opened))],
                request,
                request + messages.encode_add_credit(receiver, 2**31 - 1),
                task_event * rng.choice((1, 200)),  # of which no answer is read
                writer_frames.encode_list_partitions(0) * rng.choice((1, 100)),
                messages.encode_close_request() + request,
            )
        )
