"""A processor: one thread that owns a poller and its connections. Other threads reach it through its inbox only.

It reads bytes, cuts them into frames, runs requests that cannot block (``Service.inline``), hands the others to the request
channel, sends answers in order, and enforces every bound: frame size, request memory, outgoing bytes, idle time. No other thread
reads, writes, registers or closes its sockets; other threads put work into the inbox and wake the poller.

The seven steps are Kafka's. Two differences, both for speed and neither visible on the wire:

- frames are handled while they lie in the receive buffer that all connections of the processor share, so reading and
  ``process_completed_receives`` go connection by connection;
- a connection is *lazily* muted: it stays registered for reading while its request is out, and only if it turns readable
  meanwhile is it taken out of the poller (a ``modify`` each way would cost more than most requests).
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import Any

import attrs

from broker.log import EventLimit, get_logger
from broker.metrics.request_times import GAP_S, SEND, THROTTLE, RequestTimes
from broker.metrics.tracing import Traces
from broker.network.connection import ProcessorConnection
from broker.network.departure import Departure, Heir, Moved, Work
from broker.network.expiry import Expiry, Unsent
from broker.network.handshakes import Handshakes
from broker.network.memory_pool import SMALL_BYTES, MemoryPool, ReceiveBuffer
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
from broker.network.new_connection import Attachment, NewConnection, NewConnectionQueue
from broker.network.quota import ConnectionQuotas
from broker.network.request_channel import RequestChannel
from broker.network.service import Handover, Outbox, Part, Request, Verb
from broker.network.waiters import ChannelWaiters, MemoryWaiters
from broker.runtime.clock import Clock
from broker.runtime.net import WOULD_BLOCK
from broker.runtime.poller import READ, WRITE, Poller, Ready
from broker.runtime.run_token import TokenHolder
from broker.runtime.threads import Threads
from protocol.errors import ProtocolError

log = get_logger("network")

# Bytes of one read. All connections share this buffer; a frame that does not fit is moved to a buffer of its own.
_RECEIVE_BYTES = 256 * 1024
# Connections that a processor hands over in one piece, while their heirs and senders wait: about 1 ms.
_MOVED_AT_ONCE = 64
# Longest sleep (s) of an idle processor. Idle and slow connections are looked for this often.
_NAP_S = 1.0
# A request for a handler that lies in the shared buffer must be copied. From this size (bytes) on the copy is in request memory.
# Smaller copies are not counted; there is at most one for each connection.
_COPY_BYTES = 16 * 1024
# Requests of one connection that are handled before other connections get their turn: 1-2 ms of the cheapest ones. If many
# connections have requests, a turn is shorter, so that a connection with one request waits for a few ms only.
_TURN_REQUESTS = 128
# The longest turn (s), for requests that are not the cheapest. It is not checked before the second request.
_TURN_S = 0.002
_STEP_REQUESTS = 1024
_LEAST_TURN_REQUESTS = 4

# Turns of a stream whose peer has closed, for what that has sent before. It sends little when it goes.
_LAST_TURNS = 64

# The kernel copies what is larger than this (bytes) for so long that another processor should work meanwhile.
_LARGE_BYTES = 64 * 1024
# How long (s) a processor that has something to do keeps the run token although another one waits. Waking it takes 30 to 50 us.
_KEEP_S = 0.0003
# How long (s) it goes on with what its poller has reported.
_LONG_S = 0.001

_WHOLE_TURN = range(_TURN_REQUESTS)
# A request was answered: what remains of a connection's holds.
_AFTER_RESPONSE = ~(RESPONSE_PENDING | RESPONSE_UNSENT)
# Between two requests these end a connection's turn. A stream that is held for another reason takes what it has read already.
_ENDS_TURN = RESPONSE_PENDING | THROTTLED | CLOSING
_MUTED = RESPONSE_PENDING | THROTTLED
# What is counted when it is set. RESPONSE_PENDING is set by every request, the others once in a connection's life.
COUNTED_HOLDS = (RESPONSE_UNSENT, THROTTLED, CHANNEL_FULL, MEMORY_SHORT, UNWRITABLE)
# Connections with these are not registered for reading.
_UNREGISTERED = MEMORY_SHORT | CLOSING


@attrs.frozen
class ProcessorSettings:
    idle_max_s: float  # connections_max_idle_ms
    high_water_bytes: int
    low_water_bytes: int
    handshake_timeout_s: float = 10.0  # handshake_timeout_ms
    traces: Traces | None = None  # None: no request is traced


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


class Processor:
    """The body of one processor thread."""

    def __init__(
        self,
        number: int,
        *,
        settings: ProcessorSettings,
        poller: Poller,
        clock: Clock,
        threads: Threads,
        channel: RequestChannel,
        memory: MemoryPool,
        unsent: Unsent,
        outbox: Outbox,
        quotas: ConnectionQuotas,
        on_room: Callable[[], None],
        times: RequestTimes | None = None,
        token: TokenHolder | None = None,
        attachment: Attachment | None = None,
    ) -> None:
        """``on_room`` wakes the acceptor: the queue of new connections has room again, or a connection was closed.

        ``times``: what an earlier processor has measured, to be continued.
        """
        self.number = number
        self.stats = ProcessorStats()
        self.idle_s = 0.0  # time spent waiting; only the processor's thread writes it
        self.times = RequestTimes() if times is None else times
        # A dict, because the order of a set depends on addresses, and a simulation must be repeatable.
        self.connections: dict[ProcessorConnection, None] = {}
        self._settings = settings
        self._traces = settings.traces
        self._poller = poller
        self._clock = clock
        self._monotonic = clock.monotonic
        self._get_ident = threads.get_ident
        self._ident = -1  # of the thread that runs step()
        self._token = token
        self._attachment = attachment
        self._attached = False
        self._channel = channel
        self._memory = memory
        self._unsent = unsent
        self._outbox = outbox
        self._quotas = quotas
        self._on_room = on_room
        self._arrivals = NewConnectionQueue()
        self._new = self._arrivals.waiting
        self._inbox: deque[Work] = deque()
        self.departure = Departure(self, self._inbox)
        # Set when the processor is to go: the processors among which its connections are divided.
        self._heirs: Callable[[], Sequence[Heir]] | None = None
        self._violations = EventLimit()
        self._dirty: list[ProcessorConnection] = []  # have something to send
        # Connections that may have a complete frame and are not muted any more.
        self._runnable: deque[ProcessorConnection] = deque()
        self._channel_waiters = ChannelWaiters(channel, self._room_came, self._run_later)
        self._memory_waiters = MemoryWaiters(self._room_came, self._run_later, self._refuse_memory)
        self._expiry = Expiry(
            number,
            self.connections,
            self._disconnect,
            idle_max_s=settings.idle_max_s,
            high_water_bytes=settings.high_water_bytes,
            memory=memory,
            unsent=unsent,
            quotas=quotas,
        )
        self.handshakes = Handshakes(
            clock,
            settings.handshake_timeout_s,
            set_interest=self._set_interest,
            established=self._established,
            disconnect=self._disconnect,
        )
        self._handshake_turns = self.handshakes.turns
        self._room = False  # set from other threads: the channel or the pool has room again
        self._high_water = settings.high_water_bytes
        self._turn = _WHOLE_TURN
        # Memory of frames that handlers are still reading, of closed connections and of streams. It counts until they are done.
        self._lent: dict[Request, bytearray] = {}
        self._disconnected: list[ProcessorConnection] = []
        self._receive_view = memoryview(bytearray(_RECEIVE_BYTES))
        self._next_sweep = 0.0
        self._draining = False
        self._now = clock.monotonic()
        self._began = self._took_at = self._now
        self._dispatching: ProcessorConnection | None = None
        self._at_once = self.times.at_once
        # What is measured in this step (see `request_times.py`); None: nothing is, before a certain time.
        self._measured: list[Any] | None = []
        self._measure_from = inf

    # -- called from other threads ------------------------------------------------------------------------------------

    def offer(self, new: NewConnection) -> bool:
        """Queue a new connection. False if the queue is full or the processor is being shut down."""
        if not self._arrivals.offer(new):
            return False
        self._poller.wakeup()
        return True

    def wakeup(self) -> None:
        self._poller.wakeup()

    def submit(self, verb: Verb, target: Any, argument: Any) -> None:
        """Run ``verb(target, argument)`` on the processor's thread: at once if this is it, else soon."""
        if self._get_ident() == self._ident:
            verb(target, argument)
        else:
            self._inbox.append((verb, target, argument))
            if self.departure.begun:
                self.departure.forward()
            self._poller.wakeup()

    def leave(self, heirs: Callable[[], Sequence[Heir]]) -> None:
        """Accept no further connection, and hand all of them over to ``heirs`` at the end of the next step. Then
        ``departure.over`` is set, and the thread may end."""
        self._arrivals.close()
        self._heirs = heirs
        self._poller.wakeup()

    def drain(self) -> None:
        """Accept no further request or connection. Requests in flight are still answered."""
        self._arrivals.close()
        self.submit(self._begin_draining, None, None)

    def _begin_draining(self, _: None, __: None) -> None:
        for connection in self.connections:
            connection.holds |= DRAINING
        self._draining = True  # last: `drained` looks at it first

    @property
    def drained(self) -> bool:
        """Whether the processor is draining, no request is in flight and no answer waits to be sent. For any thread."""
        # The processor's thread sets `_draining`, so it is not about to take a request. `copy` is atomic, iteration is not.
        if not self._draining or self._inbox:
            return False
        # Bytes that are pushed (in_flight_max 0) answer nothing and may have no end, so they are not waited for.
        return all(
            c.in_flight is None and c.held is None and not (c.outgoing and c.session.in_flight_max)
            for c in self.connections.copy()
        )

    @property
    def waiting(self) -> int:
        """Pieces of work in its inbox: answers of other threads, most of them. For any thread."""
        return len(self._inbox)

    def _room_came(self) -> None:
        self._room = True
        self._poller.wakeup()

    # -- the steps ----------------------------------------------------------------------------------------------------

    def step(self, timeout: float | None) -> bool:
        self._ident = self._get_ident()
        if self._attachment is not None and not self._attached:
            self._attach(self._attachment)
        if self._heirs is not None and self.departure.over:  # all that is in the inbox is passed on by its senders
            self.poll(timeout)
            return False
        # Most steps have nothing to do but to read, and a question costs less than a call.
        if self._new:
            self.configure_new_connections()
        if self._inbox or self._dirty or self._room or self._runnable:
            self.process_new_responses()
        ready = self.poll(timeout)
        self.process_completed_receives(ready)
        self.process_completed_sends(ready)
        if self._disconnected:
            self.process_disconnected()
        if self._now >= self._next_sweep:
            self.close_excess_connections()
        if self._heirs is not None:
            self._hand_over_connections(self._heirs)
        return bool(ready)

    def _attach(self, attachment: Attachment) -> None:
        try:
            self._poller.register(attachment.source, READ, attachment)
        except OSError:  # the system has a bound on these; what is attached can be done without this thread
            self._detach()
            return
        self._attached = True
        attachment.attach()

    def _run_attached(self, work: Callable[[], None]) -> None:
        """What it submits waits in the inbox, where an error costs the connection that it was about, and not this thread."""
        self._ident = -1
        try:
            work()
        finally:
            self._ident = self._get_ident()

    def _detach(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            if self._attached:
                self._poller.unregister(attachment.source)
            attachment.detach()

    def configure_new_connections(self) -> None:
        """Register connections that the acceptor has queued."""
        while self._new:
            new = self._new.popleft()
            try:
                session = new.service.connect(new.peer)
                assert session.in_flight_max in (0, 1), "a session is muted per request, or never"
                secured = None if new.tls is None else new.tls.wrap(new.socket)
                connection = ProcessorConnection(
                    socket=secured or new.socket,
                    peer=new.peer,
                    service=new.service,
                    session=session,
                    processor=self,
                    frame_max=new.frame_max,
                    last_active=self._clock.monotonic(),
                    opened_at=self._now,
                    received=ReceiveBuffer(self._memory),
                    holds=DRAINING if self._draining else 0,
                )
                self._set_interest(connection, READ)  # the system has a bound on these, too
                if new.tls is not None and secured is not None:
                    self.handshakes.start(connection, secured, new.tls)
            except Exception as error:  # the seam: a service that can't take one connection may take the next
                log.error("connection_failed", exc_info=error, peer=new.peer.host, listener=new.peer.listener)
                self._quotas.close(new.peer.host, new.peer.listener)
                new.socket.close()
                continue
            self.connections[connection] = None
            if self._traces is not None:
                self._traces.arrived(new, self.number, self._clock.monotonic())
        if self._arrivals.turned_away():
            self._on_room()

    def process_new_responses(self) -> None:
        """Run the work in the inbox, then continue connections that can go on."""
        inbox = self._inbox
        if inbox:
            for _ in range(len(inbox)):
                verb, target, argument = inbox.popleft()
                try:
                    verb(target, argument)
                except Exception as error:  # the seam: a service's bug costs the connection it was about
                    self._failed(target, error)
        if self._dirty:
            self._flush_dirty()
        if self._room:
            self._room = False
            self._channel_waiters.retry()
            self._memory_waiters.retry()
        if self._runnable:
            for _ in range(len(self._runnable)):  # connections that become runnable meanwhile wait for the next step
                connection = self._runnable.popleft()
                connection.runnable = False
                self._resume(connection)
            if self._dirty:
                self._flush_dirty()

    def _failed(self, target: Any, error: Exception) -> None:
        log.error("answer_failed", exc_info=error)
        self._disconnect(target if isinstance(target, ProcessorConnection) else target.connection)

    def poll(self, timeout: float | None) -> Sequence[tuple[Ready, int]]:
        """Wait for sockets or for a wake-up."""
        if self._attachment is not None and self._attachment.due:
            self._run_attached(self._attachment.begin_due)
        self._poller.arm()
        work = self._inbox or self._dirty or self._new or self._runnable or self._disconnected or self._room
        if work or self._handshake_turns:
            timeout = 0.0
        elif timeout is None or timeout > _NAP_S:
            timeout = _NAP_S
        token, only_looks = self._token, False
        if token is not None and token.waiting and token.held:
            if self._monotonic() - self._took_at < _KEEP_S:
                only_looks, timeout = timeout > 0.0, 0.0
            else:
                token.give()
        if timeout:
            if token is not None:
                token.give()
            began = self._monotonic()
            ready = self._poller.poll(timeout)
            self._now = self._began = now = self._monotonic()
            self.idle_s += now - began
        else:
            ready = self._poller.poll(timeout)
            self._now = self._began = now = self._monotonic()
        if token is not None:
            if not token.held:
                if token.take():
                    self._began = self._monotonic()
                self._took_at = self._began
            elif only_looks and not ready:
                token.give()  # nothing to do: the next step waits
        if now >= self._measure_from:
            self._measure_from = inf
            self._measured = []
        waiting = len(ready) + len(self._runnable)
        if waiting > _STEP_REQUESTS // _TURN_REQUESTS:
            self._turn = range(max(_LEAST_TURN_REQUESTS, _STEP_REQUESTS // waiting))
        else:
            self._turn = _WHOLE_TURN
        return ready

    def _pass_token(self, token: TokenHolder) -> None:
        """Another processor waits. With much to do, let it have its turn in between."""
        now = self._monotonic()
        if now - self._took_at >= _LONG_S:
            token.give()
            token.take()
            self._took_at = self._monotonic()

    def _give_token(self) -> None:
        """Until the end of the next poll. For what keeps the kernel busy, or the CPU without the interpreter's lock."""
        if self._token is not None:
            self._token.give()

    def process_completed_receives(self, ready: Sequence[tuple[Ready, int]]) -> None:
        """Read from readable sockets and dispatch every complete frame."""
        attachment, token = self._attachment, self._token
        for key, events in ready:
            if events & READ:
                connection = key.data
                if connection is attachment and attachment is not None:
                    self._run_attached(attachment.ready)
                elif not connection.closed:
                    if token is not None and token.waiting and token.held:
                        self._pass_token(token)
                    self._receive(connection)
        if self._handshake_turns:
            self._give_token()  # for a signature OpenSSL gives up the interpreter's lock for up to a millisecond
            self.handshakes.run()
        if self._dirty:
            self._flush_dirty()
        if self._measured:
            self._note_measured(self._measured)

    def process_completed_sends(self, ready: Sequence[tuple[Ready, int]]) -> None:
        """Continue to send to writable sockets."""
        for key, events in ready:
            if events & WRITE:
                connection = key.data
                if connection.holds & HANDSHAKING:
                    self.handshakes.ready(connection)
                elif not connection.closed:
                    self._flush(connection)

    def process_disconnected(self) -> None:
        """Tell services about closed connections."""
        disconnected, self._disconnected = self._disconnected, []
        for connection in disconnected:
            if connection.counted:
                self._quotas.close(connection.peer.host, connection.peer.listener)
            self._on_room()
            try:
                connection.service.disconnected(connection)
            except Exception as error:  # the seam: the connection is closed in any case
                log.error("disconnection_failed", exc_info=error, peer=connection.peer.host)

    def close_excess_connections(self) -> None:
        """About once a second: close idle, slow and excess connections (see `expiry.py`)."""
        now = self._now
        self._next_sweep = now + min(_NAP_S, self._settings.idle_max_s / 4)
        self.stats.idle_closed += self._expiry.close_quiet(now)
        self._expiry.close_slow(now)
        self.handshakes.close_late(now)
        self._high_water = self._expiry.high_water_bytes
        for request in [each for each in self._lent if each.done]:
            self.give_back(request)
        self._expiry.close_excess()
        if not self._memory.in_use:
            self._memory.trim()

    def close(self) -> None:
        """Close everything. Called on the processor's thread, or after that thread has ended."""
        self._ident = self._get_ident()
        self._draining = True
        self._arrivals.close()
        for moved in self.departure.begin():
            self.take_over(moved, None)
        for connection in list(self.connections):
            self._disconnect(connection)
        while self._new:
            new = self._new.popleft()
            self._quotas.close(new.peer.host, new.peer.listener)
            new.socket.close()
        self.process_disconnected()
        for buffer in self._lent.values():  # the handlers have ended, or were left behind
            self._memory.forget(buffer)
        self._lent = {}
        self.departure.end()
        self._detach()
        self._unsent.report(self.number, 0)
        self._give_token()
        self._poller.close()
        self._ident = -1  # this is no longer the thread of anything

    # -- going ----------------------------------------------------------------------------------------------------------

    def _hand_over_connections(self, heirs: Callable[[], Sequence[Heir]]) -> None:
        """Divide the connections among the heirs. One that nobody takes is closed."""
        for moved in self.departure.begin():
            self.take_over(moved, None)
        self.configure_new_connections()
        lent: dict[Any, dict[Request, bytearray]] = {}
        for request, buffer in self._lent.items():
            lent.setdefault(request.connection, {})[request] = buffer
        while self.connections:
            moving = []
            others = heirs()
            for connection in list(islice(self.connections, _MOVED_AT_ONCE)):
                # Where it was in this processor's lists, its flags and holds tell the heir.
                moved = Moved(
                    connection,
                    connection.interest,
                    lent.get(connection, {}),
                    self.departure,
                    self.handshakes.forget(connection) if connection.holds & HANDSHAKING else None,
                )
                self._set_interest(connection, 0)
                del self.connections[connection]
                moving.append(moved)
            if others:
                moving = self.departure.move([(moved, others[n % len(others)]) for n, moved in enumerate(moving)])
            for heir in others:  # some of them may be going as well
                moving = self.departure.move([(moved, heir) for moved in moving])
            for moved in moving:
                self._disconnect(moved.connection)
        self._lent = {request: buffer for request, buffer in self._lent.items() if request.connection.processor is self}
        self._dirty.clear()
        self._runnable.clear()
        for verb, target, argument in self.departure.end():
            try:
                verb(target, argument)
            except Exception as error:  # the seam, as in `process_new_responses`
                self._failed(target, error)
        self.process_disconnected()
        self._detach()
        self._give_token()  # the thread may end without another poll

    def take_over(self, moved: Moved, _: None) -> None:
        """Continue a connection of a processor that goes."""
        self.departure.taken_over(moved)
        connection = moved.connection
        self._lent.update(moved.lent)
        self.connections[connection] = None
        if self._draining:
            connection.holds |= DRAINING
        try:
            self._set_interest(connection, moved.interest)
        except Exception as error:  # the seam: the system has a bound on these
            log.error("connection_failed", exc_info=error, peer=connection.peer.host, listener=connection.peer.listener)
            self._disconnect(connection)
            return
        if connection.outgoing:
            self._expiry.note_unread(connection)
        if moved.handshake is not None:
            self.handshakes.take_over(connection, moved.handshake)
        dirty, connection.dirty = connection.dirty, False
        runnable, connection.runnable = connection.runnable, False
        if dirty:
            self._mark_dirty(connection)
        if runnable:
            self._run_later(connection)
        if connection.holds & (CHANNEL_FULL | MEMORY_SHORT):
            if connection.held is not None:
                self._channel_waiters.join(connection, connection.held)
            if connection.holds & MEMORY_SHORT:
                self._memory_waiters.connections.append(connection)
            self._room = True  # the other processor may have been told

    # -- what the outbox asks for; on this thread -------------------------------------------------------------------------
    # A service sees a request's connection as a `Connection`. Here it is the one that `_dispatch` put into the request.

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        """Queue a response, and unmute the connection once the response is below the high-water mark."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if connection.closed:
            return
        connection.enqueue(parts)
        if not connection.dirty:  # `_mark_dirty` without the call: every request comes here
            connection.dirty = True
            self._dirty.append(connection)
        if connection.in_flight is request:
            if connection.outgoing_bytes <= self._high_water:
                if connection is self._dispatching:  # `_answered` without the call: its turn goes on by itself
                    connection.in_flight = None
                    connection.holds &= _AFTER_RESPONSE
                else:
                    self._answered(connection)
            else:
                connection.holds |= RESPONSE_UNSENT
                self.stats.mutes[RESPONSE_UNSENT] += 1
                if connection is not self._dispatching:
                    self._note_answered(connection, request)
        else:
            assert connection.session.in_flight_max == 0, "a request was answered twice"

    def no_op(self, request: Request, _: None = None) -> None:
        """No response is due: unmute."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if not connection.closed and connection.in_flight is request:
            self._answered(connection)

    def close_connection(self, request: Request, _: None = None) -> None:
        """Close once what was queued before has been sent."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if not connection.closed:
            self._start_closing(connection)

    def hand_over(self, request: Request, handover: Handover) -> None:
        """A request that was parked goes to a handler."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if connection.closed or connection.in_flight is not request:
            return
        request.lane, request.prepared = handover.lane, handover.prepared
        request.done = False
        if connection is self._dispatching or not connection.session.in_flight_max:
            request.taken_at = request.handled_at = 0.0
        self._offer(connection, request)

    def _offer(self, connection: ProcessorConnection, request: Request) -> bool:
        """Give a request to the handlers. False if it has to wait until they take it."""
        if self._channel.offer((connection.service, request), self._room_came):
            return True
        self.stats.mutes[CHANNEL_FULL] += 1
        self._channel_waiters.add(connection, request)
        return False

    def push(self, connection: ProcessorConnection, parts: Sequence[Part]) -> None:
        """Queue bytes that answer no request."""
        if connection.closed:
            return
        connection.enqueue(parts)
        self._mark_dirty(connection)

    def call(self, connection: ProcessorConnection, work: Callable[[], None]) -> None:
        """Run a service's own work on this connection."""
        if not connection.closed:
            work()

    def give_back(self, request: Request, _: None = None) -> None:
        """The handler is done with a frame that was lent to it: stop counting its memory."""
        buffer = self._lent.pop(request, None)
        if buffer is not None:
            self._memory.forget(buffer)  # not reused: an answer that is still to come may refer to it

    def throttle(self, connection: ProcessorConnection, event: MuteEvent) -> None:
        """A quota begins or ends to mute the connection."""
        if not connection.closed:
            connection.holds = next_holds(connection.holds, event)
            self._note_throttle(connection, event)
            self._go_on_if_unmuted(connection)

    def _mark_dirty(self, connection: ProcessorConnection) -> None:
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    # -- muting -------------------------------------------------------------------------------------------------------

    def _answered(self, connection: ProcessorConnection) -> None:
        request, connection.in_flight = connection.in_flight, None
        unsent = connection.holds & RESPONSE_UNSENT
        connection.holds &= _AFTER_RESPONSE
        if connection is not self._dispatching:
            if not unsent:
                self._note_answered(connection, request)
            self._go_on_if_unmuted(connection)

    def _go_on_if_unmuted(self, connection: ProcessorConnection) -> None:
        if (
            connection is not self._dispatching
            and not connection.holds & _MUTED
            and (connection.received.held or not connection.interest & READ)
        ):
            self._run_later(connection)

    def _run_later(self, connection: ProcessorConnection) -> None:
        if not connection.runnable:
            connection.runnable = True
            self._runnable.append(connection)

    def _resume(self, connection: ProcessorConnection) -> None:
        """Continue a connection that was unmuted, has become writable, has got memory, or has its next turn."""
        if connection.holds != 0:
            return
        if connection.received.held:
            self._dispatch_own(connection)
            if connection.holds != 0:
                return
        if not connection.finished:
            if connection.socket.buffered:
                self._receive_buffered(connection)
            else:
                self._set_interest(connection, connection.interest | READ)
        elif not connection.runnable:
            self._finish(connection)  # every complete request is answered

    def _established(self, connection: ProcessorConnection) -> None:
        """Its TLS handshake is done. Requests may have arrived with the last part of it, and the service may have pushed."""
        if connection.outgoing:
            self._mark_dirty(connection)
        if connection.socket.buffered:
            self._read_again(connection)

    def _receive_buffered(self, connection: ProcessorConnection) -> None:
        self._receive(connection)
        # Also while its request is out, as for any connection: to notice that its peer hangs up.
        if not (connection.holds & _UNREGISTERED or connection.finished or connection.socket.buffered):
            self._set_interest(connection, connection.interest | READ)

    def _read_again(self, connection: ProcessorConnection) -> None:
        """TLS: something has been received that the poller does not know of. Without interest in READ, the connection is resumed
        as soon as nothing holds it."""
        self._set_interest(connection, connection.interest & ~READ)
        self._run_later(connection)

    def _set_interest(self, connection: ProcessorConnection, events: int) -> None:
        if events == connection.interest:
            return
        if not events:
            self._poller.unregister(connection.socket)
        elif not connection.interest:
            self._poller.register(connection.socket, events, connection)
        else:
            self._poller.modify(connection.socket, events, connection)
        connection.interest = events

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _receive(self, connection: ProcessorConnection) -> None:
        if connection.holds:
            if connection.holds & HANDSHAKING:
                self.handshakes.ready(connection)
                return
            # The lazy half of muting. This is also where a peer that disconnects while its request is handled is noticed.
            try:
                finished = connection.socket.at_eof()
            except OSError:
                self._disconnect(connection)
                return
            if finished:
                self._peer_finished(connection)
            else:
                self._set_interest(connection, connection.interest & ~READ)
            return
        own = connection.received
        held = own.held
        try:
            if held:
                if connection.runnable:
                    return  # the bytes that are there come first: handling them may free memory
                if not own.make_room(connection.frame_size, self._room_came):
                    self._wait_for_memory(connection)
                    return
                if connection.frame_size > _LARGE_BYTES:
                    self._give_token()
                got = connection.socket.recv_into(own.space(connection.frame_size))
            elif self._memory.exhausted:
                # Small requests are still served. Of a large one, no more is read than may be kept in any case.
                got = connection.socket.recv_into(self._receive_view[:SMALL_BYTES])
            else:
                got = connection.socket.recv_into(self._receive_view)
        except OSError:
            self._disconnect(connection)
            return
        except MemoryError as error:
            self._refuse_memory(connection, error)
            return
        if got <= 0:
            if got != WOULD_BLOCK:
                self._peer_finished(connection)
            return
        connection.last_active = self._now
        self.stats.bytes_in += got
        connection.bytes_in += got
        if held:
            own.end += got
            self._dispatch_own(connection)
        else:
            consumed = self._dispatch(connection, self._receive_view, 0, got, shared=True)
            if consumed < got and not connection.holds & CLOSING:
                try:
                    own.keep(self._receive_view[consumed:got], self._room_came)
                except MemoryError as error:
                    self._refuse_memory(connection, error)
                    return
        if connection.socket.buffered and not connection.closed:
            self._read_again(connection)

    def _dispatch_own(self, connection: ProcessorConnection) -> None:
        own = connection.received
        if not own.pending:
            own.settle()  # the last frame was the one that a handler was reading
            return
        if connection.frame_size > own.pending:
            return
        start = self._dispatch(connection, own.view, own.start, own.end, shared=False)
        if connection.closed:
            return
        if connection.in_flight is None and connection.held is None:
            if start > own.start:
                own.consumed(start)
        else:
            own.start = start  # a handler reads the bytes before it: keep them until the answer comes

    def _dispatch(self, connection: ProcessorConnection, view: memoryview, start: int, end: int, shared: bool) -> int:
        """Take whole frames out of ``view[start:end]`` until one is out with a handler or the turn is over. Returns where."""
        session, service, outbox = connection.session, connection.service, self._outbox
        sequential = session.in_flight_max == 1
        high_water = self._high_water
        taken = 0  # size of the last frame
        turn_ends = 0.0
        at_once, measured = self._at_once, self._measured
        self._dispatching = connection
        try:
            for _ in self._turn:
                if start >= end or connection.holds & _ENDS_TURN:
                    break
                if connection.outgoing_bytes > high_water:
                    self._flush(connection)
                    if connection.holds & (CLOSING | UNWRITABLE):
                        break
                frame = view[start:end]
                size = session.frame_size(frame)
                if size > connection.frame_max:
                    raise ProtocolError(f"a frame of {size} bytes: more than {connection.frame_max}")
                if size != end - start:  # otherwise the frame is all of it, and the slice can be used
                    if size <= 0 or size > end - start:
                        connection.frame_size = size
                        break
                    frame = view[start : start + size]
                taken = size
                connection.frame_size = 0
                request = session.receive(frame)
                request.connection = connection
                request.frame = frame
                request.received_at = self._now
                start += size
                count = request.count
                connection.requests += count
                self.stats.requests += count
                if sequential:
                    connection.in_flight = request
                    connection.holds |= RESPONSE_PENDING
                if size > _LARGE_BYTES:
                    self._give_token()
                prepared = service.inline(request)
                if type(prepared) is not Handover:
                    service.handle(request, outbox, prepared)
                    if sequential:
                        if connection.in_flight is not request:
                            kind = connection.kind = request.kind
                            at_once[kind] += count
                            if measured is not None:
                                taken_at = measured[-1] if measured else self._began
                                measured += kind, taken_at, self._clock.monotonic()
                                if self._traces is not None:
                                    self._traces.offer(request, self.number, taken_at, measured[-1], measured[-1])
                        else:
                            self._note_parked(connection, request)
                    if start < end:  # only a peer that has sent several requests at once can exceed its turn
                        now = self._clock.monotonic()
                        if not turn_ends:
                            turn_ends = now + _TURN_S
                        elif now >= turn_ends:
                            self._run_later(connection)
                            break
                else:
                    self.stats.handed_over += 1
                    request.taken_at = request.handled_at = 0.0
                    if shared and sequential and size >= _COPY_BYTES:
                        own = connection.received
                        own.keep(view[start - size : end], self._room_came)
                        own.start = size
                        own.last_frame = size
                        request.frame = own.view[:size]
                        start = end
                    elif not sequential:  # several requests may be in flight: each frame gets memory of its own
                        self._lend_copy(request)
                    elif shared:  # the bytes are overwritten by the next read
                        request.frame = memoryview(bytearray(frame))
                    request.done = False
                    request.lane, request.prepared = prepared.lane, prepared.prepared
                    if not self._offer(connection, request):
                        break
            else:
                self._run_later(connection)
        except ProtocolError as error:
            self.stats.protocol_errors += 1
            unlogged = self._violations.take(self._now)
            if unlogged is not None:
                log.info(
                    "protocol_violated",
                    peer=connection.peer.host,
                    listener=connection.peer.listener,
                    error=str(error),
                    unlogged_before=unlogged,
                )
            # The responses to earlier requests are still sent.
            self._start_closing(connection)
        except Exception as error:  # the seam: what one connection sends never ends the processor
            log.error("request_failed", exc_info=error, peer=connection.peer.host, listener=connection.peer.listener)
            self._start_closing(connection)
        finally:
            self._dispatching = None
        if taken and not shared:
            connection.received.last_frame = taken
        return start

    def _lend_copy(self, request: Request) -> None:
        """Copy the frame of a stream's request for its handler, because the stream goes on reading."""
        frame = request.frame
        size = len(frame)
        buffer = self._memory.allocate(size, self._room_came, force=True)
        assert buffer is not None
        self._lent[request] = buffer
        request.frame = memoryview(buffer)[:size]
        request.frame[:] = frame

    def _refuse_memory(self, connection: ProcessorConnection, error: MemoryError) -> None:
        """Close a connection whose bytes cannot be kept."""
        log.warning("memory_exhausted", peer=connection.peer.host, error=str(error))
        self._disconnect(connection)

    def _peer_finished(self, connection: ProcessorConnection) -> None:
        """The peer has closed its sending side and may still read: answer every complete request in order, then close."""
        self._set_interest(connection, connection.interest & ~READ)
        if not connection.session.in_flight_max or connection.holds & CLOSING:
            self._finish(connection)  # pushed bytes have no end that could be waited for
            return
        connection.finished = True
        if connection.in_flight is None:
            self._resume(connection)
            return
        # The peer may have gone altogether: a parked request of it must not wait for minutes.
        try:
            connection.service.stopping(connection)
        except Exception as error:  # the seam: as for a request that fails
            log.error("stop_failed", exc_info=error, peer=connection.peer.host)
            self._disconnect(connection)

    def _finish(self, connection: ProcessorConnection) -> None:
        """Close as soon as the queued bytes have been sent."""
        if connection.outgoing:
            self._start_closing(connection)
            self._set_interest(connection, connection.interest & ~READ)
        else:
            self._disconnect(connection)

    def _wait_for_memory(self, connection: ProcessorConnection) -> None:
        self.stats.mutes[MEMORY_SHORT] += 1
        self._memory_waiters.add(connection)
        self._set_interest(connection, connection.interest & ~READ)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _flush_dirty(self) -> None:
        # One pass: a service that streams has more to send as soon as bytes have left, and other connections need their turn.
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.dirty = False
            if not connection.closed:
                self._flush(connection)

    def _flush(self, connection: ProcessorConnection) -> None:
        before = connection.outgoing_bytes
        if before > _LARGE_BYTES:
            self._give_token()
        try:
            done = connection.flush() if connection.on_flushed is None else self._flush_timed(connection)
        except OSError as error:
            log.debug("send_failed", peer=connection.peer.host, error=str(error))
            if isinstance(error, ConnectionError) and not connection.session.in_flight_max:
                if connection is self._dispatching:  # what it has sent is handled first; then this is tried again
                    self._mark_dirty(connection)
                    return
                self._take_rest(connection)
            self._disconnect(connection)
            return
        except Exception as error:  # the seam: a service has queued an object that is not bytes
            log.error("send_failed", exc_info=error, peer=connection.peer.host)
            self._disconnect(connection)
            return
        left = connection.outgoing_bytes
        if left != before:
            self.stats.bytes_out += before - left
            connection.bytes_out += before - left
            connection.last_active = self._now
        if done:
            if connection.holds & CLOSING:
                self._disconnect(connection)
                return
            if connection.interest & WRITE:
                self._set_interest(connection, connection.interest & ~WRITE)
            if connection.stalled_at:
                self._note_unstalled(connection)
            if connection.holds & RESPONSE_UNSENT:
                self._answered(connection)
        else:
            self._set_interest(connection, connection.interest | WRITE)
            self._expiry.note_unread(connection)
            if not connection.stalled_at:
                connection.stalled_at = self._now
        high_water = self._high_water if connection.session.in_flight_max else self._settings.high_water_bytes
        if not connection.holds & UNWRITABLE:
            if left > high_water:
                connection.holds |= UNWRITABLE
                self.stats.mutes[UNWRITABLE] += 1
        elif left <= min(self._settings.low_water_bytes, high_water):
            connection.holds &= ~UNWRITABLE
            self._run_later(connection)
            try:
                connection.service.writable(connection)
            except Exception as error:  # the seam: as for a request that fails
                log.error("resumption_failed", exc_info=error, peer=connection.peer.host)
                self._disconnect(connection)

    def _take_rest(self, connection: ProcessorConnection) -> None:
        """The peer of a stream has gone. What it has sent before is handled: it may have said goodbye, and closed while more was
        on its way to it, which resets the connection."""
        for _ in range(_LAST_TURNS):
            connection.outgoing.clear()  # the service may have pushed more meanwhile
            connection.outgoing_bytes = connection.outgoing_files = 0
            connection.holds &= ~UNWRITABLE
            if connection.holds:  # it may be closed
                return
            before = connection.bytes_in, connection.received.pending
            if connection.received.held:
                self._dispatch_own(connection)
            if not connection.holds:
                self._receive(connection)
            if before == (connection.bytes_in, connection.received.pending):
                return

    def _flush_timed(self, connection: ProcessorConnection) -> bool:
        began = self._clock.monotonic()
        try:
            return connection.flush()
        finally:
            now = self._clock.monotonic()
            if connection.on_flushed is not None:
                connection.on_flushed(now - began, now)

    # -- measuring (see `request_times.py`) -----------------------------------------------------------------------------

    def _note_measured(self, measured: list[Any]) -> None:
        """The step is over in which requests were measured, and their answers have left."""
        now = self._clock.monotonic()
        self.times.answered_at_once(measured, self._now, now)
        self._measured = None
        self._measure_from = now + len(measured) // 3 * GAP_S

    def _note_parked(self, connection: ProcessorConnection, request: Request) -> None:
        """A request was handled and is not answered, or not sent."""
        request.taken_at = self._measured[-1] if self._measured else self._began
        request.handled_at = self._clock.monotonic()
        if connection.holds & RESPONSE_UNSENT:
            self._note_answered(connection, request)

    def _note_answered(self, connection: ProcessorConnection, request: Request | None) -> None:
        """A request was answered that was parked, or handled by another thread, or whose answer is long."""
        assert request is not None
        now = self._clock.monotonic()
        # A handler that has answered may not have returned yet.
        taken, handled = request.taken_at or now, request.handled_at or now
        connection.kind = request.kind
        self.times.answered_later(request.kind, request.received_at, taken, handled, now, request.count)
        if self._traces is not None:
            self._traces.offer(request, self.number, taken, handled, now)
        if not connection.stalled_at:
            connection.stalled_at = now

    def _note_unstalled(self, connection: ProcessorConnection) -> None:
        stalled_at, connection.stalled_at = connection.stalled_at, 0.0
        if connection.kind:
            self.times.of(connection.kind).observe(SEND, self._clock.monotonic() - stalled_at)

    def _note_throttle(self, connection: ProcessorConnection, event: MuteEvent) -> None:
        now = self._clock.monotonic()
        if event is MuteEvent.THROTTLE_STARTED:
            self.stats.mutes[THROTTLED] += 1
            connection.throttled_at = now
        elif connection.kind:  # a stream has no times
            self.times.of(connection.kind).observe(THROTTLE, now - connection.throttled_at)

    # -- closing ------------------------------------------------------------------------------------------------------

    def _start_closing(self, connection: ProcessorConnection) -> None:
        """Take no further request, and disconnect once the queued bytes have been sent."""
        connection.holds |= CLOSING
        self._mark_dirty(connection)

    def _disconnect(self, connection: ProcessorConnection) -> None:
        if connection.closed:
            return
        connection.closed = True
        connection.holds |= CLOSING
        self._set_interest(connection, 0)
        connection.socket.close()
        self.connections.pop(connection, None)
        if connection.holds & HANDSHAKING:
            self.handshakes.forget(connection)
        connection.outgoing.clear()  # drops references to files
        connection.outgoing_bytes = connection.outgoing_files = 0
        request = connection.in_flight
        if request is not None:
            buffer = connection.received.abandon()
            if buffer is not None:
                self._lent[request] = buffer
                # `done` is read after `closed` was set; a handler sets `done` before it reads `closed`.
                if getattr(request, "done", True):
                    self.give_back(request)
            connection.in_flight = None  # breaks the reference cycle, which would wait for the garbage collector
        else:
            connection.received.release()
        if connection.held is not None:  # no handler will see it
            self.give_back(connection.held)
            connection.held = None
        self._disconnected.append(connection)
