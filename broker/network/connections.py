"""The connections of one processor: how they are opened, registered with its poller, and closed; whose turn it is; the counters.

Only the processor's thread calls this and changes it. Other threads offer new connections through ``arrivals``, and may copy
``all`` and read the counters.

The memory of a frame that a handler still reads is *lent* to the handler: it belongs to no connection, and counts until the
handler is done.

``Turns`` says which connections may go on, and for how long. ``mute.py`` has the reasons for which a connection is muted. A
connection whose request is answered during its turn has its next request taken by `Receiving.dispatch` at once; otherwise it
becomes *runnable*, and the processor resumes it in its next step.

Tests: tests/network/test_processor.py, tests/network/test_throttled.py, tests/network/test_request_memory.py.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs

from broker.log import get_logger
from broker.metrics.request_times import Measuring
from broker.metrics.tracing import Traces
from broker.network.connection import ProcessorConnection
from broker.network.handshakes import Handshakes
from broker.network.memory_pool import MemoryPool, ReceiveBuffer
from broker.network.mute import (
    CHANNEL_FULL,
    CLOSING,
    DRAINING,
    HANDSHAKING,
    MEMORY_SHORT,
    RESPONSE_PENDING,
    RESPONSE_UNSENT,
    THROTTLED,
    UNWRITABLE,
    MuteEvent,
    next_holds,
)
from broker.network.new_connection import NewConnection, NewConnectionQueue
from broker.network.quota import ConnectionQuotas
from broker.network.service import Mailbox, Request
from broker.runtime.clock import Clock
from broker.runtime.poller import READ, Poller

log = get_logger("network")

# What is counted when it is set. RESPONSE_PENDING is set by every request, the others once in a connection's life.
COUNTED_HOLDS = (RESPONSE_UNSENT, THROTTLED, CHANNEL_FULL, MEMORY_SHORT, UNWRITABLE)


@attrs.define
class ProcessorStats:
    """Counters. Only the processor's thread writes them; any thread may read them."""

    requests: int = 0
    handed_over: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    protocol_errors: int = 0
    idle_closed: int = 0

    # How often a connection was muted for each of the reasons that are none of the usual course of a request.
    mutes: dict[int, int] = attrs.Factory(lambda: dict.fromkeys(COUNTED_HOLDS, 0))

    @property
    def inline(self) -> int:
        return self.requests - self.handed_over


