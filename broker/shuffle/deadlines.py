"""The deadlines of result partitions, and the readers that wait for a partition that does not exist or cannot be read yet.

Any thread may call. Callbacks of ``Deadlines`` run on the timer's thread, without locks. Each waiting reader is answered once:
with the partition, which may have been released or have failed before it could be read, or with None at its timeout. A reader
without the right to read the partition waits until its timeout.

Tests: tests/shuffle/test_reading.py,
tests/shuffle/test_writing.py.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial

import attrs

from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from broker.shuffle.partition.result_partition import ResultPartition
from protocol.shuffle.ids import ResultPartitionID


class Deadline(Enum):
    WRITER_RETURN = auto()  # for a lost writer to return
    READER_RETURN = auto()  # for another reader to replace a lost reader
    EXPIRY = auto()  # the end of the partition


class Deadlines:
    """``is_known(partition)``: it has not been released. Called with this object's lock held, so it must not take a lock."""

    def __init__(self, clock: Clock, timer: Timer, is_known: Callable[[ResultPartition], bool]) -> None:
        self._clock = clock
        self._timer = timer
        self._is_known = is_known
        self._lock = Lock()
        self._handles: dict[tuple[ResultPartition, Deadline], TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def set(
        self,
        partition: ResultPartition,
        deadline: Deadline,
        seconds: float,
        callback: Callable[[ResultPartition], object],
    ) -> None:
        """Call ``callback(partition)`` after ``seconds``, unless the partition is released first.

        Replaces an earlier deadline of the same kind.
        """
        key = partition, deadline

        def due() -> None:
            with self._lock:
                if self._handles.get(key) is not handle:
                    return  # it was replaced or cancelled meanwhile
                del self._handles[key]
            callback(partition)

        with self._lock:
            # `Partitions` first makes a released partition unknown and then cancels its deadlines, so none remains.
            if not self._is_known(partition):
                return
            before = self._handles.get(key)
            # With the lock held, because the timer's thread may call `due` at once, which looks up its handle.
            handle = self._handles[key] = self._timer.at(self._clock.monotonic() + seconds, due)
        if before is not None:
            before.cancel()

    def cancel(self, partition: ResultPartition, deadline: Deadline) -> None:
        with self._lock:
            handle = self._handles.pop((partition, deadline), None)
        if handle is not None:
            handle.cancel()

    def cancel_all(self, partition: ResultPartition) -> None:
        """The partition has been released."""
        for deadline in Deadline:
            self.cancel(partition, deadline)

    def close(self) -> None:
        with self._lock:
            handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.cancel()


@attrs.define(eq=False)
class WaitingReader:
    """``answer`` is called once, on any thread."""

    answer: Callable[[ResultPartition | None], None]
    timer: TimerHandle | None = None
    deadline: float = 0.0  # Clock.monotonic() s


class WaitingReaders:
    """``find(id)``: the partition if it can be read now. Called with this object's lock held, so it must not take a lock."""

    def __init__(
        self,
        clock: Clock,
        timer: Timer,
        timeout_s: float,
        find: Callable[[ResultPartitionID], ResultPartition | None],
    ) -> None:
        self._clock = clock
        self._timer = timer
        self._timeout_s = timeout_s
        self._find = find
        self._lock = Lock()
        self._waiting: dict[bytes, list[WaitingReader]] = {}

    def __len__(self) -> int:
        """The number of partitions that readers wait for."""
        return len(self._waiting)

    def add(self, partition_id: ResultPartitionID, reader: WaitingReader) -> None:
        """Answer ``reader`` now or later."""
        with self._lock:
            # `Partitions` first makes a partition readable and then takes the waiting readers, so no reader is forgotten.
            partition = self._find(partition_id)
            if partition is None:
                reader.deadline = self._clock.monotonic() + self._timeout_s
                self._add(partition_id, reader)
                return
        reader.answer(partition)

    def hide(self, partition_id: ResultPartitionID, reader: WaitingReader) -> None:
        """Have ``reader`` wait until its timeout for a partition that it may not read. It may have waited before; the caller
        calls this again when the reader is answered with the partition."""
        with self._lock:
            reader.deadline = reader.deadline or self._clock.monotonic() + self._timeout_s
            self._add(partition_id, reader)

    def _add(self, partition_id: ResultPartitionID, reader: WaitingReader) -> None:
        self._waiting.setdefault(partition_id, []).append(reader)
        reader.timer = self._timer.at(reader.deadline, partial(self._timed_out, partition_id, reader))

    def remove(self, partition_id: ResultPartitionID, reader: WaitingReader) -> bool:
        """False if it is too late: ``answer`` has been or is being called."""
        with self._lock:
            readers = self._waiting.get(partition_id, [])
            if reader not in readers:
                return False
            readers.remove(reader)
            if not readers:
                del self._waiting[partition_id]
        if reader.timer is not None:
            reader.timer.cancel()
        return True

    def _timed_out(self, partition_id: ResultPartitionID, reader: WaitingReader) -> None:
        if self.remove(partition_id, reader):
            reader.answer(None)

    def take(self, partition_id: ResultPartitionID) -> list[WaitingReader]:
        """Removes and returns the readers that wait for the partition; the caller answers them (``answer``)."""
        with self._lock:
            return self._waiting.pop(partition_id, [])

    def close(self) -> None:
        """Forget all readers without an answer."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for readers in waiting.values():
            for reader in readers:
                if reader.timer is not None:
                    reader.timer.cancel()


def answer(readers: list[WaitingReader], partition: ResultPartition | None) -> None:
    """Answer readers that were taken with the partition, or None. To be called without locks."""
    for reader in readers:
        if reader.timer is not None:
            reader.timer.cancel()
        reader.answer(partition)
