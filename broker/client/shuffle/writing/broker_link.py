"""A writer's connection to its broker: opens the partition, sends pushes as credit allows, and connects again.

All methods run on the I/O thread, except ``start``, ``schedule_send`` and ``part``, which the user's threads call. The lock of
``SharedState`` guards the state that they share. ``TABLE`` has the states of the connection.

    event                                    what the link does
    connected                                sends OpenPartition
    PartitionOpened                          sends the kept pushes that the broker does not have, then new ones
    connection lost, opened before           connects again after a short delay, until ``reconnect_timeout`` is over
    connection lost, never opened            the writer fails
    the writer can only wait for an          sends OpenPartition again, on the same connection; PartitionOpened states what
    acknowledgement, and none comes          the broker has
    no message for ``answer_timeout``        handles it as a lost connection
    while an answer is expected

``Reconnecting`` decides for how long and how often a writer tries to connect again. Pure; used on the I/O thread only.
The time counts from the first loss until the connection is proven: by an acknowledgement, or by PartitionOpened if
nothing is left to send. A connection that opens but breaks again before that does not restart the time.

The states are guarded by the writer's lock. In OPENING, the writer has sent OpenPartition and the broker has not
answered. From OPEN to PARTED, the broker's handle for the partition is valid; the writer sends pushes only in OPEN. The
parting frame is the last frame, FailPartition or CloseWriter; in PARTED, the kernel has taken it. In VOID, all readers
have left and the writer sends nothing more. At OPEN_AGAIN, the writer sends OpenPartition again, because it waits for
an acknowledgement that does not come. PartitionOpened states what was received.

LOST is any end of the connection, by either side. Whether the writer connects again depends on its state (``resend_window.py``).

Tests: tests/client/shuffle/writing/test_shuffle_writer.py,
tests/client/shuffle/test_silent_broker.py.
"""

from collections.abc import Callable
from enum import IntEnum

import attrs

from broker.client.shuffle.connection import Connection
from broker.client.shuffle.errors import (
    ConnectionFailedError,
    LocalTransportError,
    PartitionLostError,
    RemoteTransportError,
    ShuffleError,
    TransportError,
    writer_refused,
)
from broker.client.shuffle.io_loop import IoLoop, Liveness, Timer, Verdict
from broker.client.shuffle.names import Address
from broker.client.shuffle.security import Tls
from broker.client.shuffle.writing.resend_window import SharedState, WriterEvent, WriterState
from broker.runtime.disk import Buffer
from broker.transitions import Transitions
from protocol.errors import ProtocolError
from protocol.shuffle.buffer_response import ServerMessage
from protocol.shuffle.ids import Generation, ResultPartitionID
from protocol.shuffle.messages import ErrorResponse
from protocol.shuffle.push_row import push_frames
from protocol.shuffle.writer_frames import (
    AllRecordsProcessed,
    BufferSizeHint,
    PartitionFinished,
    PartitionList,
    PartitionOpened,
    PartitionType,
    PushAcknowledged,
    WriterCredit,
    WriterError,
    WriterErrorCode,
    WriterTaskEvent,
    encode_finish_partition,
    encode_list_partitions,
    encode_open_partition,
)

_DELAY_FIRST_S = 0.05
_DELAY_MAX_S = 2.0


class Reconnecting:
    """Times are monotonic, in s. The writer gives up after ``timeout_s`` without a proven connection; 0: at the first loss."""

    __slots__ = ("_delay_s", "lost_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.lost_at: float | None = None  # when the unproven time began; None if the connection is proven
        self._delay_s = _DELAY_FIRST_S

    def lost(self, now: float) -> float | None:
        """The connection was lost. Returns the delay (s) before the next attempt, or None if the time is over."""
        if self.lost_at is None:
            self.lost_at = now
        if now - self.lost_at >= self.timeout_s:
            return None
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, _DELAY_MAX_S)
        return delay_s

    def proven(self) -> None:
        """The connection is proven to work."""
        self.lost_at = None
        self._delay_s = _DELAY_FIRST_S

    def held_back(self) -> None:
        """The broker grants no credit while it has no room. However long that lasts, the connection does not count as
        lost."""
        self.lost_at = None

    def limit(self, timeout_s: float, now: float) -> float:
        """Return ``timeout_s``, limited to the time left before the writer gives up."""
        if self.lost_at is None:
            return timeout_s
        return max(0.0, min(timeout_s, self.lost_at + self.timeout_s - now))


