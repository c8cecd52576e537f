"""The shuffle protocol as a ``Service`` of the reactor: sessions, and the handling of each message.

All handling except long lists is inline on the connection's processor, because a message takes a few decisions over tables in
memory; the spiller's thread writes the files. Connections are never muted for requests (``in_flight_max`` 0): the protocol's
credit is the flow control.

Tests: tests/shuffle/test_reading.py, tests/shuffle/test_writing.py, tests/shuffle/test_bad_frames.py, tests/shuffle/test_many.py.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs

from broker.log import EventLimit, get_logger
from broker.network.quota import DeliveryQuota, Throttling
from broker.network.service import Connection, Handover, Outbox, Peer, Request, Violations
from broker.network.work import ADMIN
from broker.runtime.clock import Clock
from broker.security.acl import Authorizer
from broker.security.client_quotas import ClientQuotas, Kind
from broker.shuffle.deadlines import WaitingReader
from broker.shuffle.faulting import Faulting, Step
from broker.shuffle.partition.budget import CURSOR_BYTES, READER_BYTES, NoRoom
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.partitions import Partitions
from broker.shuffle.rights import NOT_AUTHORIZED, READ, Rights, rights_of
from broker.shuffle.serving.request_queue import Receiver, RequestQueue
from broker.shuffle.serving.view import Credit, PartitionReleased, View
from broker.shuffle.serving.writers import Writers, WriterSettings
from broker.shuffle.spill.spiller import Spiller
from protocol.errors import ProtocolError
from protocol.shuffle import messages, writer_frames
from protocol.shuffle.errors import (
    ILLEGAL_ARGUMENT_EXCEPTION,
    IO_EXCEPTION,
    encode_error,
    partition_not_found,
)
from protocol.shuffle.frame import FIRST_WRITER_ID, frame_size
from protocol.shuffle.ids import Generation, ResultPartitionID
from protocol.shuffle.messages import (
    ADD_CREDIT_BYTES,
    AckAllUserRecordsProcessed,
    AddCredit,
    CancelPartitionRequest,
    CloseRequest,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    SegmentId,
    TaskEventRequest,
)
from protocol.shuffle.push_row import PushRow, take_row
from protocol.shuffle.writer_frames import ALL_SUBPARTITIONS, PUSH_HEADER_BYTES, ListPartitions, WriterId

log = get_logger("shuffle")

_PUSH_BUFFER = int(WriterId.PUSH_BUFFER)
_PUSH_BUFFER_BYTE = bytes([WriterId.PUSH_BUFFER])
_LIST_PARTITIONS = int(WriterId.LIST_PARTITIONS)
# The most partitions that a processor lists: about 1 ms.
_LISTED_INLINE = 500
_ADD_CREDIT = 6
_ADD_CREDIT_LENGTH = ADD_CREDIT_BYTES.to_bytes(4, "big")  # a longer frame has trailing bytes, which are ignored
_CREDITS_AT_A_TIME = 64
# A row of pushes takes a fraction of a millisecond. It is no larger than a processor's read.
_PUSHES_AT_A_TIME = 128
ROW_BYTES_MAX = 256 * 1024
# A buffer size from a reader of more subpartitions than this is passed on for all subpartitions of the partition.
_HINTS_AT_ONCE = 64


class ShuffleRequest(Request):
    """A frame, parsed when it is handled, because it holds its payload. ``error``: why it is not a frame. ``row``: it
    is several frames, already parsed."""

    __slots__ = ("count", "error", "row")

    def __init__(self, error: ProtocolError | None, row: PushRow | None = None) -> None:
        self.error = error
        self.row = row
        self.count = 1 if row is None else len(row)


class ShuffleSession:
    """A connection's session. Framing needs no state of the protocol."""

    in_flight_max = 0

    def __init__(self, row_bytes_max: int = ROW_BYTES_MAX) -> None:
        """``row_bytes_max``: the limit of frames taken as one, not larger than that of a frame."""
        self._row_bytes_max = row_bytes_max
        self._error: ProtocolError | None = None
        self._row: PushRow | None = None  # the frames of the last returned size

    def frame_size(self, data: memoryview) -> int:
        """Consecutive frames are taken as one: pushes, and AddCredits, so that their buffers are sent together."""
        try:
            size = frame_size(data)
            if size == ADD_CREDIT_BYTES:
                size = messages.add_credits_size(data, _CREDITS_AT_A_TIME) or size
            if size and len(data) - size >= PUSH_HEADER_BYTES and data[8] == _PUSH_BUFFER:
                self._row, row_size = take_row(data, _PUSHES_AT_A_TIME, self._row_bytes_max)
                return row_size or size
            return size
        except ProtocolError as error:
            self._error = error  # the bytes so far count as a frame, so that it is handled and the peer gets the error
            return len(data)

    def receive(self, frame: memoryview) -> Request:
        row, self._row = self._row, None
        return ShuffleRequest(self._error, row)


