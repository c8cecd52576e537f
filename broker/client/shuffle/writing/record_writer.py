"""Writes records into buffers (Flink's RecordWriter): selects the subpartition, serializes, divides, flushes and compresses.

A record, and even its length field, may begin in one buffer and continue in the next. A buffer is pushed when it is
full, or when it has waited for ``flush_interval_ms``; then it ends with a complete record, and its data type says so.

``PartitionWriter`` is the base of all writers of a result partition, which a RecordWriter pushes its buffers to.
"""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from broker.client.shuffle.errors import ShuffleClosedError, ShuffleError, ShuffleTimeoutError, of_another_process
from broker.client.shuffle.writing import flusher
from broker.client.shuffle.writing.channel_selector import ChannelSelector, round_robin
from broker.runtime import forks
from broker.runtime.threads import Lock
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE
from protocol.shuffle.compression import Codec, compress
from protocol.shuffle.data_type import DataType
from protocol.shuffle.events import EndOfData, EndOfPartition, Event, StopMode, UnknownEvent, data_type_of, encode
from protocol.shuffle.ids import Generation, ResultPartitionID
from protocol.shuffle.records import RecordEncoder
from protocol.shuffle.writer_frames import MAX_SUBPARTITIONS, PartitionType

Bytes = bytes | bytearray | memoryview

T = TypeVar("T")

# Flink's execution.buffer-timeout.
DEFAULT_FLUSH_INTERVAL_MS = 100
# The smallest buffers that a reader may ask for, so that headers do not dominate: Flink's
# taskmanager.memory.min-segment-size.
_LEAST_BUFFER_SIZE = 256


