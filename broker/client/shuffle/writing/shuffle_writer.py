"""Writes a result partition to a broker.

>>> with ShuffleWriter("127.0.0.1:9094", partition, subpartitions=3) as writer:
...     with writer.records(round_robin()) as out:
...         out.write(b"a record")

The writer keeps pushes until the broker has acknowledged them (``resend_window.py``). When the connection is lost, the writer
connects again, learns what the broker has, and sends the rest, so no buffer is lost or stored twice (``broker_link.py``).

This module contains the methods that users call. The tables of states are in ``resend_window.py`` (the writer) and in
``broker_link.py`` (its current connection). One lock, ``SharedState.changed``, guards both states and the window; only
the I/O thread uses the connection.
"""

from collections.abc import Callable, Sequence
from functools import partial

from broker.client.shuffle import io_loop
from broker.client.shuffle.connection import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S
from broker.client.shuffle.errors import (
    NoCreditError,
    ShuffleClosedError,
    ShuffleError,
    ShuffleTimeoutError,
    of_another_process,
)
from broker.client.shuffle.io_loop import IoLoop
from broker.client.shuffle.names import Address, PartitionLike, parse_address, partition_id
from broker.client.shuffle.security import SecurityLike, open_tls
from broker.client.shuffle.writing.broker_link import BrokerLink, Notice, Opening, Timeouts
from broker.client.shuffle.writing.record_writer import Bytes, PartitionWriter
from broker.client.shuffle.writing.resend_window import Lack, ResendWindow, SharedState, WriterEvent, WriterState
from broker.runtime import forks
from broker.runtime.threads import Condition
from protocol.shuffle import events
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import Generation
from protocol.shuffle.writer_frames import (
    DEFAULT_TTL,
    AllRecordsProcessed,
    BufferSizeHint,
    PartitionType,
    WriterTaskEvent,
    encode_close_writer,
    encode_fail_partition,
)

# How long (s) ``fail`` and ``close`` wait until the kernel has taken their last frame.
_PARTING_S = 5.0


