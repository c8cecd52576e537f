"""Partitions that are written and read in one process, without a broker or a network.

A ``LocalExchange`` connects writers and gates, which behave as with a broker. A pipelined subpartition can be read
once, and its writer waits when its reader is slow. A blocking subpartition can be read when it is finished, any number
of times, until it is released. The readers of a failed producer get ProducerFailedError. Payloads of type ``bytes`` are
passed on without a copy.

A ``LocalPartition`` has a partition's buffers, the state of its writer, and its readers. One condition, ``changed``,
guards it. A thread that holds a gate's lock may take it, never the other way round, so channels are notified after it
was released.

    state       event                                         next
    NEW         the writer opens it                           WRITING
    WRITING     the writer commits it                         FINISHED
    WRITING     the writer fails, or closes before the end    FAILED

``released`` is independent of the state: the exchange has deleted the partition, finished or not. Channels that read it
already take the remaining buffers; new channels do not find it.

Tests: tests/client/shuffle/local/test_exchange.py,
tests/client/shuffle/writing/test_record_writer.py.
"""

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from broker.client.shuffle.errors import (
    PartitionExistsError,
    PartitionFinishedError,
    PartitionReleasedError,
    ShuffleClosedError,
    ShuffleTimeoutError,
)
from broker.client.shuffle.names import PartitionLike, partition_id
from broker.client.shuffle.writing.record_writer import Bytes, PartitionWriter
from broker.runtime.clock import SystemClock
from broker.runtime.threads import Condition, Lock
from protocol.shuffle.data_type import IS_BUFFER, DataType
from protocol.shuffle.events import Event, UnknownEvent
from protocol.shuffle.ids import Generation, ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType, WriterErrorCode


class LocalState(IntEnum):
    NEW = 0
    WRITING = 1
    FINISHED = 2
    FAILED = 3


class Stored(NamedTuple):
    data_type: DataType
    compressed: bool
    payload: bytes


class Producer(Protocol):
    """A writer as the channels of its partition see it. They call the methods on the readers' threads."""

    def task_event(self, event: Event | UnknownEvent, subpartition: int) -> None: ...

    def buffer_size_asked(self, subpartition: int, size: int) -> None: ...

    def all_processed(self, subpartition: int) -> None: ...


class Channel(Protocol):
    """A channel that reads the partition, or waits until it exists. Its methods are called without any lock held."""

    partition: ResultPartitionID

    def partition_found(self, partition: "LocalPartition") -> None: ...

    def news(self) -> None:
        """Called when the writer has pushed a buffer or the partition has changed its state."""


class LocalPartition:
    """The data of one partition. Callers hold ``changed`` while they read or change the fields."""

    def __init__(self, id: ResultPartitionID, subpartitions: int, type: PartitionType, capacity: int) -> None:
        self.id = id
        self.is_pipelined = type is PartitionType.PIPELINED
        self.capacity = capacity  # how many buffers a pipelined subpartition may hold
        self.changed = Condition()
        self.state = LocalState.NEW
        self.released = False
        self.failure = ""  # why the state is FAILED
        self.stored: list[deque[Stored] | list[Stored]] = [
            deque() if self.is_pipelined else [] for _ in range(subpartitions)
        ]
        self.abandoned = [False] * subpartitions  # the reader has left, so pushed buffers are dropped
        self.readers: list[Channel | None] = [None] * subpartitions
        self.channels: list[Channel] = []  # the channels that read the partition
        self.producer: Producer | None = None

    def abandon(self, indices: Iterable[int]) -> None:
        """Drop the buffers of subpartitions without a reader. Called with ``changed`` held."""
        for index in indices:
            self.abandoned[index] = True
            self.stored[index] = deque()
        self.changed.notify_all()