@attrs.frozen(eq=False)
class Metering:
    """Charges clients' use against their users' quotas, which all protocols share.

    Pushes count for producer_byte_rate, buffers sent to readers for consumer_byte_rate, and the time of handling frames for
    request_percentage. After frames that leave a debt, nothing more is taken from the connection until it is paid; a reader's
    debt withholds only its buffers.
    """

    quotas: ClientQuotas
    throttling: Throttling
    deliveries: DeliveryQuota
    clock: Clock

    def used(self, connection: Connection, outbox: Outbox, pushed: int, began: float) -> None:
        """A frame with ``pushed`` bytes of pushes has been handled since ``began``."""
        quotas, user, now = self.quotas, connection.principal.name, self.clock.monotonic()
        throttle_s = quotas.take(Kind.REQUEST, user, (now - began) * 100, now)
        if pushed:
            throttle_s = max(throttle_s, quotas.take(Kind.PRODUCE, user, pushed, now))
        if throttle_s:
            outbox.call(connection, partial(self.throttling.begin, connection, outbox, now + throttle_s))


@attrs.define(eq=False)
class _State:
    """The service's state of a connection, owned by its processor."""

    queue: RequestQueue
    writers: Writers
    rights: Rights | None  # None: the client may do everything
    waiting: dict[bytes, tuple[PartitionRequest, WaitingReader]] = attrs.Factory(dict)  # by receiver
    delayed: bool = False  # by a fault: nothing is taken from the connection


