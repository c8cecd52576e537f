"""Partitions that are written and read in one process: no broker, no network, no copies.

A ``LocalExchange`` is where the two sides meet. Writers and gates behave as with a broker: a pipelined subpartition is read
once and holds back its writer when its reader is slow; a blocking one is read when it is finished, as often as wanted,
until it is released; a failed producer's readers get ProducerFailedError.

One condition guards a partition. It is taken with a gate's lock held, never the other way round: gates are told of news
after it was let go.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from broker.client.shuffle.errors import (
    PartitionExistsError,
    PartitionFinishedError,
    PartitionNotFoundError,
    PartitionReleasedError,
    ProducerFailedError,
    ShuffleClosedError,
    ShuffleTimeoutError,
)
from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent
from broker.client.shuffle.reading.input_channel import InputChannel
from broker.client.shuffle.writing.partition_writer import Bytes, PartitionWriter, partition_type
from broker.runtime.clock import SystemClock
from broker.runtime.threads import Condition, Lock
from protocol.shuffle import events
from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM, IS_BUFFER, IS_PARTIAL_RECORD, DataType
from protocol.shuffle.generation import Generation
from protocol.shuffle.ids import IndexSet, ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType, WriterErrorCode

if TYPE_CHECKING:
    from broker.client.shuffle.reading.input_gate import InputGate

_monotonic = SystemClock.monotonic


class _Stored(NamedTuple):
    data_type: DataType
    compressed: bool
    payload: bytes


class _Partition:
    """A partition and its lock."""

    def __init__(self, id: ResultPartitionID, subpartitions: int, type: PartitionType, buffers: int) -> None:
        self.id = id
        self.type = type
        self.buffers = buffers  # of a pipelined subpartition that may wait
        self.changed = Condition()
        self.stored: list[deque[_Stored] | list[_Stored]] = [
            deque() if type is PartitionType.PIPELINED else [] for _ in range(subpartitions)
        ]
        self.gone = [False] * subpartitions  # nobody reads it (any more): what is pushed is dropped
        self.readers: list[LocalInputChannel | None] = [None] * subpartitions  # of a pipelined one
        self.listeners: list[LocalInputChannel] = []
        self.finished = False
        self.released = False
        self.failure: str | None = None
        self.writer: LocalWriter | None = None

    @property
    def is_pipelined(self) -> bool:
        return self.type is PartitionType.PIPELINED


class LocalExchange:
    """Where writers and gates of one process find each other. ``buffers``: how many a pipelined subpartition may hold."""

    def __init__(self, buffers: int = 16) -> None:
        self._buffers = buffers
        self._lock = Lock()
        self._partitions: dict[ResultPartitionID, _Partition] = {}
        self._waiting: dict[ResultPartitionID, list[LocalInputChannel]] = {}

    def writer(
        self,
        partition: ResultPartitionID | bytes | str,
        subpartitions: int,
        type: PartitionType | str = PartitionType.PIPELINED,
        *,
        generation: Generation | str = Generation.V2_0,
    ) -> "LocalWriter":
        """For a new partition."""
        from broker.client.shuffle.reading.input_gate import partition_id

        return LocalWriter(self, partition_id(partition), subpartitions, partition_type(type), generation)

    def release(self, partition: ResultPartitionID) -> bool:
        """Forget a partition; a writer that is still at it fails. False if there is none."""
        with self._lock:
            found = self._partitions.pop(partition, None)
        if found is None:
            return False
        with found.changed:
            found.released = True
            found.changed.notify_all()
            readers = found.listeners[:]
        for reader in readers:
            reader.news()
        return True

    def _create(self, partition: _Partition) -> None:
        with self._lock:
            if partition.id in self._partitions:
                raise PartitionExistsError(
                    f"partition {partition.id} is there already", WriterErrorCode.EXISTS_WITH_OTHER_SHAPE
                )
            self._partitions[partition.id] = partition
            waiting = self._waiting.pop(partition.id, [])
        for channel in waiting:
            channel.found(partition)

    def _forget(self, partition: _Partition) -> None:
        with self._lock:
            if self._partitions.get(partition.id) is partition:
                del self._partitions[partition.id]

    def _find(self, channel: "LocalInputChannel") -> _Partition | None:
        """The partition, or None: then the channel is told when it is there."""
        with self._lock:
            found = self._partitions.get(channel.partition)
            if found is None:
                self._waiting.setdefault(channel.partition, []).append(channel)
            return found

    def _wait_no_more(self, channel: "LocalInputChannel") -> bool:
        with self._lock:
            waiting = self._waiting.get(channel.partition, [])
            if channel not in waiting:
                return False
            waiting.remove(channel)
            if not waiting:
                del self._waiting[channel.partition]
            return True


class LocalWriter(PartitionWriter):
    """Made by ``LocalExchange.writer``."""

    def __init__(
        self,
        exchange: LocalExchange,
        partition: ResultPartitionID,
        subpartitions: int,
        kind: PartitionType,
        generation: Generation | str,
    ) -> None:
        super().__init__(partition, subpartitions, kind, generation)
        self._exchange = exchange
        self._partition = _Partition(partition, subpartitions, kind, exchange._buffers)
        self._opened = False
        self._closed = False
        self._error: Exception | None = None  # what a callback has raised

    def open(self, timeout: float | None = None) -> None:
        if not self._opened:
            self._partition.writer = self
            self._exchange._create(self._partition)
            self._opened = True

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
            full = partition.is_pipelined and len(partition.stored[subpartition]) >= partition.buffers
            return not full or partition.gone[subpartition]

    def _push(
        self, subpartition: int, payload: Bytes, data_type: DataType, compressed: bool, deadline: float | None
    ) -> bool:
        partition = self._partition
        with partition.changed:
            self._check()
            stored = partition.stored[subpartition]
            if partition.is_pipelined and IS_BUFFER[data_type] and not partition.gone[subpartition]:
                while len(stored) >= partition.buffers and not partition.gone[subpartition]:
                    patience = None if deadline is None else deadline - _monotonic()
                    if patience is not None and patience <= 0:
                        return False
                    partition.changed.wait(patience)
                    self._check()
            if partition.gone[subpartition]:
                return True
            stored.append(_Stored(data_type, compressed, bytes(payload)))
            reader = partition.readers[subpartition]
        if reader is not None:
            reader.news()
        return True

    def _check(self) -> None:
        partition = self._partition
        if self._error is not None:
            raise self._error
        if self._closed or not self._opened:
            raise ShuffleClosedError("the writer is not open")
        if partition.released:
            raise PartitionReleasedError(f"partition {partition.id} was released", WriterErrorCode.RELEASED)
        if partition.finished or partition.failure is not None:
            raise PartitionFinishedError(f"partition {partition.id} is finished", WriterErrorCode.FINISHED_ALREADY)

    @property
    def finished(self) -> bool:
        return self._partition.finished

    def commit(self, timeout: float | None = None) -> None:
        with self._partition.changed:
            self._check()
            self._partition.finished = True
            readers = self._partition.listeners[:]
        for reader in readers:
            reader.news()

    def fail(self, reason: str) -> None:
        partition = self._partition
        with partition.changed:
            if partition.finished or partition.failure is not None or not self._opened:
                return
            self._gave_up = True
            partition.failure = reason
            readers = partition.listeners[:]
            partition.changed.notify_all()
        for reader in readers:
            reader.news()

    def tell_user(self, callback: Callable[..., None] | None, *news: object) -> None:
        """On a reader's thread: what the callback raises is the writer's error, not the reader's."""
        if callback is None:
            return
        try:
            callback(*news)
        except Exception as error:
            if self._error is None:
                self._error = error
            self.fail(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Unlike on a broker nobody can go on with an unfinished partition: it has failed then."""
        if not self._closed and self._opened:
            self.fail("the writer was closed before it had finished")
        self._closed = True


class LocalInputChannel(InputChannel):
    """A channel of a gate that reads from a ``LocalExchange``."""

    def __init__(
        self,
        gate: "InputGate",
        index: int,
        partition: ResultPartitionID,
        subpartitions: IndexSet,
        exchange: LocalExchange,
    ) -> None:
        super().__init__(gate, index, partition, subpartitions)
        self._exchange = exchange
        self._found: _Partition | None = None
        self._error: Exception | None = None
        self._error_given = False
        self._released = False
        self._waits = False  # for ``resume``
        self._sequence = 0
        self._current = 0  # of our subpartitions, which one is read
        self._positions = [0] * subpartitions.size  # in a blocking one

    # -- without the gate's lock ----------------------------------------------------------------------------------

    def request(self) -> None:
        loop = self.gate.loop
        found = self._exchange._find(self)
        if found is not None:
            self.found(found)
        else:
            loop.call(self._be_patient)

    def _be_patient(self) -> None:
        loop = self.gate.loop
        loop.at(loop.now() + self.gate.partition_wait, self._too_late)

    def _too_late(self) -> None:
        if self._exchange._wait_no_more(self):
            self._fail(PartitionNotFoundError(f"Partition {self.partition} not found."))

    def found(self, partition: _Partition) -> None:
        error: Exception | None = None
        with partition.changed:
            if self.subpartitions.end >= len(partition.stored):
                error = PartitionNotFoundError(
                    f"partition {self.partition} has {len(partition.stored)} subpartitions, not {self.subpartitions}"
                )
            elif partition.is_pipelined and any(
                partition.readers[index] is not None or partition.gone[index] for index in self.subpartitions.indices
            ):
                error = PartitionNotFoundError(
                    f"subpartitions {self.subpartitions} of the pipelined partition {self.partition} are read already"
                )
            else:
                self._found = partition
                partition.listeners.append(self)
                for index in self.subpartitions.indices:
                    partition.readers[index] = self
        if error is not None:
            self._fail(error)
        else:
            self.news()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.news()

    def news(self) -> None:
        """Something was pushed, or the state has changed."""
        with self.gate.lock:
            if not (self.in_line or self._released):
                self.gate.available(self)

    # -- with the gate's lock -------------------------------------------------------------------------------------

    def next(self) -> BufferOrEvent | Exception | None:
        partition = self._found
        if self._released:
            return None
        if partition is None or self._error is not None:
            return self._give_error()
        with partition.changed:
            if self._waits or (not partition.is_pipelined and not partition.finished and partition.failure is None):
                return None
            if partition.failure is not None and not partition.is_pipelined:
                return self._failed(partition)
            stored = self._take(partition)
            if stored is None:
                return self._failed(partition)
        self._waits = IS_BLOCKING_UPSTREAM[stored.data_type]
        sequence, self._sequence = self._sequence, self._sequence + 1
        subpartition = self.subpartitions.start + self._current
        if not IS_PARTIAL_RECORD[stored.data_type]:
            self._current = (self._current + 1) % self.subpartitions.size
        return BufferOrEvent(
            self.index, subpartition, sequence, stored.data_type, stored.payload, stored.compressed, None, None
        )

    def _take(self, partition: _Partition) -> _Stored | None:
        """From the subpartition that is read now; if it has nothing, from the next that has."""
        size = self.subpartitions.size
        for _ in range(size):
            index = self.subpartitions.start + self._current
            stored = partition.stored[index]
            if isinstance(stored, deque):
                if stored:
                    if len(stored) == partition.buffers:
                        partition.changed.notify_all()
                    return stored.popleft()
            elif self._positions[self._current] < len(stored):
                self._positions[self._current] += 1
                return stored[self._positions[self._current] - 1]
            self._current = (self._current + 1) % size
        return None

    def _failed(self, partition: _Partition) -> Exception | None:
        if partition.failure is not None:
            self._error = ProducerFailedError(partition.failure)
        elif partition.released:
            self._error = PartitionNotFoundError(f"Partition {self.partition} not found.")
        return self._give_error()

    def _give_error(self) -> Exception | None:
        if self._error_given:
            return None
        self._error_given = self._error is not None
        return self._error

    def has_next(self) -> bool:
        partition = self._found
        if self._released or self._waits:
            return False
        if partition is None or self._error is not None:
            return self._error is not None and not self._error_given
        with partition.changed:
            if partition.failure is not None or partition.released:
                return not self._error_given
            if partition.is_pipelined:
                return any(partition.stored[index] for index in self.subpartitions.indices)
            return partition.finished and any(
                position < len(partition.stored[self.subpartitions.start + number])
                for number, position in enumerate(self._positions)
            )

    def resume(self) -> None:
        self._waits = False
        if not self.in_line and self.has_next():
            self.gate.available(self)

    def send_event(self, event: bytes) -> None:
        writer = self._writer()
        if writer is not None:
            index = self.subpartitions.start if self.subpartitions.size == 1 else -1
            writer.tell_user(writer.on_task_event, events.parse_or_keep(event), index)

    def acknowledge_all(self) -> None:
        writer = self._writer()
        if writer is not None:
            for index in self.subpartitions.indices:
                writer.tell_user(writer.on_all_processed, index)

    def announce_buffer_size(self, size: int) -> None:
        writer = self._writer()
        if writer is not None:
            for index in self.subpartitions.indices:
                writer.tell_user(writer.on_buffer_size, index, size)

    def _writer(self) -> LocalWriter | None:
        return None if self._found is None else self._found.writer

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self._exchange._wait_no_more(self)
        partition = self._found
        if partition is None:
            return
        with partition.changed:
            if self in partition.listeners:
                partition.listeners.remove(self)
            if partition.is_pipelined:
                self._consumed(partition, self.subpartitions.indices)
        if partition.is_pipelined and all(partition.gone):
            self._exchange._forget(partition)

    def _consumed(self, partition: _Partition, indices: Sequence[int]) -> None:
        for index in indices:
            partition.gone[index] = True
            partition.stored[index] = deque()
        partition.changed.notify_all()
