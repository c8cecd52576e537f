"""Receiving: reading from sockets, cutting frames, and running their requests or handing them to the handlers.

``Receiving`` belongs to one processor, and only the processor's thread uses it. Two things differ from Kafka, both for speed and
neither visible on the wire:

- frames are handled while they lie in the receive buffer that all connections of the processor share, so reading and
  ``process_completed_receives`` go connection by connection;
- a connection is *lazily* muted: it stays registered for reading while its request is out, and only if it turns readable
  meanwhile is it taken out of the poller (a ``modify`` each way would cost more than most requests).

Tests: tests/network/test_processor.py, tests/network/test_request_memory.py.
"""

from collections.abc import Callable
from typing import Any

import attrs

from broker.log import get_logger
from broker.metrics.request_times import Measuring
from broker.network.connection import ProcessorConnection
from broker.network.connections import ConnectionTable, ProcessorStats, Turns
from broker.network.memory_pool import SMALL_BYTES, MemoryPool
from broker.network.mute import (
    CHANNEL_FULL,
    CLOSING,
    HANDSHAKING,
    MEMORY_SHORT,
    RELIEVED,
    RESPONSE_PENDING,
    RESPONSE_UNSENT,
    THROTTLED,
    UNWRITABLE,
)
from broker.network.request_channel import RequestChannel
from broker.network.sending import Sending
from broker.network.service import Handover, Outbox, Request, Service, Violations
from broker.network.waiters import ChannelWaiters, MemoryWaiters
from broker.runtime.net import WOULD_BLOCK
from broker.runtime.poller import READ
from broker.runtime.run_token import LARGE_BYTES
from broker.runtime.threads import Lock
from protocol.errors import ProtocolError

log = get_logger("network")

# Bytes of one read. All connections share this buffer; a frame that does not fit is moved to a buffer of its own.
_RECEIVE_BYTES = 256 * 1024
# A request for a handler that lies in the shared buffer must be copied. From this size (bytes) on the copy is in request memory.
# Smaller copies are not counted; there is at most one for each connection.
_COPY_BYTES = 16 * 1024
# The longest turn (s), for requests that are not the cheapest. It is not checked before the second request.
_TURN_S = 0.002
# Turns of a stream whose peer has closed, for what that has sent before. It sends little when it goes.
_LAST_TURNS = 64

# Between two requests these end a connection's turn. A stream that is held for another reason takes what it has read already.
_ENDS_TURN = RESPONSE_PENDING | THROTTLED | CLOSING
# Connections with these are not registered for reading.
_UNREGISTERED = MEMORY_SHORT | CLOSING


class Relieved(BaseException):
    """This thread does not work for its processor any more, and ends. Not an Exception: no seam may catch it."""


class Seat:
    """Who works for a processor. Each of its threads has a seat of its own."""

    __slots__ = ("lock", "relieved", "request")

    def __init__(self) -> None:
        self.lock = Lock()  # held by the thread, except while it handles ``request``
        self.lock.acquire()
        self.request: Request | None = None  # set by the thread; any thread reads it
        self.relieved = False  # under ``lock``

    def come_back(self) -> bool:
        """True if the thread still works for the processor: then it has the seat again."""
        self.lock.acquire()
        if self.relieved:
            self.lock.release()
            return False
        return True


@attrs.frozen
class Rest:
    """What is left of the bytes that a relieved thread was handling: ``view[start:end]``, after ``request``."""

    request: Request
    view: memoryview
    start: int
    end: int
    shared: bool  # ``view`` is the processor's receive buffer, not the connection's