class ShuffleWriter(PartitionWriter):
    """``address`` is ``host:port``; ``partition`` a ResultPartitionID, its 120 hex digits or Flink's text form.

    ``writer_id``: 16 bytes, random if not given. A writer that opens an unfinished partition under the same id, within
    the broker's retention, continues where the last writer stopped: see ``next_sequences``. ``ttl_ms``: how long the
    finished partition is kept. ``owner``: the owner of the quota that it counts in. ``window_bytes``: how much may wait
    for an acknowledgement. ``reconnect_timeout``: how many s the writer tries to connect again; 0: not at all.
    ``answer_timeout``: after how many s of silence, while an answer is expected, the connection counts as lost. So
    ``open`` ends within ``connect_timeout + answer_timeout``, and no other method waits for a silent broker longer than
    ``answer_timeout + reconnect_timeout``, whatever its ``timeout``. ``security``: settings by Kafka's names, for TLS.
    """

    def __init__(
        self,
        address: str | Address,
        partition: PartitionLike,
        subpartitions: int,
        type: PartitionType | str = PartitionType.PIPELINED,
        *,
        writer_id: bytes | None = None,
        ttl_ms: int = DEFAULT_TTL,
        owner: str = "",
        window_bytes: int = 64 * 1024 * 1024,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        reconnect_timeout: float = 30.0,
        answer_timeout: float = ANSWER_TIMEOUT_S,
        generation: Generation | str = Generation.V2_0,
        security: SecurityLike = None,
        loop: IoLoop | None = None,
    ) -> None:
        super().__init__(partition_id(partition), subpartitions, type, generation)
        if writer_id is not None and (len(writer_id) != 16 or not any(writer_id)):
            raise ValueError("a writer id is 16 bytes, and not all 0")
        self.address = parse_address(address)
        self._ttl_ms, self._owner = ttl_ms, owner
        self._owns_loop = loop is None
        self._loop: IoLoop | None = loop
        self._writer_id = writer_id
        self._window = ResendWindow(subpartitions, window_bytes)
        self._shared = SharedState(self._window)
        self._link = BrokerLink(
            self._shared,
            self.address,
            self.generation,
            self.buffer_size,
            Timeouts(connect_timeout, reconnect_timeout, answer_timeout),
            self._on_notice,
            open_tls(security, [address]),
        )
        self._why_closed = ShuffleClosedError("the writer is closed")

    @property
    def writer_id(self) -> bytes:
        """The id with which another writer can resume the partition."""
        assert self._writer_id is not None, "not open"
        return self._writer_id

    @property
    def next_sequences(self) -> tuple[int, ...]:
        """The number of buffers and events of each subpartition, including those of an earlier writer with the same id."""
        with self._shared.changed:
            return self._window.next_sequences

    @property
    def all_acknowledged(self) -> bool:
        """Whether the broker has acknowledged all pushes."""
        with self._shared.changed:
            return self._window.all_acknowledged

    @property
    def finished(self) -> bool:
        with self._shared.changed:
            return self._is_finished()

    @property
    def discards(self) -> bool:
        """Whether all readers of this pipelined partition have cancelled, so that further pushes are dropped.

        As for Flink's producers, this is no error. A producer that can stop early may do so.
        """
        with self._shared.changed:
            return self._shared.readers_left

    def open(self, timeout: float | None = None) -> None:
        """Connect and begin (or resume) the partition. Raises ConnectionFailedError, WriterRefusedError."""
        self.start()
        with self._shared.changed:
            self._wait(
                lambda: self._window.was_opened, timeout, lambda: ShuffleTimeoutError("the partition was not opened")
            )

    def start(self) -> None:
        """``open`` without waiting."""
        shared = self._shared
        with shared.changed:
            if shared.state >= WriterState.CLOSED:
                raise self._why_closed
            if shared.state is not WriterState.NEW:
                return
            shared.advance(WriterEvent.START)
            forks.tell(self)
            if self._loop is None:
                self._loop = io_loop.acquire()
            entropy = self._loop.runtime.entropy
            if self._writer_id is None:
                self._writer_id = entropy.bytes(16)
            incarnation = int.from_bytes(entropy.bytes(7)) or 1
            self._link.start(
                self._loop,
                Opening(
                    self._writer_id,
                    incarnation,
                    self.partition,
                    self.subpartitions,
                    self.type,
                    self._ttl_ms,
                    self._owner,
                ),
            )

    def _push(
        self, index: int, payload: Bytes, kind: DataType, compressed: bool, timeout: float | None, copy: bool
    ) -> None:
        size = len(payload)
        shared, window = self._shared, self._window
        with shared.changed:
            self._check(index, kind, size)
            if not (window.has_room(size) or shared.readers_left):
                self._wait(partial(self._has_room, size), timeout, partial(self._no_room, size))
                self._check(index, kind, size)
            if shared.readers_left:
                return
            window.push(index, kind, compressed, bytes(payload) if copy else payload)
            if not self._link.send_scheduled:
                self._link.schedule_send()

    def _push_many(
        self, index: int, payloads: Sequence[Bytes], kind: DataType, compressed: bool, timeout: float | None, copy: bool
    ) -> int:
        if not payloads:
            return 0
        payloads = list(payloads)
        smallest = min(map(len, payloads))
        shared, window = self._shared, self._window
        pushed = 0
        with shared.changed:
            while pushed < len(payloads):
                self._check(index, kind, smallest)
                if shared.readers_left:
                    break
                room = window.room(payloads, pushed)
                if not room:
                    size = len(payloads[pushed])
                    try:
                        self._wait(partial(self._has_room, size), timeout, partial(self._no_room, size))
                    except ShuffleTimeoutError:
                        if not pushed:
                            raise
                        return pushed
                    continue
                taken = payloads[pushed : pushed + room]
                # Copied only when there is room for them, so that the window also bounds the copies.
                kept = [bytes(payload) for payload in taken] if copy else taken
                window.push_many(index, kind, compressed, kept)
                pushed += room
                if not self._link.send_scheduled:
                    self._link.schedule_send()
        return len(payloads)

    def has_room(self, subpartition: int, size: int) -> bool:
        with self._shared.changed:
            return self._has_room(size)

    def commit(self, timeout: float | None = None) -> None:
        shared = self._shared
        with shared.changed:
            if self._is_finished():
                return
            if shared.state is WriterState.CLOSED:
                raise self._why_closed
            if shared.state is WriterState.NEW:
                raise ShuffleClosedError("the writer is not open")
            if shared.error is not None:
                raise shared.error
            shared.advance(WriterEvent.FINISH)
            self._link.schedule_send()
            self._wait(self._is_finished, timeout, lambda: ShuffleTimeoutError("the partition was not finished"))

    def fail(self, reason: str) -> None:
        shared = self._shared
        with shared.changed:
            if shared.state >= WriterState.FINISHED:
                return
            self._gave_up = True
            shared.fail(ShuffleError(f"the writer has failed: {reason}"))
            self._part(lambda handle: encode_fail_partition(handle, reason))

    def close(self) -> None:
        shared = self._shared
        with shared.changed:
            if shared.state >= WriterState.CLOSED:
                return
            may_be_resumed = shared.state < WriterState.FINISHED and self._window.all_sent
            shared.advance(WriterEvent.CLOSE)
            if may_be_resumed:
                self._part(encode_close_writer)
            loop = self._loop
            shared.changed.notify_all()
        if loop is None:
            return
        if self._owns_loop:
            io_loop.run(loop, self._link.disconnect)
            io_loop.release(loop)
        else:
            loop.call(self._link.disconnect)

    def forked(self) -> None:
        """Close this copy in a forked child. The parent keeps using the writer."""
        shared = self._shared
        shared.changed = Condition()
        if shared.state < WriterState.CLOSED:
            shared.advance(WriterEvent.CLOSE)
        self._why_closed = of_another_process()

    # -- with the lock held ---------------------------------------------------------------------------------------

    def _check(self, subpartition: int, data_type: DataType, size: int) -> None:
        """Raise an error if the buffer cannot be pushed."""
        if self._shared.state is not WriterState.WRITING:
            self._check_state()
        if not 0 <= subpartition < self.subpartitions:
            raise ValueError(f"there is no subpartition {subpartition} of {self.subpartitions}")
        if (
            data_type == DataType.NONE
            or data_type > self.generation.last_data_type
            or (not size and data_type.is_event)
        ):
            raise ValueError(f"a buffer of {size} bytes cannot have the type {data_type!r}")

    def _check_state(self) -> None:
        shared = self._shared
        if shared.state is WriterState.DISCARDING:
            return
        if shared.state >= WriterState.CLOSED:
            raise self._why_closed
        if shared.error is not None:
            raise shared.error  # after ``commit``, the error explains why the partition is not finished
        if shared.state is WriterState.NEW:
            raise ShuffleClosedError("the writer is not open")
        raise ShuffleClosedError("the partition is finished")

    def _has_room(self, size: int) -> bool:
        return self._window.has_room(size) or self._shared.readers_left

    def _no_room(self, size: int) -> ShuffleTimeoutError:
        """Return the error that explains why a push of ``size`` bytes had to wait."""
        window = self._window
        match window.lacks(size):
            case Lack.CREDIT:
                return NoCreditError("the broker gave no credit")
            case Lack.CONNECTION:
                return ShuffleTimeoutError("there was no connection to the broker")
            case _:
                return ShuffleTimeoutError(
                    f"the broker did not acknowledge the {window.kept_bytes} bytes that it was sent"
                    f" (window_bytes={window.max_bytes})"
                )

    def _is_finished(self) -> bool:
        state = self._shared.state
        return state is WriterState.FINISHED or state is WriterState.FINISHED_AND_CLOSED

    def _wait(
        self, done: Callable[[], bool], timeout: float | None, too_late: Callable[[], ShuffleTimeoutError]
    ) -> None:
        """Wait until ``done`` returns true, or raise the writer's error. ``too_late`` creates the error to raise after
        ``timeout``; the time is appended to its text.
        """
        loop, shared = self._loop, self._shared
        if shared.error is not None:
            raise shared.error
        assert loop is not None
        deadline = None if timeout is None else loop.now() + timeout
        shared.waiting_threads += 1
        try:
            while True:
                if shared.error is not None:
                    raise shared.error
                if done():
                    return
                if shared.state >= WriterState.CLOSED:
                    raise ShuffleClosedError("the writer was closed")
                if loop.crashed is not None:
                    raise loop.crashed
                # The wait is bounded, because an I/O thread that has died does not notify this thread.
                patience = 1.0 if deadline is None else min(1.0, deadline - loop.now())
                if patience <= 0:
                    error = too_late()
                    raise type(error)(f"{error} within {timeout:g} s")
                shared.changed.wait(patience)
        finally:
            shared.waiting_threads -= 1

    def _part(self, parting: Callable[[int], bytes]) -> None:
        """Send the last frame, if the broker can use it, and wait until the kernel has taken it."""
        loop, link, shared = self._loop, self._link, self._shared
        if loop is None or loop.crashed is not None or not link.part(parting):
            return
        link.schedule_send()
        if self._owns_loop:
            shared.waiting_threads += 1
            try:
                shared.changed.wait_for(lambda: not link.is_parting, _PARTING_S)
            finally:
                shared.waiting_threads -= 1

    # -- callbacks, on the I/O thread with the lock held ----------------------------------------------------------

    def _on_notice(self, notice: Notice) -> None:
        match notice:
            case WriterTaskEvent(_, subpartition, event):
                self._call(self.on_task_event, events.parse_or_keep(event, self.generation), subpartition)
            case BufferSizeHint(_, subpartition, size):
                self._call(self.on_buffer_size, subpartition, size)
            case AllRecordsProcessed(_, subpartition):
                self._call(self.on_all_processed, subpartition)

    def _give_up(self, error: BaseException) -> None:
        shared = self._shared
        if shared.state >= WriterState.FINISHED:
            return
        if isinstance(error, Exception):
            shared.fail(error)
        else:  # such as SystemExit, which would end the I/O thread and not the process
            failed = ShuffleError(f"a callback has raised {error!r}")
            failed.__cause__ = error
            shared.fail(failed)
        # The I/O thread sends the frame after it has handled all received messages.
        if self._link.part(lambda handle: encode_fail_partition(handle, f"{type(error).__name__}: {error}")):
            self._gave_up = True
