"""All result partitions of this broker: found by their id, waited for, raced for, expired.

Any thread may call; one lock for the tables, never held while a partition's own is taken by somebody who wants this one.
Several attempts of one producer may write; the first that finishes a BLOCKING partition has won, the others are released.

A data set that was released as a whole stays released: who releases it cannot know of all that are about to write to it, such as
tasks of a job that was cancelled.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING

import attrs

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from broker.shuffle.partition.budget import PARTITION_BYTES, PLACE_BYTES, Budget, NoRoom
from broker.shuffle.partition.result_partition import FINISHED, OPEN, ResultPartition
from broker.shuffle.serving.acknowledgement import Soon
from broker.shuffle.serving.view import View
from broker.shuffle.spill.spiller import Spiller
from protocol.shuffle.ids import PARTITION_ID_BYTES, ResultPartitionID
from protocol.shuffle.writer_frames import (
    OpenPartition,
    PartitionInfo,
    PartitionState,
    WriterErrorCode,
)

if TYPE_CHECKING:
    from broker.shuffle.serving.writers import Writers

log = get_logger("shuffle")

_HEX = re.compile("[0-9a-f]*")
# How many released data sets are remembered, the last ones: some 150 bytes each.
_RELEASED_DATA_SETS_MAX = 16_384


class Refused(Exception):
    """What a writer asked for is not possible."""

    def __init__(self, code: WriterErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen(kw_only=True)
class PartitionSettings:
    request_timeout_s: float  # how long a reader waits for a partition to come
    retention_s: float  # of a pipelined partition whose reader was lost; 0 = as Flink: it counts as read
    pipelined_bytes: int  # of a pipelined partition that its readers have not been sent
    ttl_s: float  # of a finished blocking partition
    writer_retention_s: float  # of a partition whose writer was lost


@attrs.define(eq=False)
class Waiting:
    """A reader that waits for a partition. ``found(None)``: it did not come in time. On any thread."""

    found: Callable[[ResultPartition | None], None]
    timer: TimerHandle | None = None


class _Deadline(Enum):
    """What a partition may be waiting for."""

    WRITER = auto()  # a lost writer to come back
    READER = auto()  # another reader in place of a lost one
    END = auto()  # nothing any more


class Partitions:
    def __init__(
        self, settings: PartitionSettings, budget: Budget, spiller: Spiller, clock: Clock, timer: Timer
    ) -> None:
        self.settings = settings
        self.budget = budget
        self._spiller = spiller
        self._clock = clock
        self._timer = timer
        self.acknowledgements = Soon(clock, timer)  # of writers
        self._lock = Lock()
        self._by_id: dict[bytes, ResultPartition] = {}
        self._winners: dict[bytes, ResultPartitionID] = {}  # by producer key
        self._waiting: dict[bytes, list[Waiting]] = {}
        self._first_told = 0
        self._deadlines: dict[tuple[ResultPartition, _Deadline], TimerHandle] = {}
        self._released_data_sets: dict[bytes, None] = {}  # the latest last
        spiller.on_room = self.room

    def load(self) -> None:
        """At the start: take up what an earlier broker has finished."""
        for found, left_s in self._spiller.load(self.budget, self.settings.ttl_s):
            self._by_id[found.id] = found
            self._winners[found.id.producer_key] = found.id
            self._expire_in(found, left_s)

    def close(self) -> None:
        """Forget everything, when nobody serves any more; what is finished and blocking stays on disk."""
        with self._lock:
            deadlines, self._deadlines = self._deadlines, {}
            waiting, self._waiting = self._waiting, {}
            partitions, self._by_id = self._by_id, {}
            self._winners = {}
        for handle in deadlines.values():
            handle.cancel()
        for readers in waiting.values():
            for reader in readers:
                if reader.timer is not None:
                    reader.timer.cancel()
        for partition in partitions.values():
            partition.release()

    # -- writers ------------------------------------------------------------------------------------------------------

    def open(self, wanted: OpenPartition) -> ResultPartition:
        """A new partition, or the one that this writer may take over. Raises Refused."""
        with self._lock:
            winner = self._winners.get(wanted.partition.producer_key)
            if winner is not None and winner != wanted.partition:
                raise Refused(WriterErrorCode.ANOTHER_ATTEMPT_WON, f"attempt {winner.attempt} has finished")
            found = self._by_id.get(wanted.partition)
            if found is None:
                if wanted.partition.data_set in self._released_data_sets:
                    raise Refused(
                        WriterErrorCode.RELEASED, f"the data set {wanted.partition.data_set.hex()} was released"
                    )
                structure = PARTITION_BYTES + PLACE_BYTES * wanted.subpartitions
                try:
                    if not self.budget.admit(wanted.owner, structure):
                        raise Refused(
                            WriterErrorCode.QUOTA_EXCEEDED,
                            f"{wanted.owner or 'nobody'} has {self.budget.owned(wanted.owner)} bytes",
                        )
                except NoRoom as error:
                    raise Refused(
                        WriterErrorCode.STORAGE_ERROR,
                        f"no room for another partition (shuffle_memory_bytes): {error}; release some",
                    ) from None
                found = ResultPartition(
                    wanted.partition,
                    wanted.type,
                    wanted.subpartitions,
                    self.budget,
                    wanted.owner,
                    wanted.writer,
                    retains=self.settings.retention_s > 0,
                    unsent_max=self.settings.pipelined_bytes,
                )
                found.structure = structure
                found.ttl_ms = wanted.ttl_ms
                self._by_id[wanted.partition] = found
                self._spiller.add(found)
                waiting = self._waiting.pop(wanted.partition, []) if found.readable else []
            else:
                self._check_resume(found, wanted)
                waiting = []
        self._tell(waiting, found)
        return found

    def writer_came(self, partition: ResultPartition) -> None:
        """It has been taken over: nobody is waited for any more."""
        self._cancel(partition, _Deadline.WRITER)

    def _check_resume(self, found: ResultPartition, wanted: OpenPartition) -> None:
        if found.kind is not wanted.type or len(found.subpartitions) != wanted.subpartitions:
            raise Refused(
                WriterErrorCode.EXISTS_WITH_OTHER_SHAPE,
                f"{wanted.partition} is {found.kind.name} with {len(found.subpartitions)} subpartitions",
            )
        if found.state is FINISHED:  # whoever asks: after a restart of the broker nobody knows who the writer was
            raise Refused(WriterErrorCode.FINISHED_ALREADY, f"{wanted.partition} is finished")
        if found.state is not OPEN:
            raise Refused(WriterErrorCode.RELEASED, found.failure or f"{wanted.partition} was released")
        if found.writer != wanted.writer:
            raise Refused(WriterErrorCode.EXISTS_WITH_OTHER_SHAPE, f"{wanted.partition} belongs to another writer")

    def finish(self, partition: ResultPartition, done: Callable[[Refused | None], None]) -> None:
        """``done(None)`` when it is finished and, if it is BLOCKING, on disk; on any thread."""
        try:
            partition.count_all()  # each gets an end
        except NoRoom as error:
            text = f"no room for the ends of all subpartitions (shuffle_memory_bytes): {error}"
            self._give_way(partition)
            done(Refused(WriterErrorCode.STORAGE_ERROR, text))
            self.fail(partition, text)
            return
        if partition.pipelined:
            self._finish_pipelined(partition, done)
            return
        with self._lock:
            known = self._by_id.get(partition.id) is partition
            winner = self._winners.get(partition.id.producer_key)
            if known and winner is None:  # a claim of one that is gone would never be taken back
                winner = self._winners[partition.id.producer_key] = partition.id
        if winner is None:
            done(Refused(WriterErrorCode.RELEASED, f"{partition.id} was released"))
            return
        if winner != partition.id:
            self._release(partition)
            done(Refused(WriterErrorCode.ANOTHER_ATTEMPT_WON, f"attempt {winner.attempt} has finished"))
            return
        self._spiller.finish(partition, partial(self._stored, partition, done))

    def _finish_pipelined(
        self, partition: ResultPartition, done: Callable[[Refused | None], None], begin: int = 0
    ) -> None:
        following = partition.end_subpartitions(begin)
        if following:
            self.soon(partial(self._finish_pipelined, partition, done, following))
        elif partition.finish():
            self._expire_in(partition, self._ttl_s(partition))
            # The other readers come to their end, but who wrote it must know that one does not.
            lost = Refused(WriterErrorCode.RELEASED, "a reader was lost before it had all")
            done(lost if partition.forsaken else None)
        elif partition.unwanted:
            done(None)
        else:
            done(Refused(WriterErrorCode.RELEASED, f"{partition.id} was released"))

    def _stored(
        self, partition: ResultPartition, done: Callable[[Refused | None], None], error: OSError | None
    ) -> None:
        """On the spiller's thread."""
        if error is not None:
            log.error("partition_not_stored", partition=str(partition.id), error=str(error))
            self._give_way(partition)  # before the writer hears of it: its next attempt may win
            done(Refused(WriterErrorCode.STORAGE_ERROR, str(error)))
            self.fail(partition, f"the broker could not store the partition: {error}")
            return
        if not partition.finish():
            done(Refused(WriterErrorCode.RELEASED, f"{partition.id} was released"))
            return
        key = partition.id.producer_key
        with self._lock:
            waiting = self._waiting.pop(partition.id, [])
            losers = [other for other in self._by_id.values() if other.id[:56] == key and other is not partition]
        self._expire_in(partition, self._ttl_s(partition))
        done(None)
        self._tell(waiting, partition)
        for loser in losers:
            self._release(loser)

    def _give_way(self, partition: ResultPartition) -> None:
        """It has not won, whatever it claimed."""
        with self._lock:
            if self._winners.get(partition.id.producer_key) == partition.id:
                del self._winners[partition.id.producer_key]

    def lost_race(self, partition_id: ResultPartitionID) -> bool:
        """Another attempt has finished."""
        winner = self._winners.get(partition_id.producer_key)
        return winner is not None and winner != partition_id

    def room(self) -> None:
        """From the spiller: memory or disk has been freed."""
        with self._lock:
            partitions = list(self._by_id.values())
            # The first ones may take all of it, so each time others are first.
            self._first_told = (self._first_told + 1) % max(1, len(partitions))
            first = self._first_told
        for partition in islice(cycle(partitions), first, first + len(partitions)):
            partition.room()

    def fail(self, partition: ResultPartition, message: str, epoch: int | None = None) -> bool:
        """The producer has failed, or is lost for good. ``epoch``, and False: see ``ResultPartition.fail``."""
        if not partition.fail(message, epoch):
            return False
        self._give_way(partition)
        with self._lock:
            waiting = self._waiting.pop(partition.id, [])
        self._spiller.remove(partition)
        partition.tell_writer(partial(_gone, partition))
        self._tell(waiting, partition)
        # Late readers are told why for as long as they might come.
        self._expire_in(partition, self.settings.writer_retention_s)
        return True

    def writer_lost(self, partition: ResultPartition) -> None:
        """Its connection is gone: the writer may come back within the retention."""
        if partition.state is OPEN and not partition.finishing:
            self._at(partition, _Deadline.WRITER, self.settings.writer_retention_s, self._writer_gone)

    def _writer_gone(self, partition: ResultPartition) -> None:
        # It may have come back while the old connection was still being noticed as lost, and may come this moment.
        epoch = partition.epoch
        if partition.state is OPEN and not partition.finishing and partition.call_writer is None:
            self.fail(partition, "the producer has lost its connection and has not come back", epoch)

    # -- readers ------------------------------------------------------------------------------------------------------

    def find(self, partition_id: ResultPartitionID) -> ResultPartition | None:
        """If it can be read now."""
        found = self._by_id.get(partition_id)
        return found if found is not None and found.readable else None

    def wait(self, partition_id: ResultPartitionID, waiting: Waiting) -> None:
        """``waiting.found`` is called once: now or later, on any thread."""
        with self._lock:
            partition = self._by_id.get(partition_id)
            if partition is None or not partition.readable:
                self._waiting.setdefault(partition_id, []).append(waiting)
                deadline = self._clock.monotonic() + self.settings.request_timeout_s
                waiting.timer = self._timer.at(deadline, partial(self._waited_enough, partition_id, waiting))
                return
        waiting.found(partition)

    def stop_waiting(self, partition_id: ResultPartitionID, waiting: Waiting) -> bool:
        """False if it was too late: ``found`` has been or is being called."""
        with self._lock:
            readers = self._waiting.get(partition_id, [])
            if waiting not in readers:
                return False
            readers.remove(waiting)
            if not readers:
                del self._waiting[partition_id]
        if waiting.timer is not None:
            waiting.timer.cancel()
        return True

    def _waited_enough(self, partition_id: ResultPartitionID, waiting: Waiting) -> None:
        if self.stop_waiting(partition_id, waiting):
            waiting.found(None)

    def _tell(self, waiting: list[Waiting], partition: ResultPartition) -> None:
        for reader in waiting:
            if reader.timer is not None:
                reader.timer.cancel()
            reader.found(partition)

    def end_view(self, view: View, complete: bool) -> None:
        """A reader is gone; see ``View.close``. One of many subpartitions is closed in steps, on the timer's thread."""
        if view.close(complete):
            self._reader_gone(view.partition, lost=not complete)
        else:
            self.soon(partial(self.end_view, view, complete))

    def soon(self, work: Callable[[], None]) -> None:
        """Go on with something long, after what others wait for; on the timer's thread."""
        self._timer.at(self._clock.monotonic(), work)

    def _reader_gone(self, partition: ResultPartition, lost: bool) -> None:
        partition.room()  # what it was behind with holds nobody back any more
        with partition.lock:
            all_read = partition.read_by_all
        if all_read:
            self._release(partition)
        elif lost and partition.retains:
            self._at(partition, _Deadline.READER, self.settings.retention_s, self._reader_stayed_away)

    def _reader_stayed_away(self, partition: ResultPartition) -> None:
        if partition.give_up_lost():
            self._release(partition)

    # -- the end ------------------------------------------------------------------------------------------------------

    def release(self, partition_id: ResultPartitionID) -> bool:
        """Forget it. False if there is none."""
        partition = self._by_id.get(partition_id)
        return partition is not None and self._release(partition)

    def release_data_set(self, data_set: bytes) -> int:
        """Forget all partitions whose ids begin so, and refuse more of them. How many there were."""
        with self._lock:
            self._released_data_sets.pop(data_set, None)
            self._released_data_sets[data_set] = None
            if len(self._released_data_sets) > _RELEASED_DATA_SETS_MAX:
                del self._released_data_sets[next(iter(self._released_data_sets))]
            partitions = [found for found in self._by_id.values() if found.id.startswith(data_set)]
        return sum(map(self._release, partitions))

    def _release(self, partition: ResultPartition) -> bool:
        with self._lock:
            if self._by_id.get(partition.id) is not partition:
                return False  # released already; there may be another one of that name
            del self._by_id[partition.id]
            if self._winners.get(partition.id.producer_key) == partition.id:
                del self._winners[partition.id.producer_key]
            waiting = self._waiting.pop(partition.id, [])
        for deadline in _Deadline:
            self._cancel(partition, deadline)
        partition.release()
        self._spiller.remove(partition)
        if not partition.read_to_end:
            partition.tell_writer(partial(_gone, partition))
        for reader in waiting:
            if reader.timer is not None:
                reader.timer.cancel()
            reader.found(None)
        return True

    def list(self, prefix: str) -> list[PartitionInfo]:
        """Those whose hex digits begin with ``prefix``, in their order. For a whole id the others are not looked at: that is how
        a writer asks whether the broker still answers."""
        with self._lock:
            if len(prefix) == 2 * PARTITION_ID_BYTES:
                one = self._by_id.get(bytes.fromhex(prefix)) if _HEX.fullmatch(prefix) else None
                found = [] if one is None else [one]
            else:
                found = sorted(self._by_id.values(), key=lambda partition: partition.id)
        return [
            PartitionInfo(
                partition.id,
                partition.kind,
                PartitionState(partition.state),
                len(partition.subpartitions),
                partition.memory + partition.disk,
                partition.buffers,
                len(partition.views),
            )
            for partition in found
            if partition.id.hex().startswith(prefix)
        ]

    def _ttl_s(self, partition: ResultPartition) -> float:
        return self.settings.ttl_s if partition.ttl_ms < 0 else partition.ttl_ms / 1000

    def _expire_in(self, partition: ResultPartition, seconds: float) -> None:
        self._at(partition, _Deadline.END, seconds, self._expire)

    def _expire(self, partition: ResultPartition) -> None:
        if partition.views:  # it is being read: not under somebody's hands
            self._expire_in(partition, max(1.0, self._ttl_s(partition)))
        else:
            self._release(partition)

    def _at(
        self, partition: ResultPartition, what: _Deadline, seconds: float, callback: Callable[[ResultPartition], object]
    ) -> None:
        """Have ``callback(partition)`` called then, instead of what was set for the same reason before."""
        key = partition, what

        def due() -> None:
            with self._lock:
                if self._deadlines.get(key) is not handle:
                    return  # another one was set meanwhile, or it was called off
                del self._deadlines[key]
            callback(partition)

        with self._lock:
            if self._by_id.get(partition.id) is not partition:
                return  # released meanwhile
            before = self._deadlines.get(key)
            # With the lock held: it may be due at once, and looks for itself in the table.
            handle = self._deadlines[key] = self._timer.at(self._clock.monotonic() + seconds, due)
        if before is not None:
            before.cancel()

    def _cancel(self, partition: ResultPartition, what: _Deadline) -> None:
        with self._lock:
            handle = self._deadlines.pop((partition, what), None)
        if handle is not None:
            handle.cancel()


def _gone(partition: ResultPartition, writers: "Writers") -> None:
    writers.gone(partition)