class Receiving:
    def __init__(
        self,
        table: ConnectionTable,
        turns: Turns,
        measuring: Measuring,
        sending: Sending,
        stats: ProcessorStats,
        *,
        outbox: Outbox,
        channel: RequestChannel,
        memory: MemoryPool,
        monotonic: Callable[[], float],
        give_token: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        """``on_room`` is called from any thread: the channel or the pool has room again, so ``retry`` should be called."""
        self.channel_waiters = ChannelWaiters(channel, on_room, turns.run_later)
        self.memory_waiters = MemoryWaiters(on_room, turns.run_later, self._refuse_memory)
        self._table = table
        self._turns = turns
        self._measuring = measuring
        self._at_once = measuring.at_once
        self._sending = sending
        self._stats = stats
        self._outbox = outbox
        self._channel = channel
        self._memory = memory
        self._monotonic = monotonic
        self._give_token = give_token
        self._on_room = on_room
        self.seat: Seat | None = None  # the processor's
        self._view = memoryview(bytearray(_RECEIVE_BYTES))
        self._violations = Violations(log)

    # -- reading ------------------------------------------------------------------------------------------------------

    def receive(self, connection: ProcessorConnection) -> None:
        """Its socket is readable: read once, and dispatch every complete frame within its turn."""
        if connection.holds:
            self._mute(connection)
            return
        own, view = connection.received, self._view
        held = own.held
        try:
            if held:
                if connection.runnable:
                    return  # the bytes that are there come first: handling them may free memory
                if not own.make_room(connection.frame_size, self._on_room):
                    self._wait_for_memory(connection)
                    return
                if connection.frame_size > LARGE_BYTES:
                    self._give_token()
                got = connection.socket.recv_into(own.space(connection.frame_size))
            elif self._memory.exhausted:
                # Small requests are still served. Of a large one, no more is read than may be kept in any case.
                got = connection.socket.recv_into(view[:SMALL_BYTES])
            else:
                got = connection.socket.recv_into(view)
        except OSError:
            self._table.disconnect(connection)
            return
        except MemoryError as error:
            self._refuse_memory(connection, error)
            return
        if got <= 0:
            if got != WOULD_BLOCK:
                self._peer_finished(connection)
            return
        connection.last_active = self._turns.now
        self._stats.bytes_in += got
        connection.bytes_in += got
        if held:
            own.end += got
            self._dispatch_own(connection)
        else:
            consumed = self.dispatch(connection, view, 0, got, shared=True)
            if consumed < got and not connection.holds & CLOSING:
                try:
                    own.keep(view[consumed:got], self._on_room)
                except MemoryError as error:
                    self._refuse_memory(connection, error)
                    return
        if connection.socket.buffered and not connection.closed:
            self._read_again(connection)

    def _mute(self, connection: ProcessorConnection) -> None:
        """It is held, and readable: the lazy half of muting. This is also where a peer that disconnects while its request is
        handled is noticed."""
        if connection.holds & HANDSHAKING:
            self._table.handshakes.ready(connection)
            return
        try:
            finished = connection.socket.at_eof()
        except OSError:
            self._table.disconnect(connection)
            return
        if finished:
            self._peer_finished(connection)
        else:
            self._table.set_interest(connection, connection.interest & ~READ)

    def _wait_for_memory(self, connection: ProcessorConnection) -> None:
        self._stats.mutes[MEMORY_SHORT] += 1
        self.memory_waiters.add(connection)
        self._table.set_interest(connection, connection.interest & ~READ)

    def _refuse_memory(self, connection: ProcessorConnection, error: MemoryError) -> None:
        """Close a connection for whose bytes there is no memory."""
        log.warning("memory_exhausted", peer=connection.peer.host, error=str(error))
        self._table.disconnect(connection)

    def _read_again(self, connection: ProcessorConnection) -> None:
        """TLS: something has been received that the poller does not know of. Without interest in READ, the connection is resumed
        as soon as nothing holds it."""
        self._table.set_interest(connection, connection.interest & ~READ)
        self._turns.run_later(connection)

    def _peer_finished(self, connection: ProcessorConnection) -> None:
        """The peer has closed its sending side and may still read: answer every complete request in order, then close."""
        self._table.set_interest(connection, connection.interest & ~READ)
        if not connection.session.in_flight_max or connection.holds & CLOSING:
            self._sending.finish(connection)  # pushed bytes have no end that could be waited for
            return
        connection.finished = True
        if connection.in_flight is None:
            self.resume(connection)
            return
        # The peer may have gone altogether: a parked request of it must not wait for minutes.
        try:
            connection.service.stopping(connection)
        except Exception as error:  # the seam: as for a request that fails
            log.error("stop_failed", exc_info=error, peer=connection.peer.host)
            self._table.disconnect(connection)

    # -- going on -----------------------------------------------------------------------------------------------------

    def resume(self, connection: ProcessorConnection) -> None:
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
                self._table.set_interest(connection, connection.interest | READ)
        elif not connection.runnable:
            self._sending.finish(connection)  # every complete request is answered

    def _receive_buffered(self, connection: ProcessorConnection) -> None:
        self.receive(connection)
        # Also while its request is out, as for any connection: to notice that its peer hangs up.
        if not (connection.holds & _UNREGISTERED or connection.finished or connection.socket.buffered):
            self._table.set_interest(connection, connection.interest | READ)

    def established(self, connection: ProcessorConnection) -> None:
        """Its TLS handshake is done. Requests may have arrived with the last part of it, and the service may have pushed."""
        if connection.outgoing:
            self._sending.mark_dirty(connection)
        if connection.socket.buffered:
            self._read_again(connection)

    def retry(self) -> None:
        """The channel or the pool may have room again."""
        self.channel_waiters.retry()
        self.memory_waiters.retry()

    def wait_again(self, connection: ProcessorConnection) -> None:
        """Let a connection wait here for the channel or for memory that has waited on another processor."""
        if connection.held is not None:
            self.channel_waiters.join(connection, connection.held)
        if connection.holds & MEMORY_SHORT:
            self.memory_waiters.connections.append(connection)
        self._on_room()  # the other processor may have been told

    def take_rest(self, connection: ProcessorConnection) -> None:
        """Handle the bytes that the peer of a stream sent before it left: it may have said goodbye, and closed while more was on
        its way to it, which resets the connection."""
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
                self.receive(connection)
            if before == (connection.bytes_in, connection.received.pending):
                return

    # -- frames and requests ------------------------------------------------------------------------------------------

    def _dispatch_own(self, connection: ProcessorConnection) -> None:
        own = connection.received
        if not own.pending:
            own.settle()  # the last frame was the one that a handler was reading
            return
        if connection.frame_size > own.pending:
            return
        start = self.dispatch(connection, own.view, own.start, own.end, shared=False)
        if connection.closed:
            return
        if connection.in_flight is None and connection.held is None:
            if start > own.start:
                own.consumed(start)
        else:
            own.start = start  # a handler reads the bytes before it: keep them until the answer comes

    def dispatch(self, connection: ProcessorConnection, view: memoryview, start: int, end: int, shared: bool) -> int:
        """Take whole frames out of ``view[start:end]`` until one is out with a handler or the turn is over. Returns where."""
        session, service, turns, measuring = connection.session, connection.service, self._turns, self._measuring
        sequential = session.in_flight_max == 1
        high_water = self._sending.high_water_bytes
        taken = 0  # size of the last frame
        turn_ends = 0.0
        at_once, measured = self._at_once, measuring.measured
        turns.dispatching = connection
        try:
            for _ in turns.length:
                if start >= end or connection.holds & _ENDS_TURN:
                    break
                if connection.outgoing_bytes > high_water:
                    self._sending.flush(connection)
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
                request.received_at = turns.now
                start += size
                count = request.count
                connection.requests += count
                self._stats.requests += count
                if sequential:
                    connection.in_flight = request
                    connection.holds |= RESPONSE_PENDING
                if size > LARGE_BYTES:
                    self._give_token()
                prepared = service.inline(request)
                if type(prepared) is Handover:
                    start = self._to_handler(request, prepared, view, start, end, shared)
                    if connection.held is not None:
                        break
                    continue
                if request.may_wait and self.seat is not None:
                    if not self._handle_aside(service, request, prepared, self.seat):
                        rest = Rest(request, view, start, end, shared)
                        connection.processor.submit(connection.processor.go_on, connection, rest)
                        raise Relieved
                else:
                    service.handle(request, self._outbox, prepared)
                if sequential:
                    if connection.in_flight is request:
                        measuring.parked(request)
                        if connection.holds & RESPONSE_UNSENT:
                            measuring.answered(connection, request)
                    else:
                        kind = connection.kind = request.kind
                        at_once[kind] += count
                        if measured is not None:
                            measuring.handled(request, measured)
                if start < end:  # only a peer that has sent several requests at once can exceed its turn
                    now = self._monotonic()
                    if not turn_ends:
                        turn_ends = now + _TURN_S
                    elif now >= turn_ends:
                        turns.run_later(connection)
                        break
            else:
                turns.run_later(connection)
        except Exception as error:
            self._failed(connection, error)
        # Not in a `finally`: a thread that was relieved leaves the processor alone.
        turns.dispatching = None
        if taken and not shared:
            connection.received.last_frame = taken
        return start

    def _handle_aside(self, service: Service, request: Request, prepared: Any, seat: Seat) -> bool:
        """Handle a request that may wait for a disk. False if another thread has gone on here meanwhile."""
        failure = None
        seat.request = request
        seat.lock.release()
        try:
            service.handle(request, self._outbox, prepared)
        except Exception as error:
            failure = error
        if seat.come_back():
            seat.request = None
            if failure is not None:
                raise failure
            return True
        if failure is not None:  # the seam: as for a request that fails on a handler
            log.error("request_failed", exc_info=failure, peer=request.connection.peer.host)
            self._outbox.close(request)
        request.done = True
        return False

    def relieve(self, request: Request) -> None:
        """Go on without the request that this thread's predecessor is handling. On no thread of the processor."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        self._turns.dispatching = None
        self._view = memoryview(bytearray(_RECEIVE_BYTES))  # that thread has the other
        connection.holds |= RELIEVED
        request.done = False
        self._measuring.parked(request)

    def go_on(self, connection: ProcessorConnection, rest: Rest) -> None:
        """The predecessor has handled its request. A verb of `Mailbox`."""
        if connection.closed:
            self._table.give_back(rest.request)
            return
        connection.holds &= ~RELIEVED
        own = connection.received
        if rest.shared:
            if rest.start < rest.end:
                try:
                    own.keep(rest.view[rest.start : rest.end], self._on_room)
                except MemoryError as error:
                    self._refuse_memory(connection, error)
                    return
        else:
            own.last_frame = len(rest.request.frame)
            if connection.in_flight is None:
                own.consumed(rest.start)
            else:
                own.start = rest.start
        self._turns.run_later(connection)

    def _to_handler(
        self, request: Request, handover: Handover, view: memoryview, start: int, end: int, shared: bool
    ) -> int:
        """Offer a request to the handlers whose frame ends at ``start``. Returns where what is left of ``view`` begins: at
        ``end`` if that was moved with the frame. The connection has ``held`` if the request has to wait."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        sequential = connection.session.in_flight_max == 1
        size = len(request.frame)
        self._stats.handed_over += 1
        request.taken_at = request.handled_at = 0.0
        if shared and sequential and size >= _COPY_BYTES:
            own = connection.received
            own.keep(view[start - size : end], self._on_room)
            own.start = size
            own.last_frame = size
            request.frame = own.view[:size]
            start = end
        elif not sequential:  # several requests may be in flight: each frame gets memory of its own
            self._table.lend_copy(request, self._on_room)
        elif shared:  # the bytes are overwritten by the next read
            request.frame = memoryview(bytearray(request.frame))
        request.done = False
        request.lane, request.prepared = handover.lane, handover.prepared
        self._offer(connection, request)
        return start

    def hand_over(self, request: Request, handover: Handover) -> None:
        """Give a parked request to a handler. A verb of `Mailbox`."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if connection.closed or connection.in_flight is not request:
            return
        request.lane, request.prepared = handover.lane, handover.prepared
        request.done = False
        if connection is self._turns.dispatching or not connection.session.in_flight_max:
            request.taken_at = request.handled_at = 0.0
        self._offer(connection, request)

    def _offer(self, connection: ProcessorConnection, request: Request) -> None:
        """Give a request to the handlers, now or as soon as they take it."""
        if not self._channel.offer((connection.service, request), self._on_room):
            self._stats.mutes[CHANNEL_FULL] += 1
            self.channel_waiters.add(connection, request)

    def _failed(self, connection: ProcessorConnection, error: Exception) -> None:
        """The peer or the broker is at fault: close the connection after the responses to earlier requests."""
        if isinstance(error, ProtocolError):
            self._stats.protocol_errors += 1
            self._violations.report(connection, str(error), self._turns.now)
        else:  # the seam: one connection's bytes never end the processor
            log.error("request_failed", exc_info=error, peer=connection.peer.host, listener=connection.peer.listener)
        self._sending.start_closing(connection)
