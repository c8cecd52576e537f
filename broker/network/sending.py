"""Answers on their way to the socket: how they are queued, sent, and held back by a peer that does not read.

A service answers through ``ProcessorOutbox`` from any thread. ``Sending`` belongs to one processor and does what the outbox asks
for; only the processor's thread uses it.

Tests: tests/network/test_processor.py, tests/network/test_sending_outbox.py.
"""

from collections.abc import Callable, Sequence

from broker.log import get_logger
from broker.metrics.request_times import Measuring
from broker.network.connection import ProcessorConnection
from broker.network.connections import AFTER_RESPONSE, ConnectionTable, ProcessorStats, Turns
from broker.network.expiry import Expiry
from broker.network.mute import CLOSING, RESPONSE_UNSENT, UNWRITABLE, MuteEvent
from broker.network.service import Connection, Handover, Part, Request
from broker.runtime.poller import READ, WRITE
from broker.runtime.run_token import LARGE_BYTES

log = get_logger("network")


class ProcessorOutbox:
    """The ``Outbox`` of every service. On the connection's own processor the answer takes effect at once."""

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        processor = request.connection.processor
        processor.submit(processor.send, request, parts)

    def no_op(self, request: Request) -> None:
        processor = request.connection.processor
        processor.submit(processor.no_op, request, None)

    def close(self, request: Request) -> None:
        processor = request.connection.processor
        processor.submit(processor.close_connection, request, None)

    def hand_over(self, request: Request, handover: Handover) -> None:
        processor = request.connection.processor
        processor.submit(processor.hand_over, request, handover)

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        processor = connection.processor
        processor.submit(processor.push, connection, parts)

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        processor = connection.processor
        processor.submit(processor.call, connection, work)

    def start_throttling(self, connection: Connection) -> None:
        processor = connection.processor
        processor.submit(processor.throttle, connection, MuteEvent.THROTTLE_STARTED)

    def end_throttling(self, connection: Connection) -> None:
        processor = connection.processor
        processor.submit(processor.throttle, connection, MuteEvent.THROTTLE_ENDED)