class LinkState(IntEnum):
    """The order matters: from OPEN to PARTED, the broker's handle is valid."""

    UNCONNECTED = 0
    CONNECTING = 1
    OPENING = 2
    VOID = 3
    OPEN = 4
    FINISH_SENT = 5
    PARTING = 6
    PARTING_SENT = 7
    PARTED = 8


class LinkEvent(IntEnum):
    CONNECT = 0
    CONNECTED = 1
    OPENED = 2
    OPEN_AGAIN = 3
    SEND_FINISH = 4
    PART = 5
    SEND_PARTING = 6
    DRAINED = 7
    READERS_LEFT = 8
    LOST = 9


TABLE = Transitions(
    LinkState,
    LinkEvent,
    """
    UNCONNECTED   CONNECT       CONNECTING
    CONNECTING    CONNECTED     OPENING
    CONNECTING    LOST          UNCONNECTED
    OPENING       OPENED        OPEN
    OPENING       READERS_LEFT  VOID
    OPENING       LOST          UNCONNECTED
    OPEN          OPEN_AGAIN    OPENING
    OPEN          SEND_FINISH   FINISH_SENT
    OPEN          PART          PARTING
    OPEN          READERS_LEFT  VOID
    OPEN          LOST          UNCONNECTED
    FINISH_SENT   PART          PARTING
    FINISH_SENT   READERS_LEFT  VOID
    FINISH_SENT   LOST          UNCONNECTED
    PARTING       SEND_PARTING  PARTING_SENT
    PARTING       READERS_LEFT  VOID
    PARTING       LOST          UNCONNECTED
    PARTING_SENT  DRAINED       PARTED
    PARTING_SENT  READERS_LEFT  VOID
    PARTING_SENT  LOST          UNCONNECTED
    PARTED        READERS_LEFT  VOID
    PARTED        LOST          UNCONNECTED
    VOID          LOST          UNCONNECTED
    """,
)
next_state = TABLE.next


# How much the connection gets in advance: enough to send without a pause, and little enough that a loss costs little.
_AHEAD_BYTES = 2 * 1024 * 1024
_PUSHES_AT_A_TIME = 256
# Parts smaller than this on average are copied together, because a further part in the system call costs more than the
# copy.
_JOIN_BYTES = 2048
# How often the link checks whether the broker still answers, and whether to open the partition again.
_CHECK_S = 1.0

# The messages that are passed to the user's callbacks.
Notice = WriterTaskEvent | BufferSizeHint | AllRecordsProcessed


@attrs.frozen
class Opening:
    """The fields of OpenPartition that describe the writer and its partition."""

    writer_id: bytes
    incarnation: int  # distinguishes this writer from another with the same id
    partition: ResultPartitionID
    subpartitions: int
    type: PartitionType
    ttl_ms: int
    owner: str


@attrs.frozen
class Timeouts:
    """The timeouts of ``ShuffleWriter``, in s."""

    connect_s: float
    reconnect_s: float
    answer_s: float


