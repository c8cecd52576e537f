"""What result partitions are waiting for, and until when.

Any thread may call; the callbacks run on the timer's thread, without locks.

Tests: tests/shuffle/test_reading.py, tests/shuffle/test_writing.py.
"""

from collections.abc import Callable
from enum import Enum, auto

from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from broker.shuffle.partition.result_partition import ResultPartition


class Deadline(Enum):
    WRITER_RETURN = auto()  # of a writer that was lost
    READER_RETURN = auto()  # of another reader in place of a lost one
    EXPIRY = auto()  # of the partition


class Deadlines:
    """``is_known(partition)``: it has not been released. Asked with this object's lock held, so it must not take another."""

    def __init__(self, clock: Clock, timer: Timer, is_known: Callable[[ResultPartition], bool]) -> None:
        self._clock = clock
        self._timer = timer
        self._is_known = is_known
        self._lock = Lock()
        self._handles: dict[tuple[ResultPartition, Deadline], TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def set(
        self, partition: ResultPartition, what: Deadline, seconds: float, callback: Callable[[ResultPartition], object]
    ) -> None:
        """Call ``callback(partition)`` after ``seconds``, unless the partition is released before.

        This replaces a deadline that was set for the same reason before.
        """
        key = partition, what

        def due() -> None:
            with self._lock:
                if self._handles.get(key) is not handle:
                    return  # replaced or cancelled meanwhile
                del self._handles[key]
            callback(partition)

        with self._lock:
            # `Partitions` first makes a released partition unknown and then cancels its deadlines, so none is left behind.
            if not self._is_known(partition):
                return
            before = self._handles.get(key)
            # With the lock held: the timer's thread may call `due` at once, which looks for its handle in the table.
            handle = self._handles[key] = self._timer.at(self._clock.monotonic() + seconds, due)
        if before is not None:
            before.cancel()

    def cancel(self, partition: ResultPartition, what: Deadline) -> None:
        with self._lock:
            handle = self._handles.pop((partition, what), None)
        if handle is not None:
            handle.cancel()

    def cancel_all(self, partition: ResultPartition) -> None:
        """The partition has been released."""
        for what in Deadline:
            self.cancel(partition, what)

    def close(self) -> None:
        with self._lock:
            handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.cancel()
