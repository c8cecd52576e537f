"""All result partitions of this broker: looked up by id, raced for, stored, expired.

Any thread may call. One lock guards the tables; it is never held together with a partition's lock.

Several attempts of a producer may write; the first that finishes a BLOCKING partition wins, and the others are released. Where
clients have different rights, only the attempts of one owner compete.

A data set released as a whole stays released: the client that releases it cannot know all writers that are about to write to it,
such as tasks of a cancelled job. A released partition stays released for its writer: a writer that lost its connection meanwhile,
and resumes, would otherwise write a new partition without readers.

Tests: tests/shuffle/test_writing.py, tests/shuffle/test_reading.py, tests/shuffle/test_fencing.py.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

import attrs

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.shuffle.deadlines import Deadline, Deadlines, WaitingReaders, answer
from broker.shuffle.partition.budget import PARTITION_BYTES, PLACE_BYTES, Budget, NoRoom
from broker.shuffle.partition.life import LifeState
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.rights import DELETE, DESCRIBE, NOT_AUTHORIZED, WRITE, Rights
from broker.shuffle.serving.view import View
from broker.shuffle.serving.writer_handle import Soon
from broker.shuffle.spill.spiller import Spiller
from protocol.shuffle.ids import PARTITION_ID_BYTES, ResultPartitionID
from protocol.shuffle.writer_frames import (
    OpenPartition,
    PartitionInfo,
    WriterErrorCode,
)

log = get_logger("shuffle")

_HEX = re.compile(f"[0-9a-f]{{0,{2 * PARTITION_ID_BYTES}}}")
# The number of released data sets that are remembered, the latest: some 150 bytes each.
_RELEASED_DATA_SETS_MAX = 16_384
# The number of released partitions that are remembered for resuming writers, the latest: some 300 bytes each.
_RELEASED_PARTITIONS_MAX = 4096
# The number of clients with different rights that are remembered as releasers of a data set, the latest.
_RELEASERS_MAX = 4


class Refused(Exception):
    """A writer's request is not possible."""

    def __init__(self, code: WriterErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen(kw_only=True)
class PartitionSettings:
    request_timeout_s: float  # how long a reader waits for a partition
    retention_s: float  # of a pipelined partition whose reader was lost; 0: as in Flink, it counts as read
    pipelined_bytes: int  # unsent bytes of a pipelined partition
    ttl_s: float  # of a finished blocking partition
    writer_retention_s: float  # of a partition whose writer was lost
    owners_compete: bool = True  # False: an attempt competes only with those of the same owner


@attrs.frozen
class _Released:
    """A released partition, of whose release its ``writer`` may not know."""

    writer: bytes
    readers_left: bool  # the reason

    def refusal(self) -> Refused:
        """The error that the writer would have got if it had been connected."""
        if self.readers_left:
            return Refused(WriterErrorCode.READERS_GONE, "all readers have left")
        return Refused(WriterErrorCode.RELEASED, "the partition was released")


class Partitions:
    def __init__(
        self, settings: PartitionSettings, budget: Budget, spiller: Spiller, clock: Clock, timer: Timer
    ) -> None:
        self.settings = settings
        self.budget = budget
        self._spiller = spiller
        self._clock = clock
        self._timer = timer
        self.acknowledgements = Soon(clock, timer)  # to writers
        self.waiting = WaitingReaders(clock, timer, settings.request_timeout_s, self.find)
        self._deadlines = Deadlines(clock, timer, self.is_known)
        self._lock = Lock()
        self._by_id: dict[bytes, ResultPartition] = {}
        self._ids: list[bytes] = []  # the same ids, sorted: those of a data set, or of a producer, are adjacent
        self._winners: dict[bytes, ResultPartitionID] = {}  # by `_contest`
        self._told_first = 0
        # The rights of its releasers, the latest last; None: of a client that may release everything.
        self._released_data_sets: dict[bytes, tuple[Rights | None, ...]] = {}
        self._released: dict[bytes, _Released] = {}  # by partition id
        spiller.on_room_freed = self.announce_room

    def load(self) -> None:
        """At the broker's start: load the partitions that an earlier broker finished."""
        for partition, left_s in self._spiller.load(self.budget, self.settings.ttl_s):
            self._by_id[partition.id] = partition
            insort(self._ids, partition.id)
            self._winners[self._contest(partition)] = partition.id
            self._expire_in(partition, left_s)

    def close(self) -> None:
        """Drop everything, after serving has ended; finished blocking partitions stay on disk."""
        with self._lock:
            partitions, self._by_id = self._by_id, {}
            self._ids = []
            self._winners = {}
        self._deadlines.close()
        self.waiting.close()
        for partition in partitions.values():
            partition.release()

    def find(self, partition_id: ResultPartitionID) -> ResultPartition | None:
        """The partition if it can be read now. Without the lock."""
        partition = self._by_id.get(partition_id)
        return partition if partition is not None and partition.readable else None

    def is_known(self, partition: ResultPartition) -> bool:
        """It has not been released. Without the lock."""
        return self._by_id.get(partition.id) is partition

    # -- opening ------------------------------------------------------------------------------------------------------

    def open(self, request: OpenPartition, rights: Rights | None = None) -> ResultPartition:
        """A new partition, or an existing partition that this writer may take over. Raises Refused."""
        if rights is not None:
            existing = self._by_id.get(request.partition)
            owners = {request.owner} if existing is None else {request.owner, existing.owner}
            if not all(rights.may(WRITE, owner) for owner in owners):
                raise Refused(WriterErrorCode.NOT_AUTHORIZED, NOT_AUTHORIZED)
        with self._lock:
            winner = self._winners.get(self._contest_of(request.partition, request.owner))
            if winner is not None and winner != request.partition:
                raise Refused(WriterErrorCode.ANOTHER_ATTEMPT_WON, f"attempt {winner.attempt} has finished")
            partition = self._by_id.get(request.partition)
            if partition is not None:
                _check_resume(partition, request)
                return partition
            releasers = self._released_data_sets.get(request.partition.data_set, ())
            if any(releaser is None or releaser.may(DELETE, request.owner, audited=False) for releaser in releasers):
                raise Refused(WriterErrorCode.RELEASED, f"the data set {request.partition.data_set.hex()} was released")
            released = self._released.get(request.partition)
            if released is not None and request.resumes and released.writer == request.writer:
                raise released.refusal()
            partition = self._new(request)
            self._released.pop(request.partition, None)
            self._spiller.add(partition)
            self._by_id[request.partition] = partition
            insort(self._ids, request.partition)
            waiting = self.waiting.take(partition.id) if partition.readable else []
        answer(waiting, partition)
        return partition

    def _new(self, request: OpenPartition) -> ResultPartition:
        """Raises Refused."""
        structure = PARTITION_BYTES + PLACE_BYTES * request.subpartitions
        try:
            admitted = self.budget.admit(request.owner, structure)
        except NoRoom as error:
            raise Refused(
                WriterErrorCode.STORAGE_ERROR,
                f"no room for another partition (shuffle_memory_bytes): {error}; release some",
            ) from None
        if not admitted:
            raise Refused(
                WriterErrorCode.QUOTA_EXCEEDED,
                f"{request.owner or 'nobody'} has {self.budget.owned(request.owner)} bytes",
            )
        return ResultPartition(
            request.partition,
            request.type,
            request.subpartitions,
            self.budget,
            request.owner,
            request.writer,
            retains=self.settings.retention_s > 0,
            unsent_max=self.settings.pipelined_bytes,
            ttl_ms=request.ttl_ms,
            structure=structure,
        )

    def writer_came(self, partition: ResultPartition) -> None:
        """A writer has taken over the partition: stop waiting for the lost writer."""
        self._deadlines.cancel(partition, Deadline.WRITER_RETURN)

    # -- finishing ----------------------------------------------------------------------------------------------------

    def finish(self, partition: ResultPartition, done: Callable[[Refused | None], None]) -> None:
        """Call ``done(None)``, on any thread, once it is finished and, if BLOCKING, on disk; otherwise ``done(error)``."""
        try:
            partition.charge_all()  # each subpartition gets an end
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
            winner = self._winners.get(self._contest(partition))
            # A released partition must not claim to have won: nothing would take the claim back.
            if winner is None and self.is_known(partition):
                winner = self._winners[self._contest(partition)] = partition.id
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
            # The other readers reach the end, but the writer must know of the lost reader.
            lost = Refused(WriterErrorCode.RELEASED, "a reader was lost before it had all")
            done(lost if partition.readers.forsaken else None)
        elif partition.life in (LifeState.CANCELLED, LifeState.CONSUMED):
            done(None)
        else:
            done(Refused(WriterErrorCode.RELEASED, f"{partition.id} was released"))

    def _stored(
        self, partition: ResultPartition, done: Callable[[Refused | None], None], error: OSError | None
    ) -> None:
        """On the spiller's thread."""
        if error is not None:
            log.error("partition_store_failed", partition=str(partition.id), error=str(error))
            self._give_way(partition)  # before the writer is told: its next attempt may win
            done(Refused(WriterErrorCode.STORAGE_ERROR, str(error)))
            self.fail(partition, f"the broker could not store the partition: {error}")
            return
        if not partition.finish():
            done(Refused(WriterErrorCode.RELEASED, f"{partition.id} was released"))
            return
        key, owner = partition.id.producer_key, partition.owner
        with self._lock:
            waiting = self.waiting.take(partition.id)
            losers = [
                other
                for other in self._of(*_range(key.hex()))
                if (other.owner == owner or self.settings.owners_compete) and other is not partition
            ]
        self._expire_in(partition, self._ttl_s(partition))
        done(None)
        answer(waiting, partition)
        for loser in losers:
            self._release(loser)

    def _contest(self, partition: ResultPartition) -> bytes:
        return self._contest_of(partition.id, partition.owner)

    def _contest_of(self, partition_id: ResultPartitionID, owner: str) -> bytes:
        """The key that competing attempts, and no others, have in common."""
        key = partition_id.producer_key
        return key if self.settings.owners_compete else key + owner.encode()

    def _give_way(self, partition: ResultPartition) -> None:
        """Withdraw the partition's claim to have won."""
        with self._lock:
            if self._winners.get(self._contest(partition)) == partition.id:
                del self._winners[self._contest(partition)]

    def lost_race(self, partition: ResultPartition) -> bool:
        """Another attempt has finished."""
        winner = self._winners.get(self._contest(partition))
        return winner is not None and winner != partition.id

    # -- failing ------------------------------------------------------------------------------------------------------

    def fail(self, partition: ResultPartition, message: str, epoch: int | None = None) -> bool:
        """The producer has failed, or is lost for good. ``epoch``, and False: see ``ResultPartition.fail``."""
        if not partition.fail(message, epoch):
            return False
        self._give_way(partition)
        waiting = self.waiting.take(partition.id)
        self._spiller.remove(partition)
        if (listener := partition.lease.listener) is not None:
            listener.partition_ended()
        answer(waiting, partition)
        # Late readers get the reason as long as they might come.
        self._expire_in(partition, self.settings.writer_retention_s)
        return True

    def writer_lost(self, partition: ResultPartition) -> None:
        """Its connection is closed: the writer may return within the retention."""
        if partition.life is LifeState.OPEN:
            self._deadlines.set(
                partition, Deadline.WRITER_RETURN, self.settings.writer_retention_s, self._writer_stayed_away
            )

    def _writer_stayed_away(self, partition: ResultPartition) -> None:
        # It may have returned before the loss of the old connection was noticed, and may return at this moment.
        epoch = partition.lease.epoch
        if partition.life is LifeState.OPEN and partition.lease.listener is None:
            self.fail(partition, "the producer has lost its connection and has not come back", epoch)

    # -- readers ------------------------------------------------------------------------------------------------------

    def end_view(self, view: View, cancelled: bool) -> None:
        """A reader has left; see ``View.close``. A view of many subpartitions is closed in steps, on the timer's thread."""
        if view.close(cancelled):
            self._reader_left(view.partition, lost=not cancelled)
        else:
            self.soon(partial(self.end_view, view, cancelled))

    def _reader_left(self, partition: ResultPartition, lost: bool) -> None:
        partition.announce_room()  # the reader's backlog no longer blocks the writer
        with partition.lock:
            all_read = partition.readers.all_left
        if all_read:
            self._release(partition)
        elif lost and partition.retains:
            self._deadlines.set(partition, Deadline.READER_RETURN, self.settings.retention_s, self._reader_stayed_away)

    def _reader_stayed_away(self, partition: ResultPartition) -> None:
        if partition.give_up_lost():
            self._release(partition)

    def soon(self, work: Callable[[], None]) -> None:
        """Continue long work on the timer's thread, after work already due there."""
        self._timer.at(self._clock.monotonic(), work)

    def announce_room(self) -> None:
        """From the spiller: memory or disk has been freed."""
        with self._lock:
            partitions = list(self._by_id.values())
            # The first partitions may take all of it, so each time others are first.
            self._told_first = (self._told_first + 1) % max(1, len(partitions))
            first = self._told_first
        for partition in islice(cycle(partitions), first, first + len(partitions)):
            partition.announce_room()

    # -- the end ------------------------------------------------------------------------------------------------------

    def release(self, partition_id: ResultPartitionID, rights: Rights | None = None) -> bool:
        """Drop a partition. False if it does not exist, or the client may not release it."""
        partition = self._by_id.get(partition_id)
        return partition is not None and _may_release(rights, partition) and self._release(partition)

    def release_data_set(self, data_set: bytes, rights: Rights | None = None) -> int:
        """Drop all partitions with this beginning of their ids, and refuse more of them. Returns how many there were. With
        ``rights``, both concern only partitions that the client may release."""
        if rights is not None and not rights.may_with_any(DELETE):
            return 0
        with self._lock:
            releasers = [releaser for releaser in self._released_data_sets.pop(data_set, ()) if releaser != rights]
            self._released_data_sets[data_set] = (*releasers, rights)[-_RELEASERS_MAX:]
            if len(self._released_data_sets) > _RELEASED_DATA_SETS_MAX:
                del self._released_data_sets[next(iter(self._released_data_sets))]
            partitions = self._of(*_range(data_set.hex()))
        return sum(self._release(partition) for partition in partitions if _may_release(rights, partition))

    def _release(self, partition: ResultPartition) -> bool:
        with partition.lock:
            readers_left = partition.readers.all_left and not partition.readers.forsaken  # which is final
        with self._lock:
            if not self.is_known(partition):
                return False  # released already; there may be a new partition with that id
            del self._by_id[partition.id]
            del self._ids[bisect_left(self._ids, partition.id)]
            self._released[partition.id] = _Released(partition.writer, readers_left)
            if len(self._released) > _RELEASED_PARTITIONS_MAX:
                del self._released[next(iter(self._released))]
            if self._winners.get(self._contest(partition)) == partition.id:
                del self._winners[self._contest(partition)]
            waiting = self.waiting.take(partition.id)
        self._deadlines.cancel_all(partition)
        partition.release()
        self._spiller.remove(partition)
        if partition.life is not LifeState.CONSUMED and (listener := partition.lease.listener) is not None:
            listener.partition_ended()
        answer(waiting, partition)  # they see that it is released
        return True

    def _ttl_s(self, partition: ResultPartition) -> float:
        return self.settings.ttl_s if partition.ttl_ms < 0 else partition.ttl_ms / 1000

    def _expire_in(self, partition: ResultPartition, seconds: float) -> None:
        self._deadlines.set(partition, Deadline.EXPIRY, seconds, self._expire)

    def _expire(self, partition: ResultPartition) -> None:
        if partition.readers:  # it does not expire while it is read
            self._expire_in(partition, max(1.0, self._ttl_s(partition)))
        else:
            self._release(partition)

    # -- listing ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._by_id)

    def present(self) -> Sequence[ResultPartition]:
        """All partitions, in no order."""
        with self._lock:
            return tuple(self._by_id.values())

    def count(self, prefix: str) -> int:
        """The number of partitions whose hex digits begin with ``prefix``."""
        if not _HEX.fullmatch(prefix):
            return 0
        with self._lock:
            first, end = self._place(*_range(prefix))
            return end - first

    def _of(self, least: bytes, most: bytes) -> "list[ResultPartition]":
        """The partitions with ids from ``least`` to ``most``, in order. With the lock held."""
        first, end = self._place(least, most)
        return [self._by_id[partition_id] for partition_id in self._ids[first:end]]

    def _place(self, least: bytes, most: bytes) -> tuple[int, int]:
        first = bisect_left(self._ids, least)
        return first, bisect_right(self._ids, most, first)

    def list(self, prefix: str, rights: Rights | None = None) -> list[PartitionInfo]:
        """The partitions whose hex digits begin with ``prefix``, in order, as far as the client may know of them.

        Others are not visited. A writer asks with a whole id whether the broker still answers.
        """
        if not _HEX.fullmatch(prefix):
            return []
        with self._lock:
            wanted = self._of(*_range(prefix))
        if rights is not None:
            owners = {partition.owner for partition in wanted}
            visible = {owner for owner in owners if rights.may(DESCRIBE, owner, audited=False)}
            wanted = [partition for partition in wanted if partition.owner in visible]
        return [_info(partition) for partition in wanted]


def _range(prefix: str) -> tuple[bytes, bytes]:
    """The smallest and the largest id whose hex digits begin with ``prefix``."""
    digits = 2 * PARTITION_ID_BYTES
    return bytes.fromhex(prefix[:digits].ljust(digits, "0")), bytes.fromhex(prefix[:digits].ljust(digits, "f"))


def _may_release(rights: Rights | None, partition: ResultPartition) -> bool:
    return rights is None or rights.may(DELETE, partition.owner)


def _check_resume(partition: ResultPartition, request: OpenPartition) -> None:
    """Raises Refused if this writer may not continue the partition."""
    if partition.kind is not request.type or len(partition.subpartitions) != request.subpartitions:
        raise Refused(
            WriterErrorCode.EXISTS_WITH_OTHER_SHAPE,
            f"{request.partition} is {partition.kind.name} with {len(partition.subpartitions)} subpartitions",
        )
    # For any writer: after a restart the broker does not know who the writer was.
    if partition.life is LifeState.FINISHED:
        raise Refused(WriterErrorCode.FINISHED_ALREADY, f"{request.partition} is finished")
    if not partition.unfinished:
        raise Refused(WriterErrorCode.RELEASED, partition.failure or f"{request.partition} was released")
    if partition.writer != request.writer:
        raise Refused(WriterErrorCode.EXISTS_WITH_OTHER_SHAPE, f"{request.partition} belongs to another writer")


def _info(partition: ResultPartition) -> PartitionInfo:
    holdings = partition.holdings
    return PartitionInfo(
        partition.id,
        partition.kind,
        partition.state,
        len(partition.subpartitions),
        holdings.memory + holdings.disk,
        holdings.buffers,
        len(partition.readers),
    )
