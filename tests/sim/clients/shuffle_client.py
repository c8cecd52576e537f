"""A simulated client of the shuffle protocol."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from protocol.shuffle.buffer_response import ClientDecoder, ServerMessage
from protocol.shuffle.errors import ErrorResponse
from protocol.shuffle.ids import Generation
from tests.sim.clients.stream import StreamClient
from tests.sim.world import Violation

if TYPE_CHECKING:
    from tests.sim.jobs import ShuffleWork
    from tests.sim.world import World

SHUFFLE_PORT = 9094
_LARGEST_BUFFER = 64 * 1024


class _Decoder:
    def __init__(self, name: str, generation: Generation) -> None:
        self._name = name
        self._decoder = ClientDecoder(generation, _LARGEST_BUFFER)

    def feed(self, data: bytes) -> Iterator[ServerMessage]:
        for message in self._decoder.feed(data):
            if isinstance(message, ErrorResponse) and message.is_fatal:
                raise Violation(f"{self._name}: {message.class_name}: {message.message}")
            yield message


class ShuffleClient(StreamClient):
    port = SHUFFLE_PORT

    def __init__(self, name: str, world: "World", fabric: Any, work: "ShuffleWork", generation: Generation) -> None:
        super().__init__(name, world, fabric)
        self.work = work
        self.generation = generation

    def new_decoder(self) -> _Decoder:
        return _Decoder(self.name, self.generation)
