"""A result partition: its subpartitions, its life, its writer and its readers.

Any thread may call. Each partition has a lock, held for a few list operations. Readers with new data and writers that may
continue are told after the lock has been released, through listeners that only leave a note with the right processor.

The life of a partition is the table in ``life.py``. A PIPELINED partition is read while it is written, once, and sent buffers are
dropped. With a retention they are kept until the reader confirms that it has everything, so that another reader may start over if
the first reader's connection is lost. Pushes to a subpartition whose reader has left for good are not kept, as in Flink's
producers: the other readers continue (``reading_state.py``). A BLOCKING partition is read after it is finished, any number of
times, until its time to live is over.

Fencing: each opening of a partition has an epoch (``readers.py``), and reads the next sequence numbers under the same lock. That
lock also guards the check that refuses pushes from earlier epochs. So a push of an older writer, on whatever processor, is either
included in the sequence numbers that the newer writer was told, or never taken.

Tests: tests/shuffle/test_model.py, tests/shuffle/test_fencing.py, tests/shuffle/serving/test_view.py.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple, Self

from broker.runtime.threads import Lock
from broker.shuffle.partition.budget import SUBPARTITION_BYTES, Budget
from broker.shuffle.partition.holdings import Holdings, SpillFile
from broker.shuffle.partition.life import WIRE_STATE, LifeEvent, LifeState, next_state
from broker.shuffle.partition.readers import Fenced, Readers, WriterLease
from broker.shuffle.partition.reading_state import ReadingState
from broker.shuffle.partition.subpartition import Cursor, Subpartition, WriterListener
from protocol.shuffle.data_type import DATA_TYPES, IS_BUFFER, DataType
from protocol.shuffle.ids import IndexSet, ResultPartitionID
from protocol.shuffle.push_row import PushRun
from protocol.shuffle.writer_frames import PartitionState, PartitionType

OPEN, FINISHING, FINISHED, FAILED, RELEASED, CANCELLED, CONSUMED = LifeState
_ABANDONED = ReadingState.ABANDONED

# EndOfData (tag 8, StopMode DRAIN) and EndOfPartition (tag 0), as EventSerializer writes them.
_END_OF_DATA = b"\0\0\0\x08\0"
_END_OF_PARTITION = b"\0\0\0\0"
# A blocking partition is written to its file from this many bytes in memory on, or this many for each subpartition, so that the
# buffers of a subpartition form large pieces.
_EARLY_BYTES = 16 * 1024 * 1024
_EARLY_BYTES_OF_EACH = 256 * 1024
# Subpartitions that are ended under one hold of the lock: some 4 ms.
_ENDED_AT_ONCE = 1024


class SequenceGap(Exception):
    """A push has a later number than the next expected."""


class AfterTheEnd(Exception):
    """A push came after its subpartition's EndOfPartition."""


class Finishing(Exception):
    """The writer has pushed everything and the partition is being stored: nothing can be added."""


class TakenOver(NamedTuple):
    """``next_sequences``: of each subpartition. ``fenced``: the listener of the writer that lost the partition."""

    epoch: int
    next_sequences: Sequence[int]
    fenced: WriterListener | None


