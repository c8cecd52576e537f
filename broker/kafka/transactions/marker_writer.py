"""Writes the markers of decided transactions into their partitions, on a thread of its own, and sees that they are durable.

Markers of one transaction are appended one after the other and then wait together for the flusher, so that the transactions
that come meanwhile share its fsyncs.
"""

from collections.abc import Callable
from functools import partial

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.transactions.transaction import Partition
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock, QueueEmpty, SimpleQueue
from broker.storage.log_manager import LogManager
from broker.storage.upkeep.flusher import Flusher

log = get_logger("transactions")

# One node has been the coordinator of everything for ever; Kafka counts its changes here.
COORDINATOR_EPOCH = 0


@attrs.frozen(eq=False)
class Markers:
    """``done`` gets the partitions whose marker is not durable, on some thread that must not wait. ``if_open``: nobody knows
    which of them were written before a crash."""

    partitions: frozenset[Partition]
    producer_id: int
    epoch: int
    commit: bool
    done: Callable[[frozenset[Partition]], None]
    if_open: bool = False


class MarkerWriter:
    """The body of the thread. ``write`` may be called from any."""

    def __init__(self, clock: Clock, logs: LogManager, flusher: Flusher) -> None:
        self._clock = clock
        self._logs = logs
        self._flusher = flusher
        self._queue: SimpleQueue[Markers | None] = SimpleQueue()

    def write(self, markers: Markers) -> None:
        self._queue.put(markers)

    def step(self, timeout: float | None) -> bool:
        try:
            markers = self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return False
        if markers is not None:
            self._write(markers)
        return markers is not None

    def wakeup(self) -> None:
        self._queue.put(None)

    def _write(self, markers: Markers) -> None:
        waiting = _Waiting(markers)
        written = []
        now_ms = self._clock.time_ms()
        for topic, partition in sorted(markers.partitions):
            target = self._logs.get(topic, partition)
            if target is None:  # deleted, and its records with it
                continue
            try:
                end = target.append_marker(
                    markers.producer_id,
                    markers.epoch,
                    commit=markers.commit,
                    coordinator_epoch=COORDINATOR_EPOCH,
                    now_ms=now_ms,
                    if_open=markers.if_open,
                )
                written.append((target, end))
            except Refusal:  # deleted just now
                continue
            except StorageError as error:
                log.error("marker_not_written", topic=topic, partition=partition, error=str(error))
                waiting.failed.add((topic, partition))
        waiting.left += len(written)
        for target, end in written:
            self._flusher.wait_durable(target, end, partial(waiting.flushed, (target.topic, target.partition)))
        waiting.one_less()


class _Waiting:
    """How many fsyncs are still to come, and one for the writing itself."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._lock = Lock()
        self.left = 1
        self.failed: set[Partition] = set()

    def flushed(self, partition: Partition, error: StorageError | None) -> None:
        if error is not None:
            with self._lock:
                self.failed.add(partition)
        self.one_less()

    def one_less(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left:
                return
        self._markers.done(frozenset(self.failed))