class LocalPartitions:
    """The partitions of one exchange by id, and the channels that wait for a partition. Has a lock of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._partitions: dict[ResultPartitionID, LocalPartition] = {}
        self._waiting: dict[ResultPartitionID, list[Channel]] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: LocalPartition) -> None:
        """Add the partition and notify the channels that wait for it. Raises PartitionExistsError."""
        with self._lock:
            if partition.id in self._partitions:
                raise PartitionExistsError(
                    f"partition {partition.id} exists already", WriterErrorCode.EXISTS_WITH_OTHER_SHAPE
                )
            self._partitions[partition.id] = partition
            waiting = self._waiting.pop(partition.id, [])
        for channel in waiting:
            channel.partition_found(partition)

    def find(self, channel: Channel) -> LocalPartition | None:
        """Return the partition that the channel reads, or None; the channel is then notified when the partition
        exists."""
        with self._lock:
            partition = self._partitions.get(channel.partition)
            if partition is None:
                self._waiting.setdefault(channel.partition, []).append(channel)
            return partition

    def stop_waiting(self, channel: Channel) -> bool:
        """Do not notify the channel any more. Returns False if it did not wait."""
        with self._lock:
            waiting = self._waiting.get(channel.partition, [])
            if channel not in waiting:
                return False
            waiting.remove(channel)
            if not waiting:
                del self._waiting[channel.partition]
            return True

    def forget(self, partition: LocalPartition) -> None:
        """Delete a pipelined partition that has been read completely, because it can be read only once."""
        with self._lock:
            if self._partitions.get(partition.id) is partition:
                del self._partitions[partition.id]

    def release(self, id: ResultPartitionID) -> bool:
        """Delete a partition and notify its writer and readers. Returns False if it does not exist."""
        with self._lock:
            partition = self._partitions.pop(id, None)
        if partition is None:
            return False
        with partition.changed:
            partition.released = True
            partition.changed.notify_all()
            channels = partition.channels[:]
        for channel in channels:
            channel.news()
        return True


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

    def has_room(self, subpartition: int, size: int) -> bool:
        partition = self._partition
        with partition.changed:
            full = partition.is_pipelined and len(partition.stored[subpartition]) >= partition.capacity
            return not full or partition.abandoned[subpartition]

    def _push(
        self, index: int, payload: Bytes, kind: DataType, compressed: bool, timeout: float | None, copy: bool
    ) -> None:
        partition = self._partition
        with partition.changed:
            if partition.state is not LocalState.WRITING or partition.released or self._closed:
                self._refuse()
            stored = partition.stored[index]
            if partition.is_pipelined and IS_BUFFER[kind] and not partition.abandoned[index]:
                deadline = None if timeout is None else _monotonic() + timeout
                while len(stored) >= partition.capacity and not partition.abandoned[index]:
                    patience = None if deadline is None else deadline - _monotonic()
                    if patience is not None and patience <= 0:
                        raise ShuffleTimeoutError(f"no room for a buffer within {timeout:g} s")
                    partition.changed.wait(patience)
                    if partition.state is not LocalState.WRITING or partition.released or self._closed:
                        self._refuse()
            if partition.abandoned[index]:
                return
            stored.append(Stored(kind, compressed, bytes(payload)))
            reader = partition.readers[index]
        if reader is not None:
            reader.news()

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

    def _give_up(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            raise error  # such as SystemExit, on a thread of the user's
        if self._error is None:
            self._error = error
        self.fail(f"{type(error).__name__}: {error}")


class LocalExchange:
    """The partitions that writers and gates of one process share. ``buffers``: how many a pipelined subpartition may hold."""

    def __init__(self, buffers: int = 16) -> None:
        self._buffers = buffers
        self.partitions = LocalPartitions()

    def writer(
        self,
        partition: PartitionLike,
        subpartitions: int,
        type: PartitionType | str = PartitionType.PIPELINED,
        *,
        generation: Generation | str = Generation.V2_0,
    ) -> LocalWriter:
        """Return a writer for a new partition."""
        return LocalWriter(self.partitions, partition_id(partition), subpartitions, type, generation, self._buffers)

    def release(self, partition: ResultPartitionID) -> bool:
        """Delete a partition. A writer that has not finished it fails. Returns False if the partition does not exist."""
        return self.partitions.release(partition)