class BrokerLink:
    """Sends the pushes of one writer. ``on_notice`` is called on the I/O thread with the lock held."""

    def __init__(
        self,
        shared: SharedState,
        address: Address,
        generation: Generation,
        buffer_size: int,
        timeouts: Timeouts,
        on_notice: Callable[[Notice], None],
        tls: Tls | None = None,
    ) -> None:
        self.state = LinkState.UNCONNECTED
        self.send_scheduled = False  # the I/O thread has a pending call of ``_send_scheduled``
        self.reconnecting = Reconnecting(timeouts.reconnect_s)
        self._shared = shared
        self._window = shared.window
        self._address = address
        self._name = f"{address[0]}:{address[1]}"
        self._generation, self._buffer_size = generation, buffer_size
        self._timeouts = timeouts
        self._on_notice = on_notice
        self._tls = tls
        self._loop: IoLoop | None = None
        self._opening: Opening | None = None
        self._openings_sent = 0
        self._connection: Connection | None = None
        self._handle = -1  # the broker's number of the partition on this connection; valid from OPEN to PARTED
        self._parting = b""  # the frame to send in PARTING
        self._liveness: Liveness | None = None  # of the current connection
        self._check_timer: Timer | None = None
        self._was_unanswered = False  # at the last check, and no acknowledgement has come since

    # -- from any thread, with the lock held ----------------------------------------------------------------------

    def schedule_send(self) -> None:
        """Make the I/O thread send the unsent pushes. Has no effect while ``send_scheduled``."""
        if not self.send_scheduled and self._loop is not None:
            self.send_scheduled = True
            self._loop.call(self._send_scheduled)

    def part(self, parting: Callable[[int], bytes]) -> bool:
        """Create the last frame from the handle, and send it in the next send. Returns False if the broker cannot use it."""
        if self.state is not LinkState.OPEN and self.state is not LinkState.FINISH_SENT:
            return False
        self._advance(LinkEvent.PART)
        self._parting = parting(self._handle)
        return True

    @property
    def is_parting(self) -> bool:
        """Whether the kernel has not yet taken the last frame."""
        return self.state is LinkState.PARTING or self.state is LinkState.PARTING_SENT

    def _advance(self, event: LinkEvent) -> None:
        self.state = next_state(self.state, event)
        if not LinkState.OPEN <= self.state <= LinkState.PARTED:
            self._handle = -1

    # -- the connection, on the I/O thread ------------------------------------------------------------------------

    def start(self, loop: IoLoop, opening: Opening) -> None:
        """Begin to connect. The user's thread calls this once, before any other method."""
        self._loop, self._opening = loop, opening
        loop.call(self._connect)

    def _connect(self) -> None:
        loop, shared = self._loop, self._shared
        assert loop is not None
        with shared.changed:
            if shared.state >= WriterState.CLOSED or self.state is not LinkState.UNCONNECTED:
                return
            self._advance(LinkEvent.CONNECT)
        timeout = self.reconnecting.limit(self._timeouts.connect_s, loop.now())
        self._connection = Connection(
            loop, self._address, self._generation, self._buffer_size, self, timeout, self._tls
        )
        self._connection.open()

    def connected(self) -> None:
        loop = self._loop
        assert loop is not None
        self._liveness = Liveness(self.reconnecting.limit(self._timeouts.answer_s, loop.now()), loop.now())
        self._was_unanswered = False
        with self._shared.changed:
            self._advance(LinkEvent.CONNECTED)
            self._ask_to_open()
        self._check_later()

    def _ask_to_open(self) -> None:
        connection, opening = self._connection, self._opening
        assert connection is not None
        assert opening is not None
        self._openings_sent += 1
        frame = encode_open_partition(
            opening.writer_id,
            opening.partition,
            opening.subpartitions,
            opening.type,
            opening.ttl_ms,
            opening.owner,
            opening.incarnation,
            self._window.was_opened,
            self._openings_sent,
        )
        connection.send([frame])

    def closed(self, error: TransportError) -> None:
        loop, shared = self._loop, self._shared
        assert loop is not None
        self._connection = None
        self._stop_checking()
        with shared.changed:
            self._advance(LinkEvent.LOST)
            self._window.disconnected()
            if shared.state >= WriterState.DISCARDING:  # the broker needs no more messages
                shared.changed.notify_all()
                return
            now = loop.now()
            delay_s = self.reconnecting.lost(now)
            may_return = not isinstance(error, LocalTransportError) and loop.crashed is None
            if not self._window.was_opened or not may_return or delay_s is None:
                shared.fail(error)
                return
            shared.wake_waiting()
        loop.at(now + delay_s, self._connect)

    def disconnect(self) -> None:
        """Close the connection, because the writer was closed."""
        self._stop_checking()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with self._shared.changed:
            if self.state is not LinkState.UNCONNECTED:
                self._advance(LinkEvent.LOST)
            self._shared.changed.notify_all()

    def abandon(self, error: Exception) -> None:
        """The I/O loop calls this when a method of the link has raised ``error``."""
        with self._shared.changed:
            self._shared.fail(error)

    # -- whether the broker answers -------------------------------------------------------------------------------

    def _check_later(self) -> None:
        loop, liveness = self._loop, self._liveness
        assert loop is not None
        assert liveness is not None
        self._check_timer = loop.at(loop.now() + min(_CHECK_S, liveness.silence_max_s / 4), self._check)

    def _stop_checking(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None

    def _check(self) -> None:
        """Check the connection. Called every second while there is one, or more often if ``answer_timeout`` is short."""
        loop, connection, liveness, shared = self._loop, self._connection, self._liveness, self._shared
        assert loop is not None
        if connection is None or liveness is None:
            return
        with shared.changed:
            verdict = liveness.look(loop.now(), self._expects_an_answer())
            if verdict is Verdict.ASK:
                assert self._opening is not None
                # Any request with a short answer will do.
                connection.send([encode_list_partitions(0, self._opening.partition.hex())])
            unanswered = self._window.unanswered and shared.state is WriterState.WRITING
            if unanswered and self._was_unanswered:
                self._open_again()
            else:
                self._was_unanswered = unanswered
        if verdict is not Verdict.DEAD:
            self._check_later()
            return
        silence = f"{self._name} has not answered for {liveness.silence_max_s:g} s"
        if self._window.was_opened:
            connection.close(RemoteTransportError(silence, self._name))
        else:
            connection.close(ConnectionFailedError(f"no connection to {self._name}: {silence}", self._name))

    def _expects_an_answer(self) -> bool:
        """Whether the broker owes an answer. Called with the lock held."""
        shared = self._shared
        if shared.state >= WriterState.DISCARDING:
            return False
        return (
            self._handle < 0
            or shared.state is not WriterState.WRITING
            or shared.waiting_threads > 0
            or not self._window.all_acknowledged
        )

    def _open_again(self) -> None:
        """Send OpenPartition again. The answer replaces an acknowledgement. Called with the lock held."""
        self._was_unanswered = False
        self._advance(LinkEvent.OPEN_AGAIN)
        self._window.disconnected()
        self._ask_to_open()

    # -- receiving ------------------------------------------------------------------------------------------------

    def received(self, messages: list[ServerMessage]) -> None:
        assert self._loop is not None
        assert self._liveness is not None
        self._liveness.heard(self._loop.now())
        shared = self._shared
        with shared.changed:
            for message in messages:
                self._on_message(message)
            # Called directly, so that pushes with new credit are sent at the end of the same step of the loop.
            self._send()
            if shared.waiting_threads:
                shared.changed.notify_all()

    def _on_message(self, message: ServerMessage) -> None:
        match message:
            case WriterCredit(handle, credit):
                if handle == self._handle:
                    self._window.granted(credit)
            case PushAcknowledged(handle, next_sequences):
                if handle == self._handle:
                    for subpartition, sequence in next_sequences:
                        self._window.acknowledged(subpartition, sequence)
                    self._was_unanswered = False
                    self.reconnecting.proven()
            case PartitionOpened(writer_id, handle, credit, next_sequences):
                if self._opening is not None and writer_id == self._opening.writer_id:
                    self._on_opened(handle, credit, next_sequences)
            case PartitionFinished(handle):
                if handle == self._handle and self._shared.state is WriterState.COMMITTING:
                    self._shared.advance(WriterEvent.PARTITION_FINISHED)
            case WriterError(writer_id, handle, code, text):
                if (self._opening is not None and writer_id == self._opening.writer_id) or handle == self._handle:
                    self._on_refused(code, text)
            case WriterTaskEvent() | BufferSizeHint() | AllRecordsProcessed():
                self._on_notice(message)
            case ErrorResponse(class_name, text, _):
                self._shared.fail(ShuffleError(f"error at {self._name}: {class_name}: {text}"))
            case PartitionList():
                pass  # the answer to a check
            case _:
                raise ProtocolError(f"a writer cannot handle the message {type(message).__name__}")

    def _on_opened(self, handle: int, credit: int, next_sequences: tuple[int, ...]) -> None:
        if self.state is not LinkState.OPENING:
            raise ProtocolError("a PartitionOpened that was not requested")
        window = self._window
        try:
            window.opened(credit, next_sequences)
        except PartitionLostError as error:
            self._shared.fail(error)
            return
        self._advance(LinkEvent.OPENED)
        self._handle = handle
        # If anything is left to send, only its acknowledgement proves the connection.
        if window.all_acknowledged and not self._shared.is_finishing:
            self.reconnecting.proven()
        elif not credit and not window.all_sent:
            self.reconnecting.held_back()

    def _on_refused(self, code: WriterErrorCode, text: str) -> None:
        shared = self._shared
        if code is WriterErrorCode.FINISHED_ALREADY and shared.state is WriterState.COMMITTING:
            # The answer to FinishPartition was lost with its connection.
            shared.advance(WriterEvent.PARTITION_FINISHED)
        elif code is WriterErrorCode.READERS_GONE:
            shared.readers_left = True
            if WriterState.WRITING <= shared.state < WriterState.DISCARDING:
                shared.advance(WriterEvent.READERS_LEFT)
            if self.state is not LinkState.VOID:
                self._advance(LinkEvent.READERS_LEFT)
            self._window.forget()
            shared.changed.notify_all()
        else:
            shared.fail(writer_refused(code, text))

    # -- sending --------------------------------------------------------------------------------------------------

    def _send_scheduled(self) -> None:
        with self._shared.changed:
            self.send_scheduled = False
            self._send()

    def _send(self) -> None:
        """Give the connection the pushes that have credit. Called with the lock held."""
        connection = self._connection
        handle = self._handle
        if connection is None or handle < 0 or not connection.is_connected:
            return
        if self.state >= LinkState.PARTING:
            if self.state is LinkState.PARTING:
                self._advance(LinkEvent.SEND_PARTING)
                connection.send([self._parting])
            return
        shared = self._shared
        if shared.error is not None:
            return
        window = self._window
        while connection.outgoing_bytes < _AHEAD_BYTES:
            taken = window.take(_PUSHES_AT_A_TIME)
            if not taken:
                break
            parts: list[Buffer] = []
            for run in taken:
                parts += push_frames(handle, *run)
            if sum(map(len, parts)) < len(parts) * _JOIN_BYTES:
                parts = [b"".join(parts)]
            connection.send(parts)
        if shared.is_finishing and self.state is LinkState.OPEN and window.all_sent:
            self._advance(LinkEvent.SEND_FINISH)
            shared.advance(WriterEvent.FINISH_SENT)
            connection.send([encode_finish_partition(handle)])

    def drained(self) -> None:
        with self._shared.changed:
            if self.state is LinkState.PARTING_SENT:
                self._advance(LinkEvent.DRAINED)
                self._shared.changed.notify_all()
            else:
                self._send()