class RecordWriter(Generic[T]):
    """Writes to ``writer``, which the user still has to finish; ``close`` (or the end of a ``with`` block) only flushes.

    ``serializer``: value -> bytes; not needed if values are bytes. ``flush_interval_ms``: 100 as in Flink; 0: after each record;
    None: only when a buffer is full, which is the default for blocking partitions, because nobody reads them yet.
    ``compression``: ``"lz4"`` or ``"zstd"``, for blocking partitions only, as in Flink; readers must be given the codec.
    Any thread may call the methods; records of one subpartition keep the order of the calls.
    """

    def __init__(
        self,
        writer: "PartitionWriter",
        selector: ChannelSelector[T] | None = None,
        *,
        serializer: Callable[[T], Bytes] | None = None,
        flush_interval_ms: float | None = -1,
        compression: Codec | str | None = None,
        buffer_size: int = DEFAULT_BUFFER_SIZE,
    ) -> None:
        if buffer_size < 1:
            raise ValueError(f"a buffer size of {buffer_size} bytes is not possible")
        codec = Codec.NONE if compression is None else compression
        self._codec = codec if isinstance(codec, Codec) else Codec(codec.upper())
        if self._codec is not Codec.NONE and writer.type is not PartitionType.BLOCKING:
            raise ValueError("only blocking partitions are compressed")
        if flush_interval_ms == -1:
            flush_interval_ms = None if writer.type is PartitionType.BLOCKING else DEFAULT_FLUSH_INTERVAL_MS
        self._writer = writer
        self._selector: ChannelSelector[T] = round_robin() if selector is None else selector
        self._selector.setup(writer.subpartitions)
        self._select = self._selector.select
        self._broadcast = self._selector.is_broadcast
        self._serialize = serializer
        self._buffer_size = buffer_size
        self._encoders = [RecordEncoder(buffer_size) for _ in range(writer.subpartitions)]
        self._always_flush = flush_interval_ms == 0
        self._lock = Lock()
        self._dirty = False  # an encoder may hold unflushed records
        self._closed = False
        # The type says that a reader of several subpartitions may switch after it; releases before 1.19 do not know it.
        clear_end = DataType.DATA_BUFFER_WITH_CLEAR_END
        self._clear_end = clear_end if clear_end <= writer.generation.last_data_type else DataType.DATA_BUFFER
        self._failed: Exception | None = None  # on the flusher's thread; the next call raises it
        self._registration: flusher.Registration | None = None
        forks.tell(self)
        if writer.on_buffer_size is None:
            writer.on_buffer_size = self._resize
        if flush_interval_ms:
            self._registration = flusher.register(
                self._flush_what_can_be, flush_interval_ms / 1000, self._flusher_failed
            )

    def write(self, value: T) -> None:
        """Write to the subpartition that the selector chooses, or to all for a broadcast. Waits while there is no room."""
        record: Any = value if self._serialize is None else self._serialize(value)
        if self._broadcast:
            self._write_all(record)
            return
        index = self._select(value)
        with self._lock:
            if self._closed or self._failed is not None:
                self._refuse()
            full = self._encoders[index].add(record)
            if full:
                self._push(index, full)
            self._dirty = True
            if self._always_flush:
                self._flush(index)

    def write_to(self, subpartition: int, value: T) -> None:
        """Write to this subpartition, without the selector."""
        record: Any = value if self._serialize is None else self._serialize(value)
        with self._lock:
            self._add(subpartition, record)

    def broadcast(self, value: T) -> None:
        """Write to every subpartition."""
        self._write_all(value if self._serialize is None else self._serialize(value))

    def extend(self, values: Iterable[T]) -> None:
        """Call ``write`` for each value."""
        write = self.write
        for value in values:
            write(value)

    def emit(self, event: Event, subpartition: int | None = None, *, priority: bool = False) -> None:
        """Push an event behind all records written so far, to one subpartition or to each."""
        indices = range(self._writer.subpartitions) if subpartition is None else (subpartition,)
        with self._lock:
            for index in indices:
                if not priority:
                    self._flush(index)
                self._writer.push_event(event, index, priority=priority)

    def flush(self) -> None:
        """Push the buffers that are not full. Raises the error of an earlier flush on the flusher's thread."""
        with self._lock:
            if self._failed is not None:
                raise self._failed
            for index in range(len(self._encoders)):
                self._flush(index)
            self._dirty = False

    def close(self, *, discard: bool = False) -> None:
        """Flush, or ``discard`` unflushed records. Calling it twice is no error."""
        registration, self._registration = self._registration, None
        if registration is not None:
            flusher.unregister(registration)
        if self._closed:
            return
        try:
            if not discard:
                self.flush()
        finally:
            self._closed = True

    def __enter__(self) -> "RecordWriter[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(discard=error is not None)

    # -- with the lock held ---------------------------------------------------------------------------------------

    def _add(self, index: int, record: Any) -> None:
        if self._closed or self._failed is not None:
            self._refuse()
        full = self._encoders[index].add(record)
        if full:
            self._push(index, full)
        self._dirty = True
        if self._always_flush:
            self._flush(index)

    def _refuse(self) -> None:
        if self._failed is not None:
            raise self._failed
        raise ShuffleClosedError("the record writer is closed")

    def _write_all(self, record: Any) -> None:
        with self._lock:
            for index in range(len(self._encoders)):
                self._add(index, record)

    def _push(self, index: int, buffers: list[bytes]) -> None:
        last = len(buffers) - 1
        clear = self._encoders[index].pending == 0
        for number, buffer in enumerate(buffers):
            self._push_one(index, buffer, self._clear_end if clear and number == last else DataType.DATA_BUFFER)

    def _push_one(self, index: int, buffer: bytes, data_type: DataType) -> None:
        if self._codec is not Codec.NONE:
            block = compress(self._codec, buffer)
            if block is not None:
                self._writer.push(index, block, data_type, compressed=True)
                return
        self._writer.push(index, buffer, data_type)

    def _flush(self, index: int) -> None:
        encoder = self._encoders[index]
        if encoder.pending:
            self._push_one(index, encoder.flush(), self._clear_end)

    def _flush_what_can_be(self) -> None:
        """Flush as much as possible without waiting for the lock or for credit. Called on the flusher's thread."""
        if not self._dirty or not self._lock.acquire(blocking=False):
            return
        try:
            dirty = False
            for index, encoder in enumerate(self._encoders):
                if encoder.pending:
                    if self._writer.has_room(index, encoder.pending):
                        self._flush(index)
                    else:
                        dirty = True
            self._dirty = dirty
        except ShuffleError:
            pass  # the writer keeps it: the next write or close raises it
        finally:
            self._lock.release()

    def _flusher_failed(self, error: Exception) -> None:
        """On the flusher's thread, which has dropped this writer. The next write, flush or close raises ``error``."""
        self._failed = error

    def forked(self) -> None:
        """In a forked child, this copy is unusable: the parent continues and flushes the buffers."""
        self._lock = Lock()
        self._registration = None
        self._failed = of_another_process()

    def _resize(self, subpartition: int, size: int) -> None:
        """On the I/O thread: a reader asks for buffers of this size. Takes effect with the next record."""
        if 0 <= subpartition < len(self._encoders):
            self._encoders[subpartition].buffer_size = max(_LEAST_BUFFER_SIZE, min(size, self._buffer_size))


Self = TypeVar("Self", bound="PartitionWriter")


def partition_type(kind: PartitionType | str) -> PartitionType:
    """Return the type for ``"pipelined"`` or ``"blocking"``. Raises ValueError for other text."""
    if isinstance(kind, PartitionType):
        return kind
    try:
        return PartitionType[kind.upper()]
    except KeyError:
        raise ValueError(f"a partition is pipelined or blocking, not {kind!r}") from None


