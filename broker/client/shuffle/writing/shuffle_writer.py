"""Writing a result partition to a broker.

>>> with ShuffleWriter("127.0.0.1:9094", partition, subpartitions=3) as writer:
...     with writer.records(round_robin()) as out:
...         out.write(b"a record")

Pushes are kept until the broker has acknowledged them (``resend_window.py``). When the connection is lost the writer
connects again, learns what the broker has, and sends the rest: nothing is lost and nothing is there twice.

    state       event                                    next
    new         open                                     connecting
    connecting  connected: OpenPartition is sent         connecting
    connecting  PartitionOpened                          open: what is kept and not known there is sent again
    connecting  connection lost, opened before           connecting, a little later, until ``reconnect_timeout`` is over
    connecting  connection lost, never opened            failed
    open        connection lost                          connecting
    open        PartitionFinished                        finished
    any         WriterError                              failed (finished, if FinishPartition had been sent and the broker
                                                         says that the partition is)
    any         WriterError: its readers have gone       discarding: what is pushed is dropped, and finishing succeeds
    any         close                                    closed
    open        for a while nothing but an               connecting: OpenPartition is sent again, on the same connection;
                acknowledgement can come, and none does  PartitionOpened says what the broker has
    any         nothing comes for ``answer_timeout``,    as if the connection were lost
                though something is expected

A state belongs to the lock; the connection belongs to the I/O loop's thread, which is told by ``call``.
"""

from collections.abc import Callable

from broker.client.shuffle.errors import (
    ConnectionFailedError,
    LocalTransportError,
    NoCreditError,
    PartitionLostError,
    RemoteTransportError,
    ShuffleClosedError,
    ShuffleError,
    ShuffleTimeoutError,
    TransportError,
    of_another_process,
    writer_refused,
)
from broker.client.shuffle.io import io_loop
from broker.client.shuffle.io.connection import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, Connection
from broker.client.shuffle.io.io_loop import IoLoop, Timer
from broker.client.shuffle.io.liveness import Liveness, Verdict
from broker.client.shuffle.names import Address, PartitionLike, parse_address, partition_id
from broker.client.shuffle.writing.buffer_sink import Bytes
from broker.client.shuffle.writing.partition_writer import PartitionWriter
from broker.client.shuffle.writing.resend_window import Lack, ResendWindow
from broker.runtime import forks
from broker.runtime.disk import Buffer
from broker.runtime.threads import Condition
from protocol.errors import ProtocolError
from protocol.shuffle import events
from protocol.shuffle.buffer_response import ServerMessage
from protocol.shuffle.data_type import DataType
from protocol.shuffle.generation import Generation
from protocol.shuffle.messages import ErrorResponse
from protocol.shuffle.writer_frames import (
    DEFAULT_TTL,
    NO_INCARNATION,
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
    encode_close_writer,
    encode_fail_partition,
    encode_finish_partition,
    encode_list_partitions,
    encode_open_partition,
    push_header,
)

_RECONNECT_FIRST_S = 0.05
_RECONNECT_MAX_S = 2.0
# What is given to the connection at a time: it should always have something to send, and a lost one little to lose.
_AHEAD_BYTES = 2 * 1024 * 1024
_PUSHES_AT_A_TIME = 256
# A payload below this is copied behind its header: one part less for the kernel costs more than the copy.
_JOIN_BYTES = 2048
# How long ``fail`` and ``close`` wait for the kernel to take their last frame.
_PARTING_S = 5.0
# How often a writer looks at its connection: whether the broker still answers, and whether it should be asked what it has.
_LOOK_S = 1.0


