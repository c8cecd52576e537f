"""Writes the markers of decided transactions into their partitions, on a thread of its own, and reports when they are durable.

The markers of a transaction are appended one after another and then wait for the flusher together, so that they share its
fsyncs with transactions that end at the same time. A transaction of many partitions is written in parts: each partition takes
an fsync, and other transactions wait only for those of a part.

Tests: tests/kafka/transactions/test_coordinator.py.
"""

from collections.abc import Callable
from functools import partial

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.transactions.transaction import Partition
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.worker import Worker
from broker.storage.log_manager import LogManager
from broker.storage.upkeep.flusher import Flusher

log = get_logger("transactions")

# In Kafka this counts the moves of the coordinator between nodes. This broker is the only coordinator.
COORDINATOR_EPOCH = 0
# Partitions of a transaction whose markers are written and synced before other transactions get a turn.
_PART = 32


@attrs.frozen(eq=False)
class Markers:
    """A request to write markers. ``done`` gets the partitions whose marker is not durable; it is called on the thread that has
    synced the last log, or on the marker writer's, and must not block. ``if_open``: write only where the transaction is still
    open, because some of the markers may have been written before a crash."""

    partitions: frozenset[Partition]
    producer_id: int
    epoch: int
    commit: bool
    done: Callable[[frozenset[Partition]], None]
    if_open: bool = False


class MarkerWriter(Worker["_Writing"]):
    """The body of the ``marker-writer`` thread. Any thread may call ``write``."""

    def __init__(self, clock: Clock, logs: LogManager, flusher: Flusher) -> None:
        super().__init__(self._write_part)
        self._clock = clock
        self._logs = logs
        self._flusher = flusher

    def write(self, markers: Markers) -> None:
        self.submit(_Writing(markers, self.submit))

    def _write_part(self, writing: "_Writing") -> None:
        markers = writing.markers
        written = []
        now_ms = self._clock.time_ms()
        for topic, partition in writing.take_part():
            target = self._logs.get(topic, partition)
            if target is None:  # deleted together with its records
                continue
            try:
                end = target.transactions.append_marker(
                    markers.producer_id,
                    markers.epoch,
                    commit=markers.commit,
                    coordinator_epoch=COORDINATOR_EPOCH,
                    now_ms=now_ms,
                    if_open=markers.if_open,
                )
                written.append((target, end))
            except Refusal:  # deleted a moment ago
                continue
            except StorageError as error:
                log.error("marker_write_failed", topic=topic, partition=partition, error=str(error))
                writing.failed.add((topic, partition))
        writing.left += len(written)
        for target, end in written:
            self._flusher.wait_durable(target, end, partial(writing.flushed, (target.topic, target.partition)))
        writing.finish_one()


class _Writing:
    """Progress of a request. ``left`` counts the outstanding fsyncs of the present part, plus one until the part is written."""

    def __init__(self, markers: Markers, go_on: "Callable[[_Writing], None]") -> None:
        """``go_on`` is called with this object when a part is done and another remains."""
        self.markers = markers
        self._go_on = go_on
        self._rest = sorted(markers.partitions, reverse=True)
        self._lock = Lock()
        self.left = 1
        self.failed: set[Partition] = set()

    def take_part(self) -> list[Partition]:
        part = self._rest[: -_PART - 1 : -1]
        del self._rest[-_PART:]
        return part

    def flushed(self, partition: Partition, error: StorageError | None) -> None:
        if error is not None:
            with self._lock:
                self.failed.add(partition)
        self.finish_one()

    def finish_one(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left:
                return
            self.left = 1
        if self._rest:
            self._go_on(self)
        else:
            self.markers.done(frozenset(self.failed))
