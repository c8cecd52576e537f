"""The interface of all writers of a result partition.

Tests: tests/client/shuffle/writing/test_record_writer.py.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from broker.client.shuffle.errors import ShuffleTimeoutError
from broker.client.shuffle.writing.channel_selector import ChannelSelector
from broker.client.shuffle.writing.record_writer import Bytes, RecordWriter
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE
from protocol.shuffle.data_type import DataType
from protocol.shuffle.events import EndOfData, EndOfPartition, Event, StopMode, UnknownEvent, data_type_of, encode
from protocol.shuffle.ids import Generation, ResultPartitionID
from protocol.shuffle.writer_frames import MAX_SUBPARTITIONS, PartitionType

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
        # (event from a reader, subpartition or -1). An UnknownEvent is one that this release cannot decode.
        self.on_task_event: Callable[[Event | UnknownEvent, int], None] | None = None
        self.on_buffer_size: Callable[[int, int], None] | None = None  # (subpartition, size that its reader asks for)
        # (subpartition): its reader has processed all records. Flink's tasks push EndOfData, wait for this, and then finish; a
        # writer that finishes at once is not notified.
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

        Raises ShuffleTimeoutError if nothing was pushed, and the error of a writer that has failed. A mutable ``payload`` is
        copied, unless ``copy`` is false: then the caller must not change it.
        """
        raise NotImplementedError

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
        """``push`` each of these, in order; with small buffers that is several times as fast. Returns how many were pushed: fewer
        than all if there was no room for the next one within ``timeout`` s.

        Raises ShuffleTimeoutError if there was room for none of them.
        """
        for pushed, payload in enumerate(payloads):
            try:
                self.push(subpartition, payload, data_type, compressed=compressed, timeout=timeout, copy=copy)
            except ShuffleTimeoutError:
                if not pushed:
                    raise
                return pushed
        return len(payloads)

    def try_push(
        self, subpartition: int, payload: Bytes, data_type: DataType = DataType.DATA_BUFFER, *, compressed: bool = False
    ) -> bool:
        """``push`` without waiting. False if there is no room now."""
        raise NotImplementedError

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
        """Finish the partition, after the last events of each subpartition were pushed. Returns when the broker has it all."""
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """Tell the readers that this producer has failed. The writer cannot be used any more."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything. Without ``finish`` or ``fail`` before, the partition stays open on the broker for its retention.

        Calling it twice is no error.
        """
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
