"""A client that the shuffle service does not deserve: noise, half a frame, requests without reading, partitions without end."""

from typing import Any

from protocol.shuffle import messages, writer_frames
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from tests.sim.clients.shuffle_client import SHUFFLE_PORT
from tests.sim.clients.shuffle_steward import VANDALS
from tests.sim.clients.vandal import Vandal


class ShuffleVandal(Vandal):
    port = SHUFFLE_PORT
    connections_max = 3
    pause_max_s = 0.2
    half_closes = False

    def __init__(self, name: str, world: Any, fabric: Any, _: Any, generation: Generation) -> None:
        super().__init__(name, world, fabric)
        self._generation = generation

    def _nonsense(self) -> bytes:
        return b"".join(self._words() for _ in range(self.rng.choice((1, 3))))

    def _words(self) -> bytes:
        rng = self.rng
        # Never a partition that others use.
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
