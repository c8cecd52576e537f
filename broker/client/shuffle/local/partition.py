"""A result partition of this process: its buffers, the state of its writer, and its readers.

One condition, ``changed``, guards a partition. A thread that holds a gate's lock may take it, never the other way round, so
channels are notified after it was released.

    state       event                                         next
    NEW         the writer opens it                           WRITING
    WRITING     the writer commits it                         FINISHED
    WRITING     the writer fails, or closes before the end    FAILED

``released`` is independent of the state: the exchange has deleted the partition, finished or not. Channels that read it already
take the buffers that are left; new channels do not find it.

Tests: tests/client/shuffle/local/test_exchange.py.
"""

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from broker.client.shuffle.errors import PartitionExistsError
from broker.runtime.threads import Condition, Lock
from protocol.shuffle.data_type import DataType
from protocol.shuffle.events import Event, UnknownEvent
from protocol.shuffle.ids import ResultPartitionID
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
        """Drop the buffers of subpartitions whose reader has left. Called with ``changed`` held."""
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
        """Return the partition that the channel reads, or None. In that case, the channel is notified when it exists."""
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
