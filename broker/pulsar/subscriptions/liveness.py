"""Whether a connection is alive, for a client that wants the place of another one.

The network can lose a connection without a word. The client that comes back finds its own old consumer in an exclusive
subscription. So the connection of that one is asked: a PING, to which every client answers with PONG. One that does not answer in
time is closed.

Any thread.

Tests: tests/pulsar/subscriptions/test_liveness.py.
"""

from collections.abc import Callable
from functools import partial

from broker.log import EventLimit, get_logger
from broker.network.service import Request
from broker.pulsar.connection import PulsarConnection
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandPing

log = get_logger("pulsar")

# Pulsar's connectionLivenessCheckTimeoutMillis.
_TIMEOUT_S = 5.0
_PING = write_command(BaseCommand.Type.PING, CommandPing())

Answered = Callable[[bool], None]


class Liveness:
    def __init__(self, clock: Clock, timer: Timer, timeout_s: float = _TIMEOUT_S) -> None:
        self._clock = clock
        self._timer = timer
        self._timeout_s = timeout_s
        self._lock = Lock()
        # Who waits for an answer of which connection. One PING at a time.
        self._asked: dict[PulsarConnection, tuple[list[Answered], TimerHandle]] = {}
        self._dead = EventLimit()

    def probe(self, connection: PulsarConnection, answered: Answered) -> None:
        """Call ``answered``, on any thread, with True when the client has answered, or with False when it has not in time: then
        its connection is being closed."""
        if connection.closed or connection.connection.closed:
            answered(False)
            return
        with self._lock:
            asked = self._asked.get(connection)
            if asked is not None:
                asked[0].append(answered)
                return
            handle = self._timer.at(self._clock.monotonic() + self._timeout_s, partial(self._timed_out, connection))
            self._asked[connection] = ([answered], handle)
        connection.push(_PING)

    def heard(self, connection: PulsarConnection) -> None:
        """It has sent PONG."""
        if connection in self._asked:
            self._end(connection, alive=True)

    def lost(self, connection: PulsarConnection) -> None:
        """It is closed."""
        if connection in self._asked:
            self._end(connection, alive=False)

    def _timed_out(self, connection: PulsarConnection) -> None:
        """On the timer's thread."""
        left_out = self._dead.take(self._clock.monotonic())
        if left_out is not None:
            log.info("connection_unresponsive", peer=connection.connection.peer.host, unlogged_before=left_out)
        request = Request()
        request.connection = connection.connection
        connection.outbox.close(request)
        self._end(connection, alive=False)

    def _end(self, connection: PulsarConnection, alive: bool) -> None:
        with self._lock:
            asked = self._asked.pop(connection, None)
        if asked is None:
            return
        asked[1].cancel()
        for answered in asked[0]:
            answered(alive)
