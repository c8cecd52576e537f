"""A gate's channel that reads a partition of this process.

The channel starts (``reading/input_channel.py``) when its partition exists. It fails if the partition does not appear within
``partition_wait``, cannot be read, is released before it is finished, or if its producer fails.

Tests: tests/client/shuffle/local/test_exchange.py.
"""

from collections import deque

from broker.client.shuffle.errors import PartitionNotFoundError, ProducerFailedError
from broker.client.shuffle.local_exchange import LocalPartition, LocalPartitions, LocalState, Producer, Stored
from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent
from broker.client.shuffle.reading.input_channel import ChannelEvent, ChannelState, Gate, InputChannel, next_state
from protocol.shuffle import events
from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM, IS_PARTIAL_RECORD
from protocol.shuffle.ids import IndexSet, ResultPartitionID


class LocalInputChannel(InputChannel):
    """Reads a partition of the exchange that ``partitions`` belongs to."""

    def __init__(
        self,
        gate: Gate,
        index: int,
        partition: ResultPartitionID,
        subpartitions: IndexSet,
        partitions: LocalPartitions,
    ) -> None:
        super().__init__(gate, index, partition, subpartitions)
        self._partitions = partitions
        self._source: LocalPartition | None = None  # set at START
        self._state = ChannelState.WAITING
        self._error: Exception | None = None  # why the channel failed, until the reader gets it
        self._stopped = False  # by a blocking event, until the reader calls ``resume``
        self._sequence = 0
        self._current = 0  # which of the channel's subpartitions is read now
        self._positions = [0] * subpartitions.size  # the next buffer of each subpartition, if the partition is blocking

    # -- without the gate's lock ----------------------------------------------------------------------------------

    def request(self) -> None:
        source = self._partitions.find(self)
        if source is not None:
            self.partition_found(source)
        else:
            self.gate.loop.call(self._wait_for_partition)

    def _wait_for_partition(self) -> None:
        loop = self.gate.loop
        loop.at(loop.now() + self.gate.partition_wait, self._stop_waiting)

    def _stop_waiting(self) -> None:
        if self._partitions.stop_waiting(self):
            self._fail(PartitionNotFoundError(f"Partition {self.partition} not found."))

    def partition_found(self, partition: LocalPartition) -> None:
        with self.gate.lock:
            if self._state is not ChannelState.WAITING:
                return
            error = self._attach(partition)
            if error is None:
                self._state = next_state(self._state, ChannelEvent.START)
                self._source = partition
        if error is not None:
            self._fail(error)
        else:
            self.news()

    def _attach(self, partition: LocalPartition) -> Exception | None:
        """Register as a reader of the partition. Returns the error if that is impossible, else None."""
        with partition.changed:
            if self.subpartitions.end >= len(partition.stored):
                return PartitionNotFoundError(
                    f"partition {self.partition} has {len(partition.stored)} subpartitions, not {self.subpartitions}"
                )
            indices = self.subpartitions.indices
            if partition.is_pipelined and any(
                partition.readers[index] is not None or partition.abandoned[index] for index in indices
            ):
                return PartitionNotFoundError(
                    f"subpartitions {self.subpartitions} of the pipelined partition {self.partition} had a reader already"
                )
            partition.channels.append(self)
            for index in indices:
                partition.readers[index] = self
        return None

    def _fail(self, error: Exception) -> None:
        with self.gate.lock:
            if self._state >= ChannelState.FAILED:
                return
            self._state = next_state(self._state, ChannelEvent.FAIL)
            self._error = error
        self.news()

    def news(self) -> None:
        """Called when the writer has pushed a buffer or the partition has changed its state."""
        with self.gate.lock:
            if not self.in_line and self._state is not ChannelState.RELEASED:
                self.gate.available(self)

    # -- with the gate's lock -------------------------------------------------------------------------------------

    def next(self) -> BufferOrEvent | Exception | None:
        partition = self._source
        if self._state is not ChannelState.RUNNING or partition is None:
            error, self._error = self._error, None
            return error
        if self._stopped:
            return None
        with partition.changed:
            if not partition.is_pipelined and partition.state is not LocalState.FINISHED:
                return self._source_error(partition)
            stored = self._take(partition)
            if stored is None:
                return self._source_error(partition)
        self._stopped = IS_BLOCKING_UPSTREAM[stored.data_type]
        sequence, self._sequence = self._sequence, self._sequence + 1
        subpartition = self.subpartitions.start + self._current
        if not IS_PARTIAL_RECORD[stored.data_type]:
            self._current = (self._current + 1) % self.subpartitions.size
        return BufferOrEvent(
            self.index, subpartition, sequence, stored.data_type, stored.payload, stored.compressed, None, None
        )

    def _take(self, partition: LocalPartition) -> Stored | None:
        """Take the oldest buffer of the current subpartition, or of the next subpartition that has a buffer."""
        size = self.subpartitions.size
        for _ in range(size):
            index = self.subpartitions.start + self._current
            stored = partition.stored[index]
            if isinstance(stored, deque):
                if stored:
                    if len(stored) == partition.capacity:
                        partition.changed.notify_all()
                    return stored.popleft()
            elif self._positions[self._current] < len(stored):
                self._positions[self._current] += 1
                return stored[self._positions[self._current] - 1]
            self._current = (self._current + 1) % size
        return None

    def _source_error(self, partition: LocalPartition) -> Exception | None:
        """Fail the channel if the partition will give no more buffers. Returns the error, which the reader gets at once."""
        error: Exception
        if partition.state is LocalState.FAILED:
            error = ProducerFailedError(partition.failure)
        elif partition.released:
            error = PartitionNotFoundError(f"Partition {self.partition} not found.")
        else:
            return None
        self._state = next_state(self._state, ChannelEvent.FAIL)
        return error

    def has_next(self) -> bool:
        partition = self._source
        if self._state is not ChannelState.RUNNING or partition is None:
            return self._error is not None
        if self._stopped:
            return False
        with partition.changed:
            if partition.state is LocalState.FAILED or partition.released:
                return True  # at least its error
            if partition.is_pipelined:
                return any(partition.stored[index] for index in self.subpartitions.indices)
            return partition.state is LocalState.FINISHED and any(
                position < len(partition.stored[self.subpartitions.start + number])
                for number, position in enumerate(self._positions)
            )

    def resume(self) -> None:
        self._stopped = False
        if not self.in_line and self.has_next():
            self.gate.available(self)

    def send_event(self, event: bytes) -> None:
        producer = self._producer()
        if producer is not None:
            index = self.subpartitions.start if self.subpartitions.size == 1 else -1
            producer.task_event(events.parse_or_keep(event), index)

    def acknowledge_all(self) -> None:
        producer = self._producer()
        if producer is not None:
            for index in self.subpartitions.indices:
                producer.all_processed(index)

    def announce_buffer_size(self, size: int) -> None:
        producer = self._producer()
        if producer is not None:
            for index in self.subpartitions.indices:
                producer.buffer_size_asked(index, size)

    def _producer(self) -> Producer | None:
        return None if self._source is None else self._source.producer

    def release(self) -> None:
        if self._state is ChannelState.RELEASED:
            return
        self._state = next_state(self._state, ChannelEvent.RELEASE)
        self._error = None
        self._partitions.stop_waiting(self)
        partition = self._source
        if partition is None:
            return
        with partition.changed:
            if self in partition.channels:
                partition.channels.remove(self)
            if partition.is_pipelined:
                partition.abandon(self.subpartitions.indices)
        if partition.is_pipelined and all(partition.abandoned):
            self._partitions.forget(partition)