class PartitionWriter:
    """Base of ``ShuffleWriter`` (to a broker) and ``LocalWriter`` (to readers in this process).

    In a ``with`` block it opens at the start and finishes at the end, or fails if the block raises, so that readers get an
    error. Any thread may call the methods; the pushes of one subpartition keep the order of the calls.
    """

    buffer_size = DEFAULT_BUFFER_SIZE

    def __init__(
        self,
        partition: ResultPartitionID,
        subpartitions: int,
        kind: PartitionType | str,
        generation: Generation | str,
    ) -> None:
        if not 1 <= subpartitions <= MAX_SUBPARTITIONS:
            raise ValueError(f"{subpartitions} subpartitions: 1 to {MAX_SUBPARTITIONS} are possible")
        self.partition = partition
        self.subpartitions = subpartitions
        self.type = partition_type(kind)
        self.generation = Generation(generation)
        self._gave_up = False  # ``fail`` was called
        # Callbacks. Set them before ``open``. They are called on a thread that must not wait. An error that a callback raises
        # fails this writer only: the next push or commit raises it.
        # (event from a reader, subpartition or -1). An UnknownEvent is an event that this release cannot decode.
        self.on_task_event: Callable[[Event | UnknownEvent, int], None] | None = None
        self.on_buffer_size: Callable[[int, int], None] | None = None  # (subpartition, size that its reader asks for)
        # (subpartition): its reader has processed all records. Flink's tasks push EndOfData, wait for this, and then
        # finish; a writer that finishes at once is not notified.
        self.on_all_processed: Callable[[int], None] | None = None

    def open(self, timeout: float | None = None) -> None:
        """Begin the partition, or continue it."""
        raise NotImplementedError

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
        """Add a buffer. Waits at most ``timeout`` s while the receiving side has no room (back-pressure).

        Raises ShuffleTimeoutError if nothing was pushed, and the error of a failed writer. A mutable ``payload`` is
        copied, unless ``copy`` is false: then the caller must not change it.
        """
        self._push(subpartition, payload, data_type, compressed, timeout, copy)

    def push_many(
        self,
        subpartition: int,
        payloads: Sequence[Bytes],
        data_type: DataType = DataType.DATA_BUFFER,
        *,
        compressed: bool = False,
        timeout: float | None = None,
        copy: bool = True,
    ) -> int:
        """``push`` each payload, in order; with small buffers that is several times as fast. Returns how many were
        pushed: fewer than all if there was no room for the next payload within ``timeout`` s.

        Raises ShuffleTimeoutError if there was room for none.
        """
        return self._push_many(subpartition, payloads, data_type, compressed, timeout, copy)

    def try_push(
        self, subpartition: int, payload: Bytes, data_type: DataType = DataType.DATA_BUFFER, *, compressed: bool = False
    ) -> bool:
        """``push`` without waiting. False if there is no room now."""
        try:
            self._push(subpartition, payload, data_type, compressed, 0.0, True)
        except ShuffleTimeoutError:
            return False
        return True

    def _push(
        self, index: int, payload: Bytes, kind: DataType, compressed: bool, timeout: float | None, copy: bool
    ) -> None:
        raise NotImplementedError

    def _push_many(
        self, index: int, payloads: Sequence[Bytes], kind: DataType, compressed: bool, timeout: float | None, copy: bool
    ) -> int:
        for pushed, payload in enumerate(payloads):
            try:
                self._push(index, payload, kind, compressed, timeout, copy)
            except ShuffleTimeoutError:
                if not pushed:
                    raise
                return pushed
        return len(payloads)

    def has_room(self, subpartition: int, size: int) -> bool:
        """Whether ``try_push`` would take a buffer of this size."""
        raise NotImplementedError

    def push_event(
        self, event: Event, subpartition: int | None = None, *, priority: bool = False, timeout: float | None = None
    ) -> None:
        """Add an event to one subpartition, or to all of them."""
        payload = encode(event)
        data_type = data_type_of(event, priority)
        if data_type > self.generation.last_data_type:  # older releases of Flink know only this type of event
            data_type = DataType.EVENT_BUFFER
        for index in range(self.subpartitions) if subpartition is None else (subpartition,):
            self.push(index, payload, data_type, timeout=timeout)

    @property
    def finished(self) -> bool:
        """Whether ``finish`` or ``commit`` has succeeded."""
        raise NotImplementedError

    def finish(self, timeout: float | None = None) -> None:
        """Push EndOfData and EndOfPartition to every subpartition and ``commit``. Calling it twice is no error."""
        if self.finished:
            return
        for index in range(self.subpartitions):
            self.push_event(EndOfData(StopMode.DRAIN), index, timeout=timeout)
            self.push_event(EndOfPartition(), index, timeout=timeout)
        self.commit(timeout)

    def commit(self, timeout: float | None = None) -> None:
        """Finish the partition, after the last events of each subpartition were pushed. Returns when the broker has all
        data."""
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """Tell the readers that this producer has failed. The writer cannot be used any more."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything. Without ``finish`` or ``fail`` before, the partition stays open on the broker for its retention.

        Calling it twice is no error.
        """
        raise NotImplementedError

    def _call(self, callback: Callable[..., None] | None, *arguments: object) -> None:
        """Call a user's callback. An error that it raises fails this writer, not the thread, which serves others, too."""
        if callback is None:
            return
        try:
            callback(*arguments)
        except BaseException as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Fail with the error of a callback, and tell the readers."""
        raise NotImplementedError

    def records(self, selector: ChannelSelector[Any] | None = None, **options: Any) -> RecordWriter[Any]:
        """Return a ``RecordWriter`` on this writer, with these options. The default selector is round robin."""
        return RecordWriter(self, selector, **options)

    def __enter__(self: Self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self._gave_up:
                self.finish()
            elif error is not None:
                self.fail(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        finally:
            self.close()
