"""Writes the markers of decided transactions into their partitions, on a thread of its own, and reports when they are durable.

The markers of a transaction are appended one after another and then wait for the flusher together, so that they share its
fsyncs with transactions that end at the same time. A transaction of many partitions is written in parts: each partition takes
an fsync, and other transactions wait only for those of a part.

Where several nodes have the partitions, this thread writes what is this node's part of any node's decisions
(``neighbours.py``), and ends the transaction in the groups that are coordinated here (``pending_offsets.py``).

Tests: tests/kafka/transactions/test_coordinator.py.
"""

from collections.abc import Callable
from functools import partial

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.transactions.transaction import GROUP, Partition
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
    open, because some of the markers may have been written before a crash. ``partitions``: with several nodes also groups.
    ``sender``: of another node's decision."""

    partitions: frozenset[Partition]
    producer_id: int
    epoch: int
    commit: bool
    done: Callable[[frozenset[Partition]], None]
    if_open: bool = False
    sender: "Sender | None" = None


@attrs.frozen
class Sender:
    """The node that has sent a decision, by its name, its epoch, and the number of its connection, among those that this node has
    accepted.

    A node that gets no answer connects again and sends its decision again. Then it may go on with another transaction of the same
    producer, and the first copy must not end that one. So what came by an earlier connection than the latest does not count, nor
    what came from a process whose node another one has by now.
    """

    name: str
    epoch: int
    connection: int


def _no_groups(producer_id: int, group: str, commit: bool, done: Callable[[StorageError | None], None]) -> None:
    raise AssertionError("groups take part only where there are several nodes")


class MarkerWriter(Worker["_Writing"]):
    """The body of the ``marker-writer`` thread. Any thread may call ``write``."""

    def __init__(self, clock: Clock, logs: LogManager, flusher: Flusher) -> None:
        super().__init__(self._write_part)
        self._clock = clock
        self._logs = logs
        self._flusher = flusher
        self._latest: dict[str, tuple[int, int]] = {}  # the latest epoch and connection of each sender
        # ``end_group(producer id, group, commit, done)``: set where there are several nodes.
        self.end_group: Callable[[int, str, bool, Callable[[StorageError | None], None]], None] = _no_groups

    def write(self, markers: Markers) -> None:
        self.submit(_Writing(markers, self.submit))

    def _write_part(self, writing: "_Writing") -> None:
        markers = writing.markers
        written = []
        groups = []
        now_ms = self._clock.time_ms()
        if markers.sender is not None and self._is_late(markers.sender):
            writing.fail_rest()
            return
        for topic, partition in writing.take_part():
            if partition == GROUP:
                groups.append(topic)
                continue
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
        writing.left += len(written) + len(groups)
        for group in groups:
            done = partial(writing.flushed, (group, GROUP))
            self.end_group(markers.producer_id, group, markers.commit, done)
        for target, end in written:
            self._flusher.wait_durable(target, end, partial(writing.flushed, (target.topic, target.partition)))
        writing.finish_one()

    def _is_late(self, sender: Sender) -> bool:
        """Only on this thread, which writes all markers: nothing comes between the answer and the markers of a part."""
        came = sender.epoch, sender.connection
        if came < self._latest.get(sender.name, came):
            return True
        self._latest[sender.name] = came
        return False


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

    def fail_rest(self) -> None:
        self.failed.update(self._rest)
        self._rest.clear()
        self.finish_one()

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