class ConnectionTable:
    """``disconnected``: closed connections whose services have not been told yet. ``draining``: no further request is taken."""

    def __init__(
        self,
        processor: Mailbox,
        number: int,
        *,
        poller: Poller,
        clock: Clock,
        memory: MemoryPool,
        quotas: ConnectionQuotas,
        traces: Traces | None,
        handshake_timeout_s: float,
        established: Callable[[ProcessorConnection], None],
        on_room: Callable[[], None],
    ) -> None:
        """``established`` is called when a TLS handshake is done. ``on_room`` wakes the acceptor."""
        self.arrivals = NewConnectionQueue()
        # A dict, because the order of a set depends on addresses, and a simulation must be repeatable.
        self.all: dict[ProcessorConnection, None] = {}
        self.lent: dict[Request, bytearray] = {}  # frames of closed connections and of streams
        self.disconnected: list[ProcessorConnection] = []
        self.draining = False
        self.handshakes = Handshakes(
            clock,
            handshake_timeout_s,
            set_interest=self.set_interest,
            established=established,
            disconnect=self.disconnect,
        )
        self._processor = processor
        self._number = number
        self._poller = poller
        self._clock = clock
        self._memory = memory
        self._quotas = quotas
        self._traces = traces
        self._on_room = on_room

    # -- opening ------------------------------------------------------------------------------------------------------

    def open_new(self, now: float) -> None:
        """Register connections that the acceptor has queued. ``now``: when the poller has reported last."""
        waiting = self.arrivals.waiting
        while waiting:
            new = waiting.popleft()
            if self._quotas.outlived(new.peer):
                self._refuse(new)
                continue
            try:
                session = new.service.connect(new.peer)
                assert session.in_flight_max in (0, 1), "a session is muted per request, or never"
                secured = None if new.tls is None else new.tls.wrap(new.socket)
                connection = ProcessorConnection(
                    socket=secured or new.socket,
                    peer=new.peer,
                    service=new.service,
                    session=session,
                    processor=self._processor,
                    frame_max=new.frame_max,
                    last_active=self._clock.monotonic(),
                    opened_at=now,
                    received=ReceiveBuffer(self._memory),
                    holds=DRAINING if self.draining else 0,
                )
                self.set_interest(connection, READ)  # the system has a bound on these, too
                if new.tls is not None and secured is not None:
                    self.handshakes.start(connection, secured, new.tls)
            except Exception as error:  # the seam: a service that can't take one connection may take the next
                log.error("connection_failed", exc_info=error, peer=new.peer.host, listener=new.peer.listener)
                self._refuse(new)
                continue
            self.all[connection] = None
            if self._traces is not None:
                self._traces.arrived(new, self._number, self._clock.monotonic())
        if self.arrivals.turned_away():
            self._on_room()

    def _refuse(self, new: NewConnection) -> None:
        self._quotas.close(new.peer.host, new.peer.listener)
        new.socket.close()

    def set_interest(self, connection: ProcessorConnection, events: int) -> None:
        """Have the poller watch it for these events; 0 = for none."""
        if events == connection.interest:
            return
        if not events:
            self._poller.unregister(connection.socket)
        elif not connection.interest:
            self._poller.register(connection.socket, events, connection)
        else:
            self._poller.modify(connection.socket, events, connection)
        connection.interest = events

    # -- lent memory --------------------------------------------------------------------------------------------------

    def lend_copy(self, request: Request, on_memory: Callable[[], None]) -> None:
        """Copy the frame of a stream's request for its handler, because the stream goes on reading."""
        frame = request.frame
        size = len(frame)
        buffer = self._memory.allocate(size, on_memory, force=True)
        assert buffer is not None
        self.lent[request] = buffer
        request.frame = memoryview(buffer)[:size]
        request.frame[:] = frame

    def give_back(self, request: Request, _: None = None) -> None:
        """The handler is done with a frame that was lent to it: stop counting its memory. A verb of `Mailbox`."""
        buffer = self.lent.pop(request, None)
        if buffer is not None:
            self._memory.forget(buffer)  # not reused: an answer that is still to come may refer to it

    def give_back_done(self) -> None:
        """The same for all handlers that are done."""
        for request in [each for each in self.lent if each.done]:
            self.give_back(request)

    def keep_lent_of_own(self) -> None:
        """Forget frames of connections that have moved to other processors, which count them now."""
        self.lent = {
            request: buffer for request, buffer in self.lent.items() if request.connection.processor is self._processor
        }

    # -- draining -----------------------------------------------------------------------------------------------------

    def begin_draining(self, _: None = None, __: None = None) -> None:
        for connection in self.all:
            connection.holds |= DRAINING
        self.draining = True  # last: `Processor.drained` looks at it first

    def is_quiet(self) -> bool:
        """Whether no request is in flight and no answer waits to be sent. For any thread."""
        # Bytes that are pushed (in_flight_max 0) answer nothing and may have no end, so they are not waited for.
        # `copy` is atomic, iteration is not.
        return all(
            c.in_flight is None and c.held is None and not (c.outgoing and c.session.in_flight_max)
            for c in self.all.copy()
        )

    # -- closing ------------------------------------------------------------------------------------------------------

    def disconnect(self, connection: ProcessorConnection) -> None:
        """Close it now, and drop its unsent bytes. Its service is told in `tell_disconnected`."""
        if connection.closed:
            return
        connection.closed = True
        connection.holds |= CLOSING
        self.set_interest(connection, 0)
        connection.socket.close()
        self.all.pop(connection, None)
        if connection.holds & HANDSHAKING:
            self.handshakes.forget(connection)
        connection.outgoing.clear()  # drops references to files
        connection.outgoing_bytes = connection.outgoing_files = 0
        request = connection.in_flight
        if request is not None:
            buffer = connection.received.abandon()
            if buffer is not None:
                self.lent[request] = buffer
                # `done` is read after `closed` was set; a handler sets `done` before it reads `closed`.
                if getattr(request, "done", True):
                    self.give_back(request)
            connection.in_flight = None  # breaks the reference cycle, which would wait for the garbage collector
        else:
            connection.received.release()
        if connection.held is not None:  # no handler will see it
            self.give_back(connection.held)
            connection.held = None
        self.disconnected.append(connection)

    def close_outlived(self, _: None, __: None) -> None:
        """Close the connections that were there when the broker was suspended. Requests in flight go on; their answers have
        nowhere to go."""
        for connection in [each for each in self.all if self._quotas.outlived(each.peer)]:
            self.disconnect(connection)

    def has_outlived(self, connection: ProcessorConnection) -> bool:
        return self._quotas.outlived(connection.peer)

    def failed(self, target: Any, error: Exception) -> None:
        """Work of the inbox has failed: close the connection that it was about (``target``, or that of the request)."""
        log.error("answer_failed", exc_info=error)
        self.disconnect(target if isinstance(target, ProcessorConnection) else target.connection)

    def tell_disconnected(self) -> None:
        """Tell services about closed connections."""
        disconnected, self.disconnected = self.disconnected, []
        for connection in disconnected:
            if connection.counted:
                self._quotas.close(connection.peer.host, connection.peer.listener)
            self._on_room()
            try:
                connection.service.disconnected(connection)
            except Exception as error:  # the seam: the connection is closed in any case
                log.error("disconnection_failed", exc_info=error, peer=connection.peer.host)

    def close_all(self) -> None:
        """Close all, and those that were queued. The handlers have ended, or were left behind."""
        for connection in list(self.all):
            self.disconnect(connection)
        while self.arrivals.waiting:
            new = self.arrivals.waiting.popleft()
            self._refuse(new)
        self.tell_disconnected()
        for buffer in self.lent.values():
            self._memory.forget(buffer)
        self.lent = {}