class ResultPartition:
    """``owner``: whose quota pays. ``writer``: the id of the writer that may continue it."""

    def __init__(
        self,
        partition_id: ResultPartitionID,
        kind: PartitionType,
        subpartitions: int,
        budget: Budget,
        owner: str = "",
        writer: bytes = b"",
        retains: bool = False,
        unsent_max: int = 2**62,
        ttl_ms: int = -1,
        structure: int = 0,
    ) -> None:
        """``unsent_max``: bytes; past it, the writer of a pipelined partition gets no credit. ``ttl_ms``: how long it is kept
        after it is finished; -1: as configured. ``structure``: see ``Holdings``."""
        self.id = partition_id
        self.kind = kind
        self.pipelined = kind is PartitionType.PIPELINED
        self.owner = owner
        self.writer = writer
        self.retains = retains and self.pipelined
        self.ttl_ms = ttl_ms
        self.unsent_max = unsent_max
        self.life = OPEN
        self.failure = ""
        self.lock = Lock()
        # None: it had no push and no request.
        self.subpartitions: list[Subpartition | None] = [None] * subpartitions
        self.holdings = Holdings(budget, owner, self.lock, self.retains, structure)
        self.readers = Readers(self.subpartitions, self.holdings, self.pipelined, self.retains)
        self.lease = WriterLease()
        self.writer_waits = False  # the writer waits for credit that was withheld
        self.budget = budget
        self._all_charged = False  # the budget counts all subpartitions, those that are still None included
        # A blocking partition must be on disk before it is finished; from this many bytes in memory on, some is written.
        self._early_bytes = inf if self.pipelined else max(_EARLY_BYTES, subpartitions * _EARLY_BYTES_OF_EACH)

    @property
    def state(self) -> PartitionState:
        """Its state in the terms of the writer protocol."""
        return WIRE_STATE[self.life]

    @property
    def unfinished(self) -> bool:
        """It is not finished, and has not failed."""
        life = self.life
        return life is OPEN or life is FINISHING

    @property
    def has_data(self) -> bool:
        """Its buffers have not been dropped."""
        life = self.life
        return life is OPEN or life is FINISHED or life is FINISHING

    @property
    def readable(self) -> bool:
        """A reader's request can be served now, even if only with an error."""
        return self.pipelined or not self.unfinished

    @property
    def spill_early(self) -> bool:
        """A blocking partition has so much in memory that some should be written."""
        return self.holdings.memory >= self._early_bytes and self.unfinished

    # -- its subpartitions --------------------------------------------------------------------------------------------

    def part(self, index: int) -> Subpartition:
        """A subpartition about to be used. With the lock held."""
        part = self.subpartitions[index]
        if part is None:
            part = self.subpartitions[index] = Subpartition()
            if self.life < RELEASED and not self._all_charged:
                self.holdings.charge(SUBPARTITION_BYTES)
        return part

    def charge_for(self, indices: IndexSet) -> None:
        """Charge for a new reader of these subpartitions of a pipelined partition. Raises NoRoom."""
        if indices.size > 1:
            self.charge_all()  # the others will be read as well
            return
        index = indices.start
        with self.lock:
            if self.subpartitions[index] is None and not self._all_charged and self.has_data:
                self.holdings.charge(SUBPARTITION_BYTES, bounded=True)
                self.subpartitions[index] = Subpartition()

    def charge_all(self) -> None:
        """Charge for all subpartitions, which a small frame on the wire is about to use. Raises NoRoom."""
        with self.lock:
            if self._all_charged or not self.has_data:
                return
            self.holdings.charge(self.subpartitions.count(None) * SUBPARTITION_BYTES, bounded=True)
            self._all_charged = True

    # -- its writer ---------------------------------------------------------------------------------------------------

    def take_over(self, listener: WriterListener, incarnation: int, resumes: bool, attempt: int) -> TakenOver:
        """A writer opens it, which fences its previous writer. Raises Fenced (``WriterLease.check``), Finishing."""
        with self.lock:
            self.lease.check(incarnation, resumes, attempt)
            if self.life is FINISHING:
                raise Finishing
            fenced = self.lease.take(listener, incarnation, attempt)
            sequences = [0 if part is None else part.next_sequence for part in self.subpartitions]
            return TakenOver(self.lease.epoch, sequences, fenced)

    def detach(self, epoch: int, buffer_bytes: int) -> bool:
        """The writer of this epoch has left; its buffers were of this size. False if another writer has the partition."""
        with self.lock:
            self.lease.remember_buffers(buffer_bytes)
            return self.lease.give_up(epoch)

    def begin_to_finish(self, epoch: int) -> None:
        """The writer has pushed everything. Raises Fenced."""
        with self.lock:
            if epoch != self.lease.epoch:
                raise Fenced
            if self.life is OPEN:
                self.life = next_state(self.life, LifeEvent.FINISH_REQUESTED)

    def when_finished(self, opener: Callable[[bool], None]) -> None:
        """Call ``opener(False)`` when finishing has ended, or ``opener(True)`` if a newer opener comes first."""
        with self.lock:
            before = self.lease.set_opener(opener)
        if before is not None:
            before(True)
        if not self.unfinished:
            self._tell_opener()

    def _tell_opener(self) -> None:
        with self.lock:
            opener = self.lease.set_opener(None)
        if opener is not None:
            opener(False)

    def append(
        self,
        subpartition: int,
        sequence: int,
        data_type: DataType,
        compressed: bool,
        payload: memoryview,
        epoch: int = 0,
        unpromised: int | None = None,
    ) -> int:
        """Keep a buffer unless it is a duplicate. Returns the number expected next.

        Raises Fenced, SequenceGap, AfterTheEnd, OverQuota, NoRoom, IndexError (no such subpartition). Does nothing if the
        partition takes no buffers any more. ``unpromised``: see ``Budget.take``.
        """
        part = self.subpartitions[subpartition]
        with self.lock:
            if epoch != self.lease.epoch:
                raise Fenced
            life = self.life
            if part is None:
                if life is not OPEN and life is not FINISHING:
                    return 0
                part = self.part(subpartition)
            expected = part.first + len(part.kinds)
            if sequence != expected:
                if sequence < expected:
                    return expected
                if life is OPEN or life is FINISHING:
                    raise SequenceGap(f"subpartition {subpartition}: {sequence} came, {expected} is next")
            if life is not OPEN and life is not FINISHING:
                return expected
            if part.ended:
                raise AfterTheEnd(f"subpartition {subpartition} has ended before {sequence}")
            cursor = part.cursor
            if part.reading is _ABANDONED:
                part.pass_over(data_type)
                return expected + 1
            self.holdings.keep(part, data_type, compressed, payload, unpromised=unpromised)
            wakes = cursor is not None and cursor.reader.buffers_added(cursor, IS_BUFFER[data_type])
        if wakes:
            assert cursor is not None
            cursor.reader.notify()
        return expected + 1

    def append_runs(self, runs: Sequence[PushRun], size: int, count: int, epoch: int) -> bool:
        """``append`` all of these ``count`` data buffers of ``size`` bytes, for which there is credit.

        False, and nothing was kept, if ``append`` could treat any of them differently.
        """
        woken: list[Cursor] = []
        with self.lock:
            if epoch != self.lease.epoch or (self.life is not OPEN and self.life is not FINISHING):
                return False
            if not all(self._takes(run) for run in runs):
                return False
            parts = [self.part(run.subpartition) for run in runs]  # they count against the quota, too
            if not self.holdings.make_room(size, count):
                return False
            for part, run in zip(parts, runs, strict=True):
                self.holdings.keep_run(part, run)
                cursor = part.cursor
                if cursor is not None and cursor.reader.buffers_added(cursor, len(run.payloads)):
                    woken.append(cursor)
        for cursor in woken:
            cursor.reader.notify()
        return True

    def _takes(self, run: PushRun) -> bool:
        """Whether these are the next buffers of a subpartition that keeps buffers. With the lock held."""
        if run.subpartition >= len(self.subpartitions):
            return False
        part = self.subpartitions[run.subpartition]
        if part is None:
            return run.sequence == 0
        return run.sequence == part.next_sequence and not part.ended and not part.abandoned

    def end_subpartitions(self, begin: int = 0) -> int:
        """End each subpartition that its writer has not ended; otherwise its readers would wait for ever.

        Visits some, from ``begin`` on; returns where to continue, 0 after all. These few bytes are kept regardless of the quota,
        because the data before them has been taken.
        """
        woken: list[Cursor] = []
        end = begin + _ENDED_AT_ONCE
        with self.lock:
            if not self.unfinished:
                return 0
            for index in range(begin, min(end, len(self.subpartitions))):
                part = self.part(index)
                if part.ended or part.abandoned:
                    continue
                if not part.data_ended:
                    self.holdings.keep(part, DataType.END_OF_DATA, False, _END_OF_DATA, obliged=True)
                self.holdings.keep(part, DataType.END_OF_PARTITION, False, _END_OF_PARTITION, obliged=True)
                if part.cursor is not None and part.cursor.reader.buffers_added(part.cursor, 0):
                    woken.append(part.cursor)
        for cursor in woken:
            cursor.reader.notify()
        return end if end < len(self.subpartitions) else 0

    # -- its end ------------------------------------------------------------------------------------------------------

    def load(self, entries: Iterable[tuple[int, int, bool, int, int]], file: SpillFile, size: int) -> Self:
        """Load the partition that an earlier broker stored: ``entries`` as in ``SpillIndex``, in ``file``, of ``size`` bytes."""
        with self.lock:
            for subpartition, data_type, compressed, offset, length in entries:
                self.holdings.load(self.part(subpartition), DATA_TYPES[data_type], bool(compressed), offset, length)
            for subpartition in range(len(self.subpartitions)):
                self.part(subpartition).ended = True
            self.holdings.loaded(file, size)
            self.life = next_state(self.life, LifeEvent.STORED)
        return self

    def finish(self) -> bool:
        """It is complete, and stored if it is BLOCKING. False if it has failed or was released meanwhile."""
        with self.lock:
            if self.unfinished:
                self.life = next_state(self.life, LifeEvent.STORED)
            finished = self.life is FINISHED
        self._tell_opener()
        return finished

    def fail(self, message: str, epoch: int | None = None) -> bool:
        """Drop the data; readers get ``message`` as a ProducerFailedException. False if it had failed or was released already.

        ``epoch``: on behalf of that writer; also False if another writer has taken over the partition.
        """
        with self.lock:
            if not self.has_data or epoch not in (None, self.lease.epoch):
                return False
            self.life = next_state(self.life, LifeEvent.PRODUCER_FAILED)
            self.failure = message
            self.holdings.drop_all(self.subpartitions)
            readers = self.readers.take_all()
        self._tell_opener()
        for reader in readers:
            reader.notify()
        return True

    def release(self) -> None:
        """Drop everything. Readers get a PartitionNotFoundException."""
        with self.lock:
            if self.life >= RELEASED:
                return
            if self.readers.forsaken or not self.readers.all_left:
                event = LifeEvent.RELEASE_REQUESTED
            elif all(part is not None and part.ended for part in self.subpartitions):
                event = LifeEvent.READ_TO_END
            else:
                event = LifeEvent.READERS_LEFT
            self.life = next_state(self.life, event)
            self.holdings.drop_all(self.subpartitions)
            readers = self.readers.take_all()
            structure = self.holdings.take_structure()
        self.budget.give_back(self.owner, 0, 0, structure)
        self._tell_opener()
        for reader in readers:
            reader.notify()

    def give_up_lost(self) -> bool:
        """No reader has replaced the lost readers. True if no reader can read it any more, so it can be released."""
        with self.lock:
            self.readers.give_up_lost()
            return self.readers.all_left

    # -- back-pressure --------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """It is pipelined, and its readers are far behind through their own fault.

        Not while a reader waits inside a record: the rest of that record must come, however much else is unread.
        """
        return self.pipelined and self.holdings.unsent >= self.unsent_max and not self.readers.inside_record

    @property
    def waits_for_readers(self) -> bool:
        """A writer without credit is granted nothing before the readers have taken more."""
        return self.pipelined and self.holdings.unsent * 2 > self.unsent_max and not self.readers.inside_record

    def must_wait(self) -> bool:
        """Whether its writer must wait. If so, that is noted, and the writer is told when it may have changed."""
        # Marked before the check, so that room freed in between is announced.
        self.writer_waits = True
        if self.full or self.budget.full(to_disk=not self.pipelined):
            return True
        self.writer_waits = False
        return False

    def hold_writer_back(self, waits: bool = True) -> None:
        """The writer waits for credit, or, if not ``waits``, has some again."""
        self.writer_waits = waits

    def announce_room(self) -> None:
        """There may be room again: a waiting writer is granted the credit that it has used."""
        if self.writer_waits and not self.waits_for_readers:
            self.writer_waits = False
            if (listener := self.lease.listener) is not None:
                listener.room_freed()

    # -- from readers to the writer -------------------------------------------------------------------------------------

    def records_processed(self, subpartitions: range) -> None:
        """A reader has processed all user records of these: the writer is told, once per subpartition."""
        with self.lock:
            new = self.lease.newly_processed(subpartitions)
        if (listener := self.lease.listener) is not None:
            listener.records_processed(new)
