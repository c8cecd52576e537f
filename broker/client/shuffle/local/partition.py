"""A result partition of this process: what was pushed and not yet taken, how far its writer has got, and who reads it.

One condition, ``changed``, guards a partition. It is taken with a gate's lock held, never the other way round: channels are
told of news after it was released.

    state       event                                         next
    NEW         the writer opens it                           WRITING
    WRITING     the writer commits it                         FINISHED
    WRITING     the writer fails, or closes before the end    FAILED

``released`` is independent of the state: the exchange has forgotten the partition, finished or not. Channels that read it
already take what is there; new ones do not find it.

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
    """The writer, as the channels that read its partition see it. Called on the readers' threads."""

    def task_event(self, event: Event | UnknownEvent, subpartition: int) -> None: ...

    def buffer_size_asked(self, subpartition: int, size: int) -> None: ...

    def all_processed(self, subpartition: int) -> None: ...


class Channel(Protocol):
    """A channel that reads the partition, or waits until it is there. Called without any lock held."""

    partition: ResultPartitionID

    def partition_found(self, partition: "LocalPartition") -> None: ...

    def news(self) -> None:
        """Something was pushed, or the state has changed."""


class LocalPartition:
    """The fields are read and changed with ``changed`` held."""

    def __init__(self, id: ResultPartitionID, subpartitions: int, type: PartitionType, capacity: int) -> None:
        self.id = id
        self.is_pipelined = type is PartitionType.PIPELINED
        self.capacity = capacity  # buffers that may wait in a subpartition, if pipelined
        self.changed = Condition()
        self.state = LocalState.NEW
        self.released = False
        self.failure = ""  # why it is FAILED
        self.stored: list[deque[Stored] | list[Stored]] = [
            deque() if self.is_pipelined else [] for _ in range(subpartitions)
        ]
        self.abandoned = [False] * subpartitions  # its reader has left: what is pushed is dropped
        self.readers: list[Channel | None] = [None] * subpartitions
        self.channels: list[Channel] = []  # all that read it
        self.producer: Producer | None = None

    def abandon(self, indices: Iterable[int]) -> None:
        """The reader of these subpartitions has left, and with it what it has not taken. With ``changed`` held."""
        for index in indices:
            self.abandoned[index] = True
            self.stored[index] = deque()
        self.changed.notify_all()


class LocalPartitions:
    """The partitions of one exchange, by id, and the channels that wait for one. Has a lock of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._partitions: dict[ResultPartitionID, LocalPartition] = {}
        self._waiting: dict[ResultPartitionID, list[Channel]] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: LocalPartition) -> None:
        """Make it known, and tell the channels that wait for it. Raises PartitionExistsError."""
        with self._lock:
            if partition.id in self._partitions:
                raise PartitionExistsError(
                    f"partition {partition.id} is there already", WriterErrorCode.EXISTS_WITH_OTHER_SHAPE
                )
            self._partitions[partition.id] = partition
            waiting = self._waiting.pop(partition.id, [])
        for channel in waiting:
            channel.partition_found(partition)

    def find(self, channel: Channel) -> LocalPartition | None:
        """The partition that the channel reads, or None: then the channel is told as soon as it is there."""
        with self._lock:
            partition = self._partitions.get(channel.partition)
            if partition is None:
                self._waiting.setdefault(channel.partition, []).append(channel)
            return partition

    def stop_waiting(self, channel: Channel) -> bool:
        """The channel is not to be told any more. False if it did not wait."""
        with self._lock:
            waiting = self._waiting.get(channel.partition, [])
            if channel not in waiting:
                return False
            waiting.remove(channel)
            if not waiting:
                del self._waiting[channel.partition]
            return True

    def forget(self, partition: LocalPartition) -> None:
        """All of it was read, and it can be read only once."""
        with self._lock:
            if self._partitions.get(partition.id) is partition:
                del self._partitions[partition.id]

    def release(self, id: ResultPartitionID) -> bool:
        """Forget a partition, and tell its writer and readers. False if there is none."""
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