class ShuffleWriter(PartitionWriter):
    """``address`` is ``host:port``; ``partition`` a ResultPartitionID, its 120 hex digits or Flink's text form.

    ``writer_id``: 16 bytes, random if not given. Who opens an unfinished partition under the same one, within the
    broker's retention, goes on where the last one stopped: see ``next_sequences``. ``ttl_ms``: how long the finished
    partition is kept. ``owner``: whose quota it counts in. ``window_bytes``: what may wait for an acknowledgement.
    ``reconnect_timeout``: s without a connection after which the writer gives up; 0: at once. ``answer_timeout``: s without
    any word from a broker of which an answer is expected, after which the connection counts as lost. So ``open`` ends within
    ``connect_timeout + answer_timeout``, and no other method waits for a broker that does not answer for longer than
    ``answer_timeout + reconnect_timeout``, whatever ``timeout`` it was given.
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
        loop: IoLoop | None = None,
    ) -> None:
        super().__init__(partition_id(partition), subpartitions, type, generation)
        if writer_id is not None and (len(writer_id) != 16 or not any(writer_id)):
            raise ValueError("a writer id is 16 bytes, and not all 0")
        self.address = parse_address(address)
        self._name = f"{self.address[0]}:{self.address[1]}"
        self._ttl_ms, self._owner = ttl_ms, owner
        self._connect_timeout, self._reconnect_timeout = connect_timeout, reconnect_timeout
        self._answer_timeout = answer_timeout
        self._owns_loop = loop is None
        self._loop: IoLoop | None = loop
        self._writer_id = writer_id
        self._incarnation = NO_INCARNATION  # tells it from another writer of the same id
        self._attempts = 0  # openings that were sent
        self._changed = Condition()
        self._window = ResendWindow(subpartitions, window_bytes)
        self._connection: Connection | None = None
        self._handle = -1
        self._error: Exception | None = None
        self._started = False
        self._opened = False  # at least once
        self._closed = False
        self._why_closed = ShuffleClosedError("the writer is closed")
        self._finishing = False
        self._finish_sent = False  # on this connection
        self._finish_ever_sent = False
        self._finished = False
        self._discards = False
        self._parting: bytes | None = None  # the last frame: FailPartition or CloseWriter
        self._parting_sent = False
        self._parted = False  # the kernel has it
        self._pump_scheduled = False
        self._waiting = 0  # threads
        self._lost_at: float | None = None
        self._liveness: Liveness | None = None  # of the present connection
        self._look_at: Timer | None = None
        self._unanswered = False  # when the connection was looked at last, and no acknowledgement has come since
        self._backoff = _RECONNECT_FIRST_S

    # -- for users ------------------------------------------------------------------------------------------------

    @property
    def writer_id(self) -> bytes:
        """The name under which this writer may be resumed."""
        assert self._writer_id is not None, "not open"
        return self._writer_id

    @property
    def next_sequences(self) -> tuple[int, ...]:
        """How many buffers and events each subpartition has, those of an earlier writer of the same id included."""
        with self._changed:
            return self._window.next_sequences

    @property
    def all_acknowledged(self) -> bool:
        """Whether the broker has all that was pushed."""
        with self._changed:
            return self._window.all_acknowledged

    @property
    def finished(self) -> bool:
        with self._changed:
            return self._finished

    @property
    def discards(self) -> bool:
        """Whether all readers of this pipelined partition have cancelled: nobody gets what is pushed from now on.

        As for Flink's producers that is no error, but who can stop may as well.
        """
        with self._changed:
            return self._discards

    def open(self, timeout: float | None = None) -> None:
        """Connect and begin (or resume) the partition. Raises ConnectionFailedError, WriterRefusedError."""
        self.start()
        with self._changed:
            self._wait(lambda: self._opened, timeout, lambda: ShuffleTimeoutError("the partition was not opened"))

    def start(self) -> None:
        """``open`` without waiting."""
        with self._changed:
            if self._closed:
                raise self._why_closed
            if self._started:
                return
            self._started = True
            forks.tell(self)
            if self._loop is None:
                self._loop = io_loop.acquire()
            if self._writer_id is None:
                self._writer_id = self._loop.runtime.entropy.bytes(16)
            self._incarnation = int.from_bytes(self._loop.runtime.entropy.bytes(7)) or 1
            loop = self._loop
        loop.call(self._connect)

    def push(
        self,
        subpartition: int,
        payload: Bytes,
        data_type: DataType = DataType.DATA_BUFFER,
        *,
        compressed: bool = False,
        timeout: float | None = None,
        copy: bool = True,
    ) -> None:
        size = len(payload)
        with self._changed:
            self._check_open(subpartition, data_type, size)
            if not self._room(size):
                self._wait(lambda: self._room(size), timeout, lambda: self._no_room(size))
                self._check_open(subpartition, data_type, size)
            self._push(subpartition, data_type, compressed, bytes(payload) if copy else payload)

    def try_push(
        self, subpartition: int, payload: Bytes, data_type: DataType = DataType.DATA_BUFFER, *, compressed: bool = False
    ) -> bool:
        with self._changed:
            self._check_open(subpartition, data_type, len(payload))
            if not self._room(len(payload)):
                return False
            self._push(subpartition, data_type, compressed, bytes(payload))
        return True

    def has_room(self, subpartition: int, size: int) -> bool:
        with self._changed:
            return self._room(size)

    def commit(self, timeout: float | None = None) -> None:
        with self._changed:
            if self._finished:
                return
            if self._closed:
                raise self._why_closed
            self._finishing = True
            self._schedule_pump()
            self._wait(
                lambda: self._finished or self._discards,
                timeout,
                lambda: ShuffleTimeoutError("the partition was not finished"),
            )
            self._finished = True

    def fail(self, reason: str) -> None:
        with self._changed:
            if self._closed or self._finished or self._error is not None or self._parting is not None:
                return
            self._gave_up = True
            self._error = ShuffleError(f"the writer has failed: {reason}")
            self._part(lambda: encode_fail_partition(self._handle, reason))

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            if self._error is None and not self._finished and self._window.all_sent:
                self._part(lambda: encode_close_writer(self._handle))
            loop = self._loop
            self._changed.notify_all()
        if loop is None:
            return
        if self._owns_loop:
            io_loop.run(loop, self._disconnect)
            io_loop.release(loop)
        else:
            loop.call(self._disconnect)

    def forked(self) -> None:
        """In a forked child: the parent goes on with the writer, and this copy of it is closed."""
        self._changed = Condition()
        self._closed = True
        self._why_closed = of_another_process()

    # -- with the lock held ---------------------------------------------------------------------------------------

    def _check_open(self, subpartition: int, data_type: DataType, size: int) -> None:
        if self._closed:
            raise self._why_closed
        if self._error is not None:
            raise self._error  # why it is not finished, if finishing was tried
        if self._finishing:
            raise ShuffleClosedError("the partition is finished")
        if not self._started:
            raise ShuffleClosedError("the writer is not open")
        if not 0 <= subpartition < self.subpartitions:
            raise ValueError(f"subpartition {subpartition} of {self.subpartitions}")
        if (
            data_type == DataType.NONE
            or data_type > self.generation.last_data_type
            or (not size and data_type.is_event)
        ):
            raise ValueError(f"a buffer of {size} bytes and the type {data_type!r}")

    def _room(self, size: int) -> bool:
        return self._discards or self._window.room(size)

    def _push(self, subpartition: int, data_type: DataType, compressed: bool, payload: Bytes) -> None:
        if self._error is not None:
            raise self._error
        if self._discards:
            return
        self._window.push(subpartition, data_type, compressed, payload)
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled and self._loop is not None:
            self._pump_scheduled = True
            self._loop.call(self._pump)

    def _no_room(self, size: int) -> ShuffleTimeoutError:
        """Why a push of ``size`` bytes had to wait."""
        match self._window.lacks(size):
            case Lack.CREDIT:
                return NoCreditError("the broker gave no credit")
            case Lack.CONNECTION:
                return ShuffleTimeoutError("there was no connection to the broker")
            case _:
                window = self._window
                return ShuffleTimeoutError(
                    f"the broker did not acknowledge the {window.kept_bytes} bytes that it was sent"
                    f" (window_bytes={window.max_bytes})"
                )

    def _wait(
        self, done: Callable[[], bool], timeout: float | None, too_late: Callable[[], ShuffleTimeoutError]
    ) -> None:
        """Until ``done``, or an error, which is raised. ``too_late``: what to raise after ``timeout`` s, which are added."""
        loop = self._loop
        assert loop is not None
        deadline = None if timeout is None else loop.now() + timeout
        self._waiting += 1
        try:
            while True:
                if self._error is not None:
                    raise self._error
                if done():
                    return
                if self._closed:
                    raise ShuffleClosedError("the writer was closed")
                if loop.crashed is not None:
                    raise loop.crashed
                # Not for ever: a thread that has died tells nobody.
                patience = 1.0 if deadline is None else min(1.0, deadline - loop.now())
                if patience <= 0:
                    error = too_late()
                    raise type(error)(f"{error} within {timeout:g} s")
                self._changed.wait(patience)
        finally:
            self._waiting -= 1

    def _part(self, frame: Callable[[], bytes]) -> None:
        """Send a last frame, if there is somebody to send it to, and wait until the kernel has it."""
        loop = self._loop
        if loop is None or not self._opened or self._handle < 0 or loop.crashed is not None:
            return
        self._parting = frame()
        self._schedule_pump()
        if self._owns_loop:
            self._changed.wait_for(self._is_parted, _PARTING_S)

    def _is_parted(self) -> bool:
        return self._parted or self._handle < 0

    def _tell(self) -> None:
        if self._waiting or self._parting is not None:
            self._changed.notify_all()

    def abandon(self, error: Exception) -> None:
        """The loop's word: something of this writer has failed on its thread."""
        with self._changed:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._error is None and not self._finished:
            self._error = error
        self._changed.notify_all()

    # -- on the loop's thread -------------------------------------------------------------------------------------

    def _connect(self) -> None:
        assert self._loop is not None
        if self._closed or self._connection is not None:
            return
        timeout = self._bounded(self._connect_timeout)
        self._connection = Connection(self._loop, self.address, self.generation, self.buffer_size, self, timeout)
        self._connection.open()

    def _bounded(self, timeout: float) -> float:
        """``timeout``, but no longer than it is worth while to try to get a lost connection back."""
        assert self._loop is not None
        if self._lost_at is None:
            return timeout
        return max(0.0, min(timeout, self._lost_at + self._reconnect_timeout - self._loop.now()))

    def connected(self) -> None:
        assert self._loop is not None
        self._liveness = Liveness(self._bounded(self._answer_timeout), self._loop.now())
        self._unanswered = False
        self._ask_to_open()
        self._look_later()

    def _ask_to_open(self) -> None:
        assert self._connection is not None
        self._attempts += 1
        frame = encode_open_partition(
            self.writer_id,
            self.partition,
            self.subpartitions,
            self.type,
            self._ttl_ms,
            self._owner,
            self._incarnation,
            self._opened,
            self._attempts,
        )
        self._connection.send([frame])

    def _look_later(self) -> None:
        loop, liveness = self._loop, self._liveness
        assert loop is not None
        assert liveness is not None
        self._look_at = loop.at(loop.now() + min(_LOOK_S, liveness.silence_max_s / 4), self._look)

    def _look(self) -> None:
        """Does the broker still answer? Every second, as long as there is a connection."""
        loop, connection, liveness = self._loop, self._connection, self._liveness
        assert loop is not None
        if connection is None or liveness is None:
            return
        with self._changed:
            verdict = liveness.look(loop.now(), self._expects_an_answer)
            if verdict is Verdict.ASK:
                # Any question will do whose answer is short.
                connection.send([encode_list_partitions(0, self.partition.hex())])
            unanswered = self._window.unanswered and not self._finishing and self._error is None and not self._closed
            if unanswered and self._unanswered and self._parting is None:
                self._open_again()
            else:
                self._unanswered = unanswered
        if verdict is not Verdict.DEAD:
            self._look_later()
            return
        silence = f"{self._name} has not answered for {liveness.silence_max_s:g} s"
        if self._opened:
            connection.close(RemoteTransportError(silence, self._name))
        else:
            connection.close(ConnectionFailedError(f"no connection to {self._name}: {silence}", self._name))

    @property
    def _expects_an_answer(self) -> bool:
        """With the lock held."""
        if self._closed or self._error is not None or self._finished or self._discards:
            return False
        return self._handle < 0 or self._finishing or self._waiting > 0 or not self._window.all_acknowledged

    def _open_again(self) -> None:
        """With the lock held: ask the broker what it has. The answer takes the place of an acknowledgement."""
        self._unanswered = False
        self._handle = -1
        self._window.disconnected()
        self._ask_to_open()

    def closed(self, error: TransportError) -> None:
        loop = self._loop
        assert loop is not None
        self._connection = None
        self._look_no_more()
        with self._changed:
            self._handle = -1
            self._finish_sent = False
            self._window.disconnected()
            if self._error is not None or self._closed or self._finished or self._discards:
                self._changed.notify_all()
                return
            now = loop.now()
            if self._lost_at is None:
                self._lost_at = now
            patient = not isinstance(error, LocalTransportError) and loop.crashed is None
            if not self._opened or not patient or now - self._lost_at >= self._reconnect_timeout:
                self._fail(error)
                return
            self._tell()
        loop.at(now + self._backoff, self._connect)
        self._backoff = min(2 * self._backoff, _RECONNECT_MAX_S)

    def _look_no_more(self) -> None:
        if self._look_at is not None:
            self._look_at.cancel()
            self._look_at = None

    def received(self, messages: list[ServerMessage]) -> None:
        assert self._loop is not None
        assert self._liveness is not None
        self._liveness.heard(self._loop.now())
        with self._changed:
            for message in messages:
                self._on_message(message)
            # On this thread: what the credit is for is sent at the end of the same step.
            self._send()
            self._tell()

    def _on_message(self, message: ServerMessage) -> None:
        match message:
            case WriterCredit(handle, credit):
                if handle == self._handle:
                    self._window.granted(credit)
            case PushAcknowledged(handle, next_sequences):
                if handle == self._handle:
                    for subpartition, sequence in next_sequences:
                        self._window.acknowledged(subpartition, sequence)
                    self._unanswered = False
                    self._lost_at = None
                    self._backoff = _RECONNECT_FIRST_S
            case PartitionOpened(writer, handle, credit, next_sequences):
                if writer == self._writer_id:
                    self._on_opened(handle, credit, next_sequences)
            case PartitionFinished(handle):
                if handle == self._handle and self._finishing:
                    self._finished = True
            case WriterError(writer, handle, code, text):
                if writer == self._writer_id or handle == self._handle:
                    self._on_refused(code, text)
            case WriterTaskEvent(handle, subpartition, event):
                self._tell_user(self.on_task_event, events.parse_or_keep(event, self.generation), subpartition)
            case BufferSizeHint(handle, subpartition, size):
                self._tell_user(self.on_buffer_size, subpartition, size)
            case AllRecordsProcessed(handle, subpartition):
                self._tell_user(self.on_all_processed, subpartition)
            case ErrorResponse(class_name, text, _):
                self._fail(ShuffleError(f"error at {self._name}: {class_name}: {text}"))
            case PartitionList():
                pass  # the answer to whether it still answers
            case _:
                raise ProtocolError(f"a {type(message).__name__} for a writer")

    def _tell_user(self, callback: Callable[..., None] | None, *news: object) -> None:
        if callback is None:
            return
        try:
            callback(*news)
        except BaseException as error:  # the seam: it is of this writer, and the thread has others
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """With the lock held: fail with what a callback has raised, and have the readers told."""
        if self._error is not None or self._finished or self._closed:
            return
        if isinstance(error, Exception):
            self._fail(error)
        else:  # SystemExit, of a script that thinks it is alone
            failed = ShuffleError(f"a callback has raised {error!r}")
            failed.__cause__ = error
            self._fail(failed)
        if self._handle >= 0 and self._parting is None:
            self._gave_up = True
            self._parting = encode_fail_partition(self._handle, f"{type(error).__name__}: {error}")

    def _on_opened(self, handle: int, credit: int, next_sequences: tuple[int, ...]) -> None:
        try:
            self._window.opened(credit, next_sequences)
        except PartitionLostError as error:
            self._fail(error)
            return
        self._handle = handle
        self._opened = True
        # With something to send only its acknowledgement ends the patience with a connection that breaks again and again.
        if self._window.all_acknowledged and not self._finishing:
            self._lost_at = None
            self._backoff = _RECONNECT_FIRST_S
        # But a broker without credit for it has it wait for room, for as long as that takes. That is no lost connection.
        elif not credit and not self._window.all_sent:
            self._lost_at = None

    def _on_refused(self, code: WriterErrorCode, text: str) -> None:
        if code is WriterErrorCode.FINISHED_ALREADY and self._finish_ever_sent:
            self._finished = True  # the answer to our FinishPartition was lost with its connection
        elif code is WriterErrorCode.READERS_GONE:
            self._discards = True
            self._handle = -1
            self._window.forget()
            self._changed.notify_all()
        else:
            self._fail(writer_refused(code, text))

    def _pump(self) -> None:
        with self._changed:
            self._pump_scheduled = False
            self._send()

    def _send(self) -> None:
        """Give the connection what there is credit for."""
        connection = self._connection
        handle = self._handle
        if connection is None or handle < 0 or not connection.is_connected:
            return
        if self._parting is not None:
            if not self._parting_sent:
                self._parting_sent = True
                connection.send([self._parting])
            return
        if self._error is not None:
            return
        window = self._window
        while connection.outgoing_bytes < _AHEAD_BYTES:
            pushes = window.take(_PUSHES_AT_A_TIME)
            if not pushes:
                break
            parts: list[Buffer] = []
            for subpartition, sequence, data_type, compressed, payload in pushes:
                size = len(payload)
                header = push_header(handle, subpartition, sequence, data_type, compressed, size)
                if size < _JOIN_BYTES:
                    parts.append(header + payload)
                else:
                    parts.append(header)
                    parts.append(payload)
            connection.send(parts)
        if self._finishing and not self._finish_sent and window.all_sent:
            self._finish_sent = self._finish_ever_sent = True
            connection.send([encode_finish_partition(handle)])

    def drained(self) -> None:
        with self._changed:
            if self._parting_sent:
                self._parted = True
                self._changed.notify_all()
            else:
                self._send()

    def _disconnect(self) -> None:
        self._look_no_more()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with self._changed:
            self._handle = -1
            self._changed.notify_all()