class ShuffleService:
    """The service of one listener, which speaks one generation of the protocol. All listeners share the partitions."""

    def __init__(
        self,
        generation: Generation,
        partitions: Partitions,
        spiller: Spiller,
        writer_settings: WriterSettings,
        high_water_bytes: int,
        authorizer: Authorizer | None = None,
        frame_max: int = ROW_BYTES_MAX,
        metering: Metering | None = None,
        faulting: Faulting | None = None,
    ) -> None:
        """``authorizer`` None: every client may do everything. ``frame_max``: the largest frame, in bytes. ``metering`` None:
        clients have no quotas. ``faulting`` None: there are no faults on demand."""
        self._faulting = faulting
        self._authorizer = authorizer
        self._metering = metering
        self._generation = generation
        self._partitions = partitions
        self._spiller = spiller
        self._writer_settings = writer_settings
        self._high_water_bytes = high_water_bytes
        self._row_bytes_max = min(ROW_BYTES_MAX, frame_max)
        self._violations = Violations(log)
        self._refusals = EventLimit()

    def connect(self, peer: Peer) -> ShuffleSession:
        return ShuffleSession(self._row_bytes_max)

    def inline(self, request: Request) -> Any:
        frame = request.frame
        if len(frame) > 8 and frame[8] == _LIST_PARTITIONS:
            try:
                wanted = writer_frames.parse(frame)
            except ProtocolError:
                return None
            assert isinstance(wanted, ListPartitions)
            if self._partitions.count(wanted.prefix.lower()) > _LISTED_INLINE:
                return Handover(ADMIN, wanted)
        return None

    def handle(self, request: Request, outbox: Outbox, prepared: ListPartitions | None) -> None:
        metering = self._metering
        if metering is None or not metering.quotas.limits_clients:
            self._handle(request, outbox, prepared)
            return
        size = len(request.frame) if request.frame[8:9] == _PUSH_BUFFER_BYTE else 0
        began = metering.clock.monotonic()
        try:
            self._handle(request, outbox, prepared)
        finally:
            metering.used(request.connection, outbox, size, began)

    def _handle(self, request: Request, outbox: Outbox, prepared: ListPartitions | None) -> None:
        assert isinstance(request, ShuffleRequest)
        connection = request.connection
        if prepared is not None:
            if not connection.closed:
                self._list(connection, outbox, prepared)
            return
        state = connection.data
        if state is None:
            state = connection.data = self._new_state(connection, outbox)
            connection.keep = True  # Flink's clients keep connections for later jobs, without heartbeats
        try:
            if request.error is not None:
                raise request.error
            if self._faulting is not None and self._faulting.faults is not None:
                self._carry_out(self._faulting, list(self._steps(state, request, outbox)), state, request, outbox)
                return
            if request.row is not None:
                state.writers.push_row(request.row)
                return
            frame = request.frame
            kind = frame[8]
            if kind == _PUSH_BUFFER:
                state.writers.push(writer_frames.parse_push(frame))
            elif kind == _ADD_CREDIT and frame[:4] == _ADD_CREDIT_LENGTH:
                state.queue.add_credits(messages.parse_add_credits(frame))
            elif kind >= FIRST_WRITER_ID:
                state.writers.handle(writer_frames.parse(frame))
            else:
                self._message(state, request, outbox, messages.parse(frame, self._generation))
        except (NoRoom, ProtocolError) as error:
            self._failed(state, request, outbox, error)

    def _failed(self, state: _State, request: ShuffleRequest, outbox: Outbox, error: NoRoom | ProtocolError) -> None:
        """Close the connection."""
        connection = request.connection
        if isinstance(error, NoRoom):
            # The writer reconnects and resends the push when there is room. An error frame would end the writer.
            unlogged = self._refusals.take(request.received_at)
            if unlogged is not None:
                log.info(
                    "push_refused",
                    peer=connection.peer.host,
                    listener=connection.peer.listener,
                    error=str(error),
                    unlogged_before=unlogged,
                )
        else:
            # As in Flink, all receivers of this connection get the error, then it is closed.
            self._violations.report(connection, str(error), request.received_at)
            self._drop_receivers(state)
            outbox.push(connection, [encode_error(IO_EXCEPTION, str(error), None)])
        outbox.close(request)

    def _list(self, connection: Connection, outbox: Outbox, wanted: ListPartitions) -> None:
        """A long list, on a handler. Later requests of the connection may be answered first."""
        partitions = self._partitions.list(wanted.prefix.lower(), rights_of(connection, self._authorizer))
        outbox.push(connection, [writer_frames.encode_partition_list(wanted.correlation, partitions)])

    # -- faults on demand -------------------------------------------------------------------------------------------------

    def _steps(self, state: _State, request: ShuffleRequest, outbox: Outbox) -> Iterator[Step]:
        """The frames of a request, each by itself. Raises ProtocolError."""
        frame = memoryview(bytes(request.frame))  # a delayed frame outlives the request's
        kind, writers, queue = frame[8], state.writers, state.queue
        if kind == _PUSH_BUFFER:
            for push in (writer_frames.parse_push(frame),) if request.row is None else request.row.pushes():
                kept = push._replace(payload=memoryview(bytes(push.payload)))
                yield Step(kind, writers.partition_of(push.handle), partial(writers.push, kept))
        elif kind == _ADD_CREDIT and frame[:4] == _ADD_CREDIT_LENGTH:
            for credit in messages.parse_add_credits(frame):
                yield Step(kind, _read_by(state, credit[1]), partial(queue.add_credits, [credit]))
        elif kind >= FIRST_WRITER_ID:
            written = writer_frames.parse(frame)
            handle = getattr(written, "handle", None)
            partition = getattr(written, "partition", None) if handle is None else writers.partition_of(handle)
            yield Step(kind, partition, partial(writers.handle, written))
        else:
            message: Any = messages.parse(frame, self._generation)
            partition = getattr(message, "partition", None) or _read_by(state, getattr(message, "receiver", b""))
            yield Step(kind, partition, partial(self._message, state, request, outbox, message))

    def _carry_out(
        self, faulting: Faulting, steps: Sequence[Step], state: _State, request: ShuffleRequest, outbox: Outbox
    ) -> bool:
        """False: some of the steps are delayed, and until then nothing more is taken from the connection."""
        connection = request.connection
        for at, step in enumerate(steps):
            fault = faulting.meet(connection, step.message, step.partition)
            if fault is None:
                step.work()
            elif fault.kind == "reset":
                outbox.close(request)
                return True
            else:
                if not state.delayed:
                    state.delayed = True
                    outbox.start_throttling(connection)
                go_on = partial(self._go_on, faulting, steps[at:], state, request, outbox)
                faulting.later(fault, partial(outbox.call, connection, go_on))
                return False
        return True

    def _go_on(
        self, faulting: Faulting, steps: Sequence[Step], state: _State, request: ShuffleRequest, outbox: Outbox
    ) -> None:
        """The delay of the first step is over. On the connection's processor."""
        try:
            steps[0].work()
            if self._carry_out(faulting, steps[1:], state, request, outbox):
                state.delayed = False
        except (NoRoom, ProtocolError) as error:
            self._failed(state, request, outbox, error)
        if not state.delayed:
            outbox.end_throttling(request.connection)

    def _message(self, state: _State, request: Request, outbox: Outbox, message: messages.Message) -> None:
        if isinstance(message, AddCredit):
            state.queue.add_credits([(message.credit, message.receiver)])
        elif isinstance(message, PartitionRequest):
            self._request(state, request.connection, outbox, message)
        elif isinstance(message, ResumeConsumption):
            receiver = state.queue.get(message.receiver)
            if receiver is not None:
                receiver.view.credit.resume()
                state.queue.look(receiver)
        elif isinstance(message, CancelPartitionRequest):
            self._cancel(state, message.receiver)
        elif isinstance(message, CloseRequest):
            self._drop_receivers(state)
            outbox.close(request)
        elif isinstance(message, TaskEventRequest):
            self._task_event(state, outbox, request.connection, message)
        elif isinstance(message, NewBufferSize):
            receiver = state.queue.get(message.receiver)
            if receiver is not None:
                _hint_buffer_size(receiver.view, message.buffer_size)
        elif isinstance(message, AckAllUserRecordsProcessed):
            receiver = state.queue.get(message.receiver)
            if receiver is not None:
                receiver.view.acknowledge()
        elif not isinstance(
            message, SegmentId
        ):  # ignored: it belongs to tiered storage, which this broker does not have
            raise ProtocolError(f"a {type(message).__name__} is not for a server")

    def held_up(self) -> None:
        """No request of it may wait."""

    def writable(self, connection: Connection) -> None:
        state = connection.data
        if state is not None:
            state.queue.send()

    def stopping(self, connection: Connection) -> None:
        """Streams just end; their readers and writers continue with the next broker, or fail."""

    def disconnected(self, connection: Connection) -> None:
        if self._metering is not None:
            self._metering.throttling.forget(connection)
        state = connection.data
        if state is not None:
            connection.data = None
            state.queue.close(cancelled=False)
            self._stop_waiting(state)
            state.writers.close()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _new_state(self, connection: Connection, outbox: Outbox) -> _State:
        rights = rights_of(connection, self._authorizer)
        deliveries = None if self._metering is None else self._metering.deliveries
        queue = RequestQueue(
            connection,
            outbox,
            self._generation,
            self._high_water_bytes,
            self._view_ended,
            rights,
            deliveries,
            self._faulting,
        )
        writers = Writers(connection, outbox, self._partitions, self._spiller, self._writer_settings, rights)
        return _State(queue, writers, rights)

    def _request(self, state: _State, connection: Connection, outbox: Outbox, message: PartitionRequest) -> None:
        self._cancel(state, message.receiver)
        if state.rights is not None and not state.rights.may_with_any(READ):
            outbox.push(connection, [encode_error(IO_EXCEPTION, NOT_AUTHORIZED, message.receiver)])
            return
        if not self._partitions.budget.admit_reader(READER_BYTES):
            self._no_memory(connection, outbox, message)
            return
        partition = self._partitions.find(message.partition)
        hidden = partition is not None and not _may_read(state, partition)
        if partition is not None and not hidden:
            self._attach(state, connection, outbox, message, partition)
            return

        def answer(partition: ResultPartition | None) -> None:
            """On any thread."""
            outbox.call(connection, partial(self._wait_ended, state, connection, outbox, message, partition))

        waiting = WaitingReader(answer)
        # Before it waits, because the partition may come at this moment.
        state.waiting[message.receiver] = message, waiting
        if hidden:
            self._partitions.waiting.hide(message.partition, waiting)
        else:
            self._partitions.waiting.add(message.partition, waiting)

    def _wait_ended(
        self,
        state: _State,
        connection: Connection,
        outbox: Outbox,
        message: PartitionRequest,
        partition: ResultPartition | None,
    ) -> None:
        """The partition can be read or was released; None: it did not come. On the connection's processor."""
        requested, waiting = state.waiting.get(message.receiver, (None, None))
        if requested is not message or waiting is None:
            return  # cancelled meanwhile; the receiver may have requested something else
        if partition is not None and not _may_read(state, partition):
            self._partitions.waiting.hide(message.partition, waiting)
            return
        del state.waiting[message.receiver]
        if partition is None or not self._partitions.is_known(partition):
            self._partitions.budget.reader_left(READER_BYTES)
            outbox.push(connection, [partition_not_found(message.partition, message.receiver)])
        else:
            self._attach(state, connection, outbox, message, partition)

    def _no_memory(self, connection: Connection, outbox: Outbox, message: PartitionRequest) -> None:
        text = "The broker has no memory for another reader (shuffle_memory_bytes)."
        outbox.push(connection, [encode_error(IO_EXCEPTION, text, message.receiver)])

    def _attach(
        self,
        state: _State,
        connection: Connection,
        outbox: Outbox,
        message: PartitionRequest,
        partition: ResultPartition,
    ) -> None:
        """Give an admitted reader its view of the partition."""
        budget, indices = self._partitions.budget, message.subpartitions
        cursors = 0 if partition.pipelined or indices.size == 1 else CURSOR_BYTES * indices.size
        if indices.end < len(partition.subpartitions) and cursors and not budget.admit_reader(cursors):
            budget.reader_left(READER_BYTES)
            self._no_memory(connection, outbox, message)
            return
        if partition.pipelined and indices.end < len(partition.subpartitions):
            try:
                partition.charge_for(indices)
            except NoRoom:
                budget.reader_left(READER_BYTES)
                self._no_memory(connection, outbox, message)
                return
        receiver = Receiver(message.receiver)
        # Called on any thread when there is something to send where there was nothing.
        on_data = partial(outbox.call, connection, partial(state.queue.look, receiver))
        try:
            receiver.view = View(
                partition, indices, Credit(message.credit), on_data, self._generation, READER_BYTES + cursors
            )
        except PartitionReleased:
            budget.reader_left(READER_BYTES)
            outbox.push(connection, [partition_not_found(message.partition, message.receiver)])
            return
        except IndexError as error:
            budget.reader_left(READER_BYTES)
            outbox.push(connection, [encode_error(ILLEGAL_ARGUMENT_EXCEPTION, str(error), message.receiver)])
            return
        receiver.view.peer = f"{connection.peer.host}:{connection.peer.port}"
        state.queue.add(receiver)
        self._open_further(state, connection, outbox, receiver)

    def _open_further(self, state: _State, connection: Connection, outbox: Outbox, receiver: Receiver) -> None:
        """Claim the other subpartitions in steps; between steps the processor serves others."""
        if state.queue.get(receiver.id) is not receiver:
            return  # cancelled meanwhile
        try:
            if receiver.view.open_further():
                again = partial(self._open_further, state, connection, outbox, receiver)
                self._partitions.soon(partial(outbox.call, connection, again))
                state.queue.look(receiver)
        except PartitionReleased:
            state.queue.remove(receiver.id, cancelled=True)
            outbox.push(connection, [partition_not_found(receiver.view.partition.id, receiver.id)])

    def _cancel(self, state: _State, receiver: bytes) -> None:
        entry = state.waiting.pop(receiver, None)
        if entry is not None:
            self._partitions.waiting.remove(entry[0].partition, entry[1])
            self._partitions.budget.reader_left(READER_BYTES)
        state.queue.remove(receiver, cancelled=True)

    def _drop_receivers(self, state: _State) -> None:
        """The client has closed or violated the protocol: all its receivers leave."""
        state.queue.close(cancelled=True)
        self._stop_waiting(state)

    def _stop_waiting(self, state: _State) -> None:
        for message, waiting in state.waiting.values():
            self._partitions.waiting.remove(message.partition, waiting)
            self._partitions.budget.reader_left(READER_BYTES)
        state.waiting.clear()

    def _view_ended(self, view: View, cancelled: bool) -> None:
        self._partitions.budget.reader_left(view.reader_bytes)
        self._partitions.end_view(view, cancelled)

    def _task_event(self, state: _State, outbox: Outbox, connection: Connection, message: TaskEventRequest) -> None:
        partition = self._partitions.find(message.partition)
        if partition is not None and not _may_read(state, partition):
            partition = None
        listener = None if partition is None else partition.lease.listener
        if listener is not None:
            listener.task_event(ALL_SUBPARTITIONS, message.event)
        else:
            error = encode_error(ILLEGAL_ARGUMENT_EXCEPTION, "Task event receiver not found.", message.receiver)
            outbox.push(connection, [error])


def _read_by(state: _State, receiver_id: bytes) -> ResultPartitionID | None:
    """The partition that this receiver reads or waits for."""
    receiver = state.queue.get(receiver_id)
    if receiver is not None:
        return receiver.view.partition.id
    waiting = state.waiting.get(receiver_id)
    return None if waiting is None else waiting[0].partition


def _may_read(state: _State, partition: ResultPartition) -> bool:
    return state.rights is None or state.rights.may(READ, partition.owner)


def _hint_buffer_size(view: View, size: int) -> None:
    """A reader asks for buffers of this size: its writer is told, if it is connected."""
    listener = view.partition.lease.listener
    if listener is not None:
        indices = view.indices
        if len(indices) > _HINTS_AT_ONCE:
            indices = range(ALL_SUBPARTITIONS, ALL_SUBPARTITIONS + 1)
        for index in indices:
            listener.buffer_size(index, size)