class Sending:
    """``dirty``: connections with bytes to send. ``high_water_bytes``: what a connection whose requests are answered may
    have queued before its next request is put off; the processor lowers it while all connections together have too much."""

    def __init__(
        self,
        table: ConnectionTable,
        turns: Turns,
        measuring: Measuring,
        expiry: Expiry,
        stats: ProcessorStats,
        *,
        high_water_bytes: int,
        low_water_bytes: int,
        monotonic: Callable[[], float],
        give_token: Callable[[], None],
        take_rest: Callable[[ProcessorConnection], None],
    ) -> None:
        """``take_rest``: handles the bytes that the peer of a stream sent before it left."""
        self.dirty: list[ProcessorConnection] = []
        self.high_water_bytes = high_water_bytes
        self._usual_high_water_bytes = high_water_bytes
        self._low_water_bytes = low_water_bytes
        self._table = table
        self._turns = turns
        self._measuring = measuring
        self._expiry = expiry
        self._stats = stats
        self._monotonic = monotonic
        self._give_token = give_token
        self._take_rest = take_rest

    # -- verbs of `Mailbox` -------------------------------------------------------------------------------------------
    # A service sees a request's connection as a `Connection`. Here it is the one that `Receiving.dispatch` put into the request.

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        """Queue a response, and unmute the connection once the response is below the high-water mark."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if connection.closed:
            return
        connection.enqueue(parts)
        if not connection.dirty:  # `mark_dirty` without the call: every request comes here
            connection.dirty = True
            self.dirty.append(connection)
        if connection.in_flight is request:
            if connection.outgoing_bytes <= self.high_water_bytes:
                if connection is self._turns.dispatching:  # `answered` without the call: its turn goes on by itself
                    connection.in_flight = None
                    connection.holds &= AFTER_RESPONSE
                else:
                    self._turns.answered(connection)
            else:
                connection.holds |= RESPONSE_UNSENT
                self._stats.mutes[RESPONSE_UNSENT] += 1
                if connection is not self._turns.dispatching:
                    self._measuring.answered(connection, request)
        else:
            assert connection.session.in_flight_max == 0, "a request was answered twice"

    def no_op(self, request: Request, _: None = None) -> None:
        """No response is due: unmute."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if not connection.closed and connection.in_flight is request:
            self._turns.answered(connection)

    def close_connection(self, request: Request, _: None = None) -> None:
        """Close once the bytes queued before have been sent."""
        connection: ProcessorConnection = request.connection  # type: ignore[assignment]
        if not connection.closed:
            self.start_closing(connection)

    def push(self, connection: ProcessorConnection, parts: Sequence[Part]) -> None:
        """Queue bytes that answer no request."""
        if connection.closed:
            return
        connection.enqueue(parts)
        self.mark_dirty(connection)

    def call(self, connection: ProcessorConnection, work: Callable[[], None]) -> None:
        """Run a service's own work on this connection."""
        if not connection.closed:
            work()

    # -- sending ------------------------------------------------------------------------------------------------------

    def mark_dirty(self, connection: ProcessorConnection) -> None:
        """Flush it at the end of this step, or in the next one."""
        if not connection.dirty:
            connection.dirty = True
            self.dirty.append(connection)

    def flush_dirty(self) -> None:
        # One pass: a service that streams has more to send as soon as bytes have left, and other connections need their turn.
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.dirty = False
            if not connection.closed:
                self.flush(connection)

    def flush(self, connection: ProcessorConnection) -> None:
        """Send what the socket takes, and unmute the connection if that is enough."""
        before = connection.outgoing_bytes
        if before > LARGE_BYTES:
            self._give_token()
        try:
            done = connection.flush() if connection.on_flushed is None else self._flush_timed(connection)
        except Exception as error:
            self._failed(connection, error)
            return
        left = connection.outgoing_bytes
        if left != before:
            self._stats.bytes_out += before - left
            connection.bytes_out += before - left
            connection.last_active = self._turns.now
        if done:
            if connection.holds & CLOSING:
                self._table.disconnect(connection)
                return
            if connection.interest & WRITE:
                self._table.set_interest(connection, connection.interest & ~WRITE)
            if connection.stalled_at:
                self._measuring.sent(connection)
            if connection.holds & RESPONSE_UNSENT:
                self._turns.answered(connection)
            if connection.holds & UNWRITABLE:
                self._drained(connection)
        else:
            self._table.set_interest(connection, connection.interest | WRITE)
            self._expiry.note_unread(connection)
            if not connection.stalled_at:
                connection.stalled_at = self._turns.now
            high_water = self.high_water_bytes if connection.session.in_flight_max else self._usual_high_water_bytes
            if not connection.holds & UNWRITABLE:
                if left > high_water:
                    connection.holds |= UNWRITABLE
                    self._stats.mutes[UNWRITABLE] += 1
            elif left <= min(self._low_water_bytes, high_water):
                self._drained(connection)

    def forget_all(self) -> None:
        """The connections have moved to other processors, and their flags tell these."""
        self.dirty.clear()

    def _drained(self, connection: ProcessorConnection) -> None:
        """Note that the peer reads again: the queued bytes have come below the low-water mark."""
        connection.holds &= ~UNWRITABLE
        self._turns.run_later(connection)
        try:
            connection.service.writable(connection)
        except Exception as error:  # the seam: as for a request that fails
            log.error("resumption_failed", exc_info=error, peer=connection.peer.host)
            self._table.disconnect(connection)

    def _failed(self, connection: ProcessorConnection, error: Exception) -> None:
        """Bytes could not be sent."""
        if not isinstance(error, OSError):  # the seam: a service has queued an object that is not bytes
            log.error("send_failed", exc_info=error, peer=connection.peer.host)
        else:
            log.debug("send_failed", peer=connection.peer.host, error=str(error))
            if isinstance(error, ConnectionError) and not connection.session.in_flight_max:
                if (
                    connection is self._turns.dispatching
                ):  # its received bytes are handled first; then this is tried again
                    self.mark_dirty(connection)
                    return
                self._take_rest(connection)
        self._table.disconnect(connection)

    def _flush_timed(self, connection: ProcessorConnection) -> bool:
        began = self._monotonic()
        try:
            return connection.flush()
        finally:
            now = self._monotonic()
            if connection.on_flushed is not None:
                connection.on_flushed(now - began, now)

    # -- closing ------------------------------------------------------------------------------------------------------

    def start_closing(self, connection: ProcessorConnection) -> None:
        """Take no further request, and disconnect once the queued bytes have been sent."""
        connection.holds |= CLOSING
        self.mark_dirty(connection)

    def finish(self, connection: ProcessorConnection) -> None:
        """Close as soon as the queued bytes have been sent; the peer sends no more."""
        if connection.outgoing:
            self.start_closing(connection)
            self._table.set_interest(connection, connection.interest & ~READ)
        else:
            self._table.disconnect(connection)
