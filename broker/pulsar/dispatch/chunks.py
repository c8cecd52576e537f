"""To which consumer the chunks of a message go: all to the same one, because it alone can put them together. Pure.

The table is bounded. A producer that begins messages and never ends them pushes the oldest out, and their later chunks go to
anybody; the client that gets them drops what it cannot put together.

Tests: tests/pulsar/dispatch/test_chunks.py.
"""

from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.entry import Chunk

_MOST = 10_000


class Chunks:
    __slots__ = ("_consumers", "_most")

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        # By the hash of the uuid, which may be long; Python's hash of bytes cannot be foreseen by clients.
        self._consumers: dict[int, Consumer] = {}

    def consumer(self, chunk: Chunk) -> Consumer | None:
        """Who has the chunks before this one. None: nobody, as far as is known."""
        return self._consumers.get(hash(chunk.uuid))

    def sent(self, chunk: Chunk, consumer: Consumer) -> None:
        uuid = hash(chunk.uuid)
        if chunk.number >= chunk.total - 1:
            self._consumers.pop(uuid, None)
            return
        if uuid not in self._consumers and len(self._consumers) >= self._most:
            del self._consumers[next(iter(self._consumers))]
        self._consumers[uuid] = consumer