# Requests of one connection that are handled before other connections get their turn: 1-2 ms of the cheapest ones. If many
# connections have requests, a turn is shorter, so that a connection with one request waits for a few ms only.
_TURN_REQUESTS = 128
_STEP_REQUESTS = 1024
_LEAST_TURN_REQUESTS = 4
# At most this many connections get whole turns in one step.
WHOLE_TURNS: Final = _STEP_REQUESTS // _TURN_REQUESTS
WHOLE_TURN: Final = range(_TURN_REQUESTS)

# A request was answered: the connection's remaining holds.
AFTER_RESPONSE: Final = ~(RESPONSE_PENDING | RESPONSE_UNSENT)
_MUTED = RESPONSE_PENDING | THROTTLED


class Turns:
    """``now`` is when the poller has reported last (Clock.monotonic() s); the processor sets it.

    ``dispatching`` is the connection whose turn it is, and None between turns; `Receiving.dispatch` sets it.
    """

    def __init__(self, measuring: Measuring, stats: ProcessorStats, now: float) -> None:
        self.now = now
        self.dispatching: ProcessorConnection | None = None
        self.length = WHOLE_TURN  # how many requests a connection may have handled in its turn
        # Connections that may have a complete frame and are not muted any more, in the order of their turns.
        self.runnable: Final[deque[ProcessorConnection]] = deque()
        self._measuring = measuring
        self._stats = stats

    def shorten(self, waiting: int) -> None:
        """Shorten turns for ``waiting`` connections with work: more than could all have whole turns in one step."""
        self.length = range(max(_LEAST_TURN_REQUESTS, _STEP_REQUESTS // waiting))

    def run_later(self, connection: ProcessorConnection) -> None:
        """Resume it in the next step."""
        if not connection.runnable:
            connection.runnable = True
            self.runnable.append(connection)

    def run_if_unmuted(self, connection: ProcessorConnection) -> None:
        """Resume it if nothing mutes it any more, and there may be something to be done for it."""
        if (
            connection is not self.dispatching
            and not connection.holds & _MUTED
            and (connection.received.held or not connection.interest & READ)
        ):
            self.run_later(connection)

    def answered(self, connection: ProcessorConnection) -> None:
        """Its request has its answer, which is certain to leave in order: unmute it."""
        request, connection.in_flight = connection.in_flight, None
        unsent = connection.holds & RESPONSE_UNSENT
        connection.holds &= AFTER_RESPONSE
        if connection is not self.dispatching:
            if not unsent:
                self._measuring.answered(connection, request)
            self.run_if_unmuted(connection)

    def throttle(self, connection: ProcessorConnection, event: MuteEvent) -> None:
        """A quota begins or ends to mute the connection. A verb of `Mailbox`."""
        if connection.closed:
            return
        connection.holds = next_holds(connection.holds, event)
        if event is MuteEvent.THROTTLE_STARTED:
            self._stats.mutes[THROTTLED] += 1
            self._measuring.throttle_started(connection)
        else:
            self._measuring.throttle_ended(connection)
        self.run_if_unmuted(connection)
