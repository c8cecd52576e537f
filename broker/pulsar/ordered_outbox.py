"""What a connection is sent without having asked for it, in the order in which it was said, whichever threads say it.

The reactor's ``push`` takes effect at once on the connection's processor and a little later from any other thread, so that what
the processor pushes can overtake what another thread has pushed before. Receipts and messages must not overtake each other. Here
each push is put into a queue, and the processor empties it.

Tests: tests/pulsar/test_ordered_outbox.py.
"""

from collections import deque
from collections.abc import Callable, Sequence

from broker.network.service import Connection, Outbox, Part, Request


class OrderedOutbox:
    """For one connection. Callers whose pushes belong together make them under a lock of theirs."""

    def __init__(self, connection: Connection, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox
        self._queue: deque[Sequence[Part]] = deque()

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        """Send bytes that answer no request."""
        assert connection is self._connection, "the outbox of another connection"
        self._queue.append(parts)
        self._outbox.call(connection, self._leave)

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        """Run ``work`` on the connection's processor, as ``Outbox.call`` does."""
        self._outbox.call(connection, work)

    def close(self, request: Request) -> None:
        """Close the connection, as ``Outbox.close`` does."""
        self._outbox.call(self._connection, self._leave)
        self._outbox.close(request)

    def _leave(self) -> None:
        """On the processor."""
        queue, push, connection = self._queue, self._outbox.push, self._connection
        while queue:
            push(connection, queue.popleft())
