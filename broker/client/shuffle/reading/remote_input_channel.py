"""A channel with data from the network (Flink's RemoteInputChannel).

The I/O thread adds received items, the reader's thread takes them; both hold the gate's lock. ``input_channel.py`` has
the table of the channel's states. A missing partition is requested again, after twice the delay each time, until
``partition_wait`` is over. A wrong sequence number, a buffer without credit, or an error from the sender or the
connection fails the channel; failing and releasing cancel the request.

``ReceivedQueue`` holds received items until the reader takes them: by sequence number, priority events first. Pure.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from collections import deque
from functools import partial
from typing import Generic, TypeVar

from broker.client.shuffle.errors import BufferReorderingError, PartitionNotFoundError, ShuffleError
from broker.client.shuffle.names import Address
from broker.client.shuffle.partition_client import PartitionClient
from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent, BufferRun
from broker.client.shuffle.reading.credit import ChannelBuffers
from broker.client.shuffle.reading.input_channel import ChannelEvent, ChannelState, Gate, InputChannel, next_state
from protocol.shuffle.buffer_response import BufferResponse, BufferRow
from protocol.shuffle.data_type import HAS_PRIORITY, IS_BLOCKING_UPSTREAM, IS_BUFFER
from protocol.shuffle.ids import IndexSet, ResultPartitionID
from protocol.shuffle.messages import (
    encode_ack_all_user_records_processed,
    encode_new_buffer_size,
    encode_partition_request,
    encode_resume_consumption,
    encode_task_event_request,
)

T = TypeVar("T")


class ReceivedQueue(Generic[T]):
    """Sequence numbers count all received items, including priority events, from 0 and without a gap."""

    __slots__ = ("_items", "_priorities", "expected")

    def __init__(self) -> None:
        self.expected = 0
        self._items: deque[T] = deque()
        self._priorities = 0  # how many of the items, at the head, are priority events

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_priority(self) -> bool:
        """Whether ``pop`` returns a priority event next."""
        return self._priorities > 0

    @property
    def last(self) -> T | None:
        """The item that was added last, if it was not taken yet."""
        return self._items[-1] if self._items else None

    def check(self, sequence: int, count: int = 1) -> None:
        """``count`` buffers have come, the first with this sequence number. Raises BufferReorderingError."""
        if sequence != self.expected:
            raise BufferReorderingError(self.expected, sequence)
        self.expected += count

    def add(self, item: T) -> None:
        self._items.append(item)

    def add_priority(self, item: T) -> None:
        """Add an item before all data, behind earlier priority events."""
        self._items.insert(self._priorities, item)
        self._priorities += 1

    def pop(self) -> T:
        if self._priorities:
            self._priorities -= 1
        return self._items.popleft()

    def clear(self) -> list[T]:
        """Remove and return all items."""
        rest = list(self._items)
        self._items.clear()
        self._priorities = 0
        return rest


# Flink's taskmanager.network.request-backoff.initial and .max.
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 10.0


class RemoteInputChannel(InputChannel):
    def __init__(
        self, gate: Gate, index: int, partition: ResultPartitionID, subpartitions: IndexSet, address: Address
    ) -> None:
        super().__init__(gate, index, partition, subpartitions)
        self.address = address
        self.receiver = gate.loop.runtime.entropy.bytes(16)
        self.buffers = ChannelBuffers(gate.pool, gate.credit, self)
        self._queue: ReceivedQueue[BufferOrEvent | BufferRun | Exception] = ReceivedQueue()
        # A run of which the reader has taken the buffers before this place. It comes before the queue, except for
        # priority events.
        self._run: BufferRun | None = None
        self._place = 0
        self._client: PartitionClient | None = None  # set on the I/O thread
        self._state = ChannelState.WAITING
        self._asked_at = 0.0
        self._backoff = _BACKOFF_S

    # -- on the I/O thread -------------------------------------------------------------------------------------

    def connect(self) -> None:
        gate = self.gate
        self._asked_at = gate.loop.now()
        client = PartitionClient.lease(
            gate.loop, self.address, gate.generation, gate.buffer_size, gate.connect_timeout, gate.tls
        )
        with gate.lock:
            self._client = client
        # Also if the gate was closed meanwhile: `disconnect` then cancels the request, which the writer learns of.
        # Otherwise chance would decide whether the subpartition counts as read.
        self._request()

    def _ask(self) -> None:
        if self._state < ChannelState.FAILED:
            self._request()

    def _request(self) -> None:
        if self._client is None:
            return
        self._client.add(
            self,
            encode_partition_request(
                self.gate.generation, self.partition, self.subpartitions, self.receiver, self.gate.credit
            ),
        )

    def check_peer(self, waited_s: float, silence_max_s: float) -> None:
        client = self._client
        if client is not None and self._state < ChannelState.FAILED:
            client.check_peer(waited_s, silence_max_s)

    def disconnect(self) -> None:
        """After ``release``: this channel no longer needs the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.remove(self)
            client.release()

    def on_buffer(self, message: BufferResponse) -> None:
        gate = self.gate
        with gate.lock:
            if self._state is not ChannelState.RUNNING and not self._start():
                return
            try:
                kind = self._accept(message)
            except ShuffleError as error:
                self._fail(error)
                return
            if message.partial_sizes:
                self._add_partials(message, kind)
            elif message.size or kind is None:
                self._add(message, message.sequence, message.payload, kind, message.subpartition)
            else:
                self.buffers.recycle(kind)  # the reader does not see an empty buffer
            self.buffers.backlog(message.backlog)
            if gate.pool.announce:
                gate.tell_credit()

    def on_row(self, row: BufferRow) -> None:
        gate = self.gate
        with gate.lock:
            if self._state is not ChannelState.RUNNING and not self._start():
                return
            try:
                self._add_row(row)
            except ShuffleError as error:
                self._fail(error)
                return
            self.buffers.backlog(row.backlog)
            if gate.pool.announce:
                gate.tell_credit()

    def _add_row(self, row: BufferRow) -> None:
        queue = self._queue
        floating = self.buffers.take_row(len(row)) if row.sequence == queue.expected else None
        if floating is None:  # up to the wrong buffer, they are accepted one by one
            for buffer in row:
                queue.check(buffer.sequence)
                kind = self.buffers.take()
                queue.add(
                    BufferOrEvent(
                        self.index,
                        buffer.subpartition,
                        buffer.sequence,
                        buffer.data_type,
                        buffer.payload,
                        False,
                        self,
                        kind,
                    )
                )
        else:
            queue.check(row.sequence, len(row))
            last = queue.last
            if type(last) is BufferRun:
                last.extend(row, floating)
            else:
                queue.add(BufferRun.of(row, self.index, self, floating))
        if not self.in_line:
            self.gate.available(self)

    def _start(self) -> bool:
        """Called for the first message. Returns False if the channel has failed or was released."""
        if self._state is not ChannelState.WAITING:
            return False
        self._state = next_state(self._state, ChannelEvent.START)
        return True

    def _accept(self, message: BufferResponse) -> int | None:
        """Check the sequence number. Returns the kind of buffer that the payload takes, None for an event."""
        self._queue.check(message.sequence, len(message.partial_sizes) or 1)
        data_type = message.data_type
        if IS_BUFFER[data_type]:
            return self.buffers.take()
        if IS_BLOCKING_UPSTREAM[data_type]:
            if message.backlog:
                raise ShuffleError(f"illegal number of backlog: {message.backlog}, should be 0")
            self.buffers.sender_stopped()
        return None

    def _add_partials(self, message: BufferResponse, kind: int | None) -> None:
        parts = message.partials()
        last = len(parts) - 1
        for number, part in enumerate(parts):
            # The last slice frees the buffer.
            self._add(message, message.sequence + number, part, kind if number == last else None, -1)

    def _add(
        self,
        message: BufferResponse,
        sequence: int,
        payload: bytes | bytearray | memoryview,
        kind: int | None,
        subpartition: int,
    ) -> None:
        data_type = message.data_type
        item = BufferOrEvent(self.index, subpartition, sequence, data_type, payload, message.compressed, self, kind)
        if HAS_PRIORITY[data_type]:
            self._queue.add_priority(item)
            self.gate.available_first(self)
        else:
            self._queue.add(item)
            if not self.in_line:
                self.gate.available(self)

    def on_backlog(self, backlog: int) -> None:
        gate = self.gate
        with gate.lock:
            if self._state is not ChannelState.RUNNING and not self._start():
                return
            self.buffers.backlog(backlog)
            if gate.pool.announce:
                gate.tell_credit()

    def on_partition_not_found(self, message: str) -> None:
        gate = self.gate
        now = gate.loop.now()
        with gate.lock:
            if self._state >= ChannelState.FAILED:
                return
            if now + self._backoff - self._asked_at > gate.partition_wait:
                self._fail(PartitionNotFoundError(message or f"Partition {self.partition} not found."))
                return
        gate.loop.at(now + self._backoff, self._ask)
        self._backoff = min(2 * self._backoff, _BACKOFF_MAX_S)

    def abandon(self, error: Exception) -> None:
        """The I/O loop calls this when a method of the channel has raised ``error``."""
        self.failed(error)

    def failed(self, error: Exception) -> None:
        with self.gate.lock:
            self._fail(error)

    def take_unannounced(self) -> int:
        with self.gate.lock:
            return self.buffers.take_unannounced()

    # -- under the gate's lock ------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        if self._state >= ChannelState.FAILED:
            return
        self._state = next_state(self._state, ChannelEvent.FAIL)
        self.buffers.release()
        self._queue.add(error)
        if not self.in_line:
            self.gate.available(self)
        if self.gate.pool.announce:
            self.gate.tell_credit()
        if self._client is not None:
            client = self._client
            client.post(partial(client.remove, self))

    def next(self) -> BufferOrEvent | Exception | None:
        run = self._next_run()
        if not isinstance(run, BufferRun):
            return run
        place = self._place
        if place + 1 < len(run):
            self._run, self._place = run, place + 1
        else:
            self._run, self._place = None, 0
        return run.buffer(place)

    def next_run(self, most: int) -> BufferOrEvent | BufferRun | Exception | None:
        run = self._next_run()
        if type(run) is not BufferRun:
            return run
        if self._place:
            _, run = run.split(self._place)
        self._run, self._place = None, 0
        if len(run) > most:
            run, self._run = run.split(most)
        return run

    def _next_run(self) -> BufferOrEvent | BufferRun | Exception | None:
        """The next item. If it is a run, its buffers from ``_place`` on are next."""
        queue = self._queue
        if self._run is not None and not queue.has_priority:
            return self._run
        return queue.pop() if queue else None

    def has_next(self) -> bool:
        return self._run is not None or bool(self._queue)

    def has_priority(self) -> bool:
        return self._queue.has_priority

    def recycle(self, kind: int) -> None:
        with self.gate.lock:
            self.free(kind)
            if self.gate.pool.announce:
                self.gate.tell_credit()

    def free(self, kind: int) -> None:
        self.buffers.recycle(kind)

    def free_row(self, floating: int, exclusive: int) -> None:
        self.buffers.recycle_row(floating, exclusive)

    def announce_credit(self) -> None:
        if self._client is not None and self._state < ChannelState.FAILED:
            self._client.tell_credit(self)

    def resume(self) -> None:
        self.buffers.resuming()
        self._send(encode_resume_consumption(self.receiver))

    def send_event(self, event: bytes) -> None:
        self._send(encode_task_event_request(event, self.partition, self.receiver))

    def acknowledge_all(self) -> None:
        self._send(encode_ack_all_user_records_processed(self.receiver))

    def announce_buffer_size(self, size: int) -> None:
        self._send(encode_new_buffer_size(self.receiver, size))

    def _send(self, frame: bytes) -> None:
        client = self._client
        if client is not None and self._state < ChannelState.FAILED:
            client.post(partial(client.send, frame))

    def request(self) -> None:
        self.gate.loop.call(self.connect)

    def release(self) -> None:
        if self._state is ChannelState.RELEASED:
            return
        self._state = next_state(self._state, ChannelEvent.RELEASE)
        run, self._run = self._run, None
        if run is not None:
            self.buffers.recycle_row(*run.room(self._place))
        for item in self._queue.clear():
            if not isinstance(item, Exception):
                item.release()
        self.buffers.release()
        client = self._client
        if client is not None:
            client.post(partial(client.remove, self))
