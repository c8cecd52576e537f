"""Writes a partition of a ``LocalExchange``.

Tests: tests/client/shuffle/local/test_exchange.py, tests/client/shuffle/writing/test_record_writer.py.
"""

from collections.abc import Callable

from broker.client.shuffle.errors import (
    PartitionFinishedError,
    PartitionReleasedError,
    ShuffleClosedError,
    ShuffleTimeoutError,
)
from broker.client.shuffle.local.partition import Channel, LocalPartition, LocalPartitions, LocalState, Stored
from broker.client.shuffle.writing.buffer_sink import Bytes
from broker.client.shuffle.writing.partition_writer import PartitionWriter
from broker.runtime.clock import SystemClock
from protocol.shuffle.data_type import IS_BUFFER, DataType
from protocol.shuffle.events import Event, UnknownEvent
from protocol.shuffle.generation import Generation
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType, WriterErrorCode

_monotonic = SystemClock.monotonic


class LocalWriter(PartitionWriter):
    """Writes a partition of this process. Created by ``LocalExchange.writer``."""

    def __init__(
        self,
        partitions: LocalPartitions,
        partition: ResultPartitionID,
        subpartitions: int,
        kind: PartitionType | str,
        generation: Generation | str,
        capacity: int,
    ) -> None:
        super().__init__(partition, subpartitions, kind, generation)
        self._partition = LocalPartition(partition, subpartitions, self.type, capacity)
        self._partitions = partitions
        self._closed = False  # independent of the partition's state
        self._error: Exception | None = None  # the error of a user's callback

    def open(self, timeout: float | None = None) -> None:
        partition = self._partition
        if partition.state is LocalState.NEW:
            partition.producer = self
            self._partitions.add(partition)
            with partition.changed:
                partition.state = LocalState.WRITING

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
        deadline = None if timeout is None else _monotonic() + timeout
        while not self._push(subpartition, payload, data_type, compressed, deadline):
            if deadline is not None and _monotonic() >= deadline:
                raise ShuffleTimeoutError(f"no room for a buffer within {timeout:g} s")

    def try_push(
        self, subpartition: int, payload: Bytes, data_type: DataType = DataType.DATA_BUFFER, *, compressed: bool = False
    ) -> bool:
        return self._push(subpartition, payload, data_type, compressed, 0.0)

    def has_room(self, subpartition: int, size: int) -> bool:
        partition = self._partition
        with partition.changed:
            full = partition.is_pipelined and len(partition.stored[subpartition]) >= partition.capacity
            return not full or partition.abandoned[subpartition]

    def _push(
        self, subpartition: int, payload: Bytes, data_type: DataType, compressed: bool, deadline: float | None
    ) -> bool:
        partition = self._partition
        with partition.changed:
            if partition.state is not LocalState.WRITING or partition.released or self._closed:
                self._refuse()
            stored = partition.stored[subpartition]
            if partition.is_pipelined and IS_BUFFER[data_type] and not partition.abandoned[subpartition]:
                while len(stored) >= partition.capacity and not partition.abandoned[subpartition]:
                    patience = None if deadline is None else deadline - _monotonic()
                    if patience is not None and patience <= 0:
                        return False
                    partition.changed.wait(patience)
                    if partition.state is not LocalState.WRITING or partition.released or self._closed:
                        self._refuse()
            if partition.abandoned[subpartition]:
                return True
            stored.append(Stored(data_type, compressed, bytes(payload)))
            reader = partition.readers[subpartition]
        if reader is not None:
            reader.news()
        return True

    def _refuse(self) -> None:
        """Raise the error that explains why the writer cannot push."""
        partition = self._partition
        if self._error is not None:
            raise self._error
        if self._closed or partition.state is LocalState.NEW:
            raise ShuffleClosedError("the writer is not open")
        if partition.released:
            raise PartitionReleasedError(f"partition {partition.id} was released", WriterErrorCode.RELEASED)
        raise PartitionFinishedError(f"partition {partition.id} is finished", WriterErrorCode.FINISHED_ALREADY)

    @property
    def finished(self) -> bool:
        return self._partition.state is LocalState.FINISHED

    def commit(self, timeout: float | None = None) -> None:
        partition = self._partition
        with partition.changed:
            if partition.state is not LocalState.WRITING or partition.released or self._closed:
                self._refuse()
            channels = self._end(LocalState.FINISHED)
        for channel in channels:
            channel.news()

    def fail(self, reason: str) -> None:
        partition = self._partition
        with partition.changed:
            if partition.state is not LocalState.WRITING:
                return
            self._gave_up = True
            partition.failure = reason
            channels = self._end(LocalState.FAILED)
        for channel in channels:
            channel.news()

    def _end(self, state: LocalState) -> list[Channel]:
        """Called with the partition's lock held. Returns the channels to notify after the lock was released."""
        self._partition.state = state
        self._partition.changed.notify_all()
        return self._partition.channels[:]

    def close(self) -> None:
        """Close the writer. An unfinished partition fails, because no other writer can resume it, unlike on a broker."""
        if not self._closed:
            self.fail("the writer was closed before it had finished")
        self._closed = True

    # -- called by readers, on their threads ----------------------------------------------------------------------

    def task_event(self, event: Event | UnknownEvent, subpartition: int) -> None:
        self._call(self.on_task_event, event, subpartition)

    def buffer_size_asked(self, subpartition: int, size: int) -> None:
        self._call(self.on_buffer_size, subpartition, size)

    def all_processed(self, subpartition: int) -> None:
        self._call(self.on_all_processed, subpartition)

    def _call(self, callback: Callable[..., None] | None, *arguments: object) -> None:
        """Call a user's callback. An error that it raises fails the writer, not the reader whose thread calls it."""
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception as error:
            if self._error is None:
                self._error = error
            self.fail(f"{type(error).__name__}: {error}")
