"""Connections of a processor that wait for the request channel or for request memory, in the order of their arrival.

On the processor's thread. The channel and the pool tell the processor when to retry, from any thread, by its callback: that may
ring although another processor has been faster, and a connection that gets nothing goes on waiting.

Tests: tests/network/test_request_memory.py, tests/network/test_socket_server.py, tests/network/test_any_order.py.
"""

from collections import deque
from collections.abc import Callable

from broker.network.connection import ProcessorConnection
from broker.network.mute import MuteEvent, next_holds
from broker.network.request_channel import RequestChannel
from broker.network.service import Request

Resume = Callable[[ProcessorConnection], None]


class ChannelWaiters:
    """Connections whose ``held`` request waits for the request channel."""

    def __init__(self, channel: RequestChannel, on_room: Callable[[], None], resume: Resume) -> None:
        """``on_room`` is called, from any thread, when the channel may take requests again."""
        self._channel = channel
        self._on_room = on_room
        self._resume = resume
        # By lane: if a lane is full, there may be room in another lane, or for requests without a lane.
        self._lanes: dict[str | None, deque[ProcessorConnection]] = {}

    def add(self, connection: ProcessorConnection, request: Request) -> None:
        connection.held = request
        connection.holds = next_holds(connection.holds, MuteEvent.CHANNEL_REFUSED)
        self.join(connection, request)

    def join(self, connection: ProcessorConnection, request: Request) -> None:
        """Let a connection wait here that has waited on another processor."""
        self._lanes.setdefault(request.lane, deque()).append(connection)

    def retry(self) -> None:
        for waiters in self._lanes.values():
            while waiters:
                connection = waiters[0]
                request = connection.held
                if request is not None and not connection.closed:
                    if not self._channel.offer((connection.service, request), self._on_room):
                        break
                    connection.held = None
                    connection.holds = next_holds(connection.holds, MuteEvent.CHANNEL_ACCEPTED)
                    if connection.session.in_flight_max == 0:  # else its response resumes it
                        self._resume(connection)
                waiters.popleft()


class MemoryWaiters:
    """Connections whose incomplete frame waits for request memory."""

    def __init__(
        self,
        on_memory: Callable[[], None],
        resume: Resume,
        refuse: Callable[[ProcessorConnection, MemoryError], None],
    ) -> None:
        """``on_memory`` is called, from any thread, when memory has come back. ``refuse``: there will be none for it."""
        self._on_memory = on_memory
        self._resume = resume
        self._refuse = refuse
        self.connections: deque[ProcessorConnection] = deque()

    def add(self, connection: ProcessorConnection) -> None:
        connection.holds = next_holds(connection.holds, MuteEvent.MEMORY_REFUSED)
        self.connections.append(connection)

    def retry(self) -> None:
        """Give memory to the waiters in order. If the rest of the memory is only for frames that it completes, skip others."""
        waiting, self.connections = self.connections, deque()
        none_left = [False, False]  # for frames that would have to grow again, and for those that would not
        for connection in waiting:
            if connection.closed:
                continue
            own = connection.received
            completes = own.completes(connection.frame_size)
            if not none_left[completes]:
                try:
                    if own.make_room(connection.frame_size, self._on_memory):
                        connection.holds = next_holds(connection.holds, MuteEvent.MEMORY_GRANTED)
                        self._resume(connection)
                        continue
                except MemoryError as error:
                    self._refuse(connection, error)
                    continue
                none_left[completes] = none_left[False] = True
            self.connections.append(connection)
