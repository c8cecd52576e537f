"""A result partition: its subpartitions, its life, and whom to tell.

Any thread may call; one lock per partition, held for a few list operations. Whoever is to be told (a reader that has data, a
writer that has room) is told after it has been released, through callbacks that only leave a note with the right processor.

Life: OPEN -> FINISHED | FAILED -> RELEASED. A PIPELINED partition is read while it is written, once, and what has been
sent is let go of; with a retention it is kept until the reader says that it has all, so that a reader whose connection was
lost may begin again. What is pushed to a subpartition whose reader has gone for good is dropped, as Flink's producers do: the
other readers go on. A BLOCKING one is read when it is finished, as often as wanted, until its time to live is over.

Fencing: each opening of a partition has an epoch, one higher than the one before, and reads the next sequence numbers under the
same lock. What comes from an earlier epoch is refused under that lock, too. So a push of an older writer, on whatever processor
it is being handled, is either counted in what the successor was told to go on from, or never taken.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from broker.runtime.open_files import CachedFile
from broker.runtime.threads import Lock
from broker.shuffle.partition.budget import IN_FILE_BYTES, IN_MEMORY_BYTES, SUBPARTITION_BYTES, Budget
from broker.shuffle.partition.spill_file import SpillFile
from broker.shuffle.partition.subpartition import Subpartition
from protocol.shuffle.data_type import IS_BUFFER, DataType
from protocol.shuffle.ids import IndexSet, ResultPartitionID
from protocol.shuffle.writer_frames import NO_INCARNATION, PartitionState, PartitionType

if TYPE_CHECKING:
    from broker.shuffle.serving.view import View
    from broker.shuffle.serving.writers import Writers

OPEN, FINISHED, FAILED, RELEASED = PartitionState

# EndOfData (tag 8, StopMode DRAIN) and EndOfPartition (tag 0), as EventSerializer writes them.
_END_OF_DATA = b"\0\0\0\x08\0"
_END_OF_PARTITION = b"\0\0\0\0"
# A blocking partition is written to its file from so many bytes on in memory, or so many for each subpartition: enough to have
# those of one lie together in large pieces.
_EARLY_BYTES = 16 * 1024 * 1024
_EARLY_BYTES_OF_ONE = 256 * 1024
# A pipelined partition's file is written anew when so many bytes of it, and half of it, are not wanted any more: what that costs
# has been written before.
_GARBAGE_BYTES = 16 * 1024 * 1024
# Subpartitions that are ended at once: some 4 ms.
_ENDED_AT_ONCE = 1024
# What a buffer of no bytes costs all the same; counted against the bound of a pipelined partition.
_BUFFER_OVERHEAD = 128


class SequenceGap(Exception):
    """A push came with a later number than the next one."""


class AfterTheEnd(Exception):
    """A push came after its subpartition's EndOfPartition."""


class OverQuota(Exception):
    """The owner has as much as it may."""


class Fenced(Exception):
    """A newer opening has taken the partition over."""


class Finishing(Exception):
    """Its writer has said that all is there, and it is being stored: nothing can be added."""


class TakenOver(NamedTuple):
    """``next_sequences``: of each subpartition. ``before``: the ``call_writer`` of the writer that is fenced now."""

    epoch: int
    next_sequences: Sequence[int]
    before: "Callable[[Callable[[Writers], None]], None] | None"


class ResultPartition:
    """``owner``: who pays. ``writer``: the id of the writer that may go on with it."""

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
    ) -> None:
        """``unsent_max``: bytes; past it the writer of a pipelined partition gets no credit."""
        self.id = partition_id
        self.kind = kind
        self.pipelined = kind is PartitionType.PIPELINED
        self.owner = owner
        self.writer = writer
        self.retains = retains and self.pipelined
        self.state: PartitionState = OPEN
        self.failure = ""
        self.read_to_end = False  # released because all of it was read
        self.unwanted = False  # the same, or released because its readers have gone of their own will
        self.lock = Lock()
        # None: nothing has come for it, and nobody has asked for it.
        self.subpartitions: list[Subpartition | None] = [None] * subpartitions
        self.budget = budget
        self.structure = 0  # bytes of `budget.index` for the partition and its subpartitions
        self._all_counted = False  # with those that are not there yet
        self.buffer_bytes = 0  # what its writer's buffers were like when it was lost
        self.cut_off = False  # ... and whether that was for want of room
        self.unsent_max = unsent_max
        self.unsent = 0  # bytes that no reader has been sent, and what they cost beside
        self.memory = 0  # bytes held in memory
        # All of a blocking one has to be on disk before it is finished: from here on (bytes in memory) it is time to begin.
        self._early_bytes = inf if self.pipelined else max(_EARLY_BYTES, subpartitions * _EARLY_BYTES_OF_ONE)
        self.disk = 0  # bytes of `file`
        self.wanted = 0  # of them, of a pipelined one: those that have not been let go of
        self.untidy = False  # the spiller has been told that there are many others
        self.on_garbage: Callable[[ResultPartition], None] = lambda partition: None
        self.in_memory = 0  # buffers held in memory
        self.in_file = 0  # buffers held in `file`
        self.file: SpillFile | None = None
        self.file_end = 0
        self.named_file: CachedFile | None = (
            None  # a blocking one's: `file`, and still known when that has been let go of
        )
        self.finishing = False
        self._owed = self._owed_buffers = 0  # bytes, and buffers, that the budget still counts
        self._gone = 0  # so many of the first subpartitions nobody reads any more
        self.spill_next = 0  # the subpartition whose turn it is
        self.views: dict[View, None] = {}  # of all readers
        self.awaited = 0  # readers of several subpartitions that wait for the rest of a record
        self.forsaken = False  # a reader was lost before the end, and nobody can go on in its place
        self._data_before: array[int] | None = None  # of a finished one: data buffers before each subpartition
        # The writer's connection, while it has one: has work done with the connection's writers, on their processor.
        self.call_writer: Callable[[Callable[[Writers], None]], None] | None = None
        self.epoch = 0  # of the newest opening
        self._incarnation = NO_INCARNATION  # of the writer that opened it last
        self._attempt = 0  # of that writer
        self._opener: Callable[[bool], None] | None = None  # a writer that came while it was being finished
        self.starved = False  # the writer waits for credit that was held back
        self._acknowledged: set[int] = set()  # subpartitions whose readers have processed everything
        self.ttl_ms = -1  # how long it is kept when it is finished; -1: as the settings say

    @property
    def spill_early(self) -> bool:
        return self.memory >= self._early_bytes and self.state is OPEN

    def part(self, index: int) -> Subpartition:
        """With the lock held: a subpartition that is going to be used."""
        part = self.subpartitions[index]
        if part is None:
            part = self.subpartitions[index] = Subpartition()
            if self.state is not RELEASED and not self._all_counted:
                self.structure += SUBPARTITION_BYTES
                self.budget.charge(self.owner, SUBPARTITION_BYTES)
        return part

    def count_for(self, indices: IndexSet) -> None:
        """A reader of these comes to a pipelined one. Raises NoRoom."""
        if indices.size > 1:
            self.count_all()  # the others will be read as well
            return
        index = indices.start
        with self.lock:
            if self.subpartitions[index] is None and not self._all_counted and self.state in (OPEN, FINISHED):
                self.budget.charge(self.owner, SUBPARTITION_BYTES, bounded=True)
                self.structure += SUBPARTITION_BYTES
                self.subpartitions[index] = Subpartition()

    def count_all(self) -> None:
        """All subpartitions are going to be used, by what is a small frame on the wire. Raises NoRoom."""
        with self.lock:
            if self._all_counted or self.state not in (OPEN, FINISHED):
                return
            unused = self.subpartitions.count(None) * SUBPARTITION_BYTES
            self.budget.charge(self.owner, unused, bounded=True)
            self.structure += unused
            self._all_counted = True

    # -- writing ------------------------------------------------------------------------------------------------------

    def take_over(
        self, call: "Callable[[Callable[[Writers], None]], None]", incarnation: int, resumes: bool, attempt: int
    ) -> "TakenOver":
        """A writer opens it: whoever had it is fenced. ``call``: its ``call_writer``.

        Raises Fenced (it ``resumes``, and another one has opened the partition since; or it is an earlier ``attempt`` of the
        same one, which has given up that connection) and Finishing.
        """
        with self.lock:
            if incarnation == self._incarnation != NO_INCARNATION:
                if attempt < self._attempt:
                    raise Fenced
                self._attempt = attempt
            elif resumes and self.epoch:
                raise Fenced
            if self.finishing and self.state is OPEN:
                raise Finishing
            self.epoch += 1
            self._incarnation, self._attempt = incarnation, attempt
            before, self.call_writer = self.call_writer, call
            sequences = [0 if part is None else part.next_sequence for part in self.subpartitions]
            return TakenOver(self.epoch, sequences, before)

    def detach(self, epoch: int) -> bool:
        """The writer of this epoch has let go of it. False if another one has it by now."""
        with self.lock:
            if epoch != self.epoch:
                return False
            self.call_writer = None
            return True

    def begin_to_finish(self, epoch: int) -> None:
        """The writer has pushed everything. Raises Fenced."""
        with self.lock:
            if epoch != self.epoch:
                raise Fenced
            self.finishing = True

    def when_finished(self, opener: Callable[[bool], None]) -> None:
        """``opener(False)`` when it is known how finishing has ended; ``opener(True)`` if a newer opener comes before that."""
        with self.lock:
            before, self._opener = self._opener, opener
        if before is not None:
            before(True)
        if self.state is not OPEN:
            self._tell_opener()

    def _tell_opener(self) -> None:
        with self.lock:
            opener, self._opener = self._opener, None
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
        """Keep a buffer (one copy of the payload is made) unless it is there already. Returns the number expected next.

        Raises Fenced, SequenceGap, AfterTheEnd, OverQuota, NoRoom, IndexError (no such subpartition). Does nothing if the
        partition is not OPEN. ``unpromised``: see ``Budget.take``.
        """
        part = self.subpartitions[subpartition]
        with self.lock:
            if epoch != self.epoch:
                raise Fenced
            if part is None:
                if self.state is not OPEN:
                    return 0
                part = self.part(subpartition)
            expected = part.first + len(part.kinds)
            if sequence != expected:
                if sequence < expected:
                    return expected
                if self.state is OPEN:
                    raise SequenceGap(f"subpartition {subpartition}: {sequence} came, {expected} is next")
            if self.state is not OPEN:
                return expected
            if part.ended:
                raise AfterTheEnd(f"subpartition {subpartition} has ended before {sequence}")
            if part.incomplete and part.cursor is None:
                part.pass_over(data_type)
                return expected + 1
            self._keep(part, data_type, compressed, payload, unpromised=unpromised)
            cursor = part.cursor
            told = False
            if cursor is not None:
                if IS_BUFFER[data_type]:
                    cursor.view.waiting += 1
                told = cursor.wants_data()
        if told:
            assert cursor is not None
            cursor.view.notify()
        return expected + 1

    def _keep(
        self,
        part: Subpartition,
        data_type: DataType,
        compressed: bool,
        payload: bytes | memoryview,
        obliged: bool = False,
        unpromised: int | None = None,
    ) -> None:
        size = len(payload)
        if not self.budget.take(self.owner, size, obliged, IN_MEMORY_BYTES, unpromised):
            raise OverQuota(f"{self.owner or 'nobody'} has {self.budget.owned(self.owner)} bytes")
        part.append(data_type, compressed, bytes(payload))
        self.memory += size
        self.unsent += size + _BUFFER_OVERHEAD
        self.in_memory += 1

    def end_subpartitions(self, begin: int = 0) -> int:
        """A writer that finishes without having ended a subpartition: end it, or its readers would wait for ever.

        Looks at some, from ``begin`` on; returns where to go on, 0 when all have been looked at. These few bytes are kept
        whatever the quota says: the data before them has been taken.
        """
        told = []
        end = begin + _ENDED_AT_ONCE
        with self.lock:
            for index in range(begin, min(end, len(self.subpartitions))):
                if self.state is not OPEN:
                    return 0
                part = self.part(index)
                if part.ended or part.gone:
                    continue
                if not part.data_ended:
                    self._keep(part, DataType.END_OF_DATA, False, _END_OF_DATA, obliged=True)
                self._keep(part, DataType.END_OF_PARTITION, False, _END_OF_PARTITION, obliged=True)
                if part.cursor is not None and part.cursor.wants_data():
                    told.append(part.cursor)
        for cursor in told:
            cursor.view.notify()
        return end if end < len(self.subpartitions) else 0

    def finish(self) -> bool:
        """False if it is too late: failed or released meanwhile."""
        with self.lock:
            if self.state is OPEN:
                self.state = FINISHED
            finished = self.state is FINISHED
        self._tell_opener()
        return finished

    def fail(self, message: str, epoch: int | None = None) -> bool:
        """Readers get ``message`` as a ProducerFailedException; the data goes. False if it had failed or gone already.

        ``epoch``: on behalf of that writer; False as well if another one has taken it over.
        """
        with self.lock:
            if self.state not in (OPEN, FINISHED) or epoch not in (None, self.epoch):
                return False
            self.state = FAILED
            self.failure = message
            views = self._drop()
        self._tell_opener()
        for view in views:
            view.notify()
        return True

    def release(self) -> None:
        """Let go of everything. Readers get a PartitionNotFoundException."""
        with self.lock:
            if self.state is RELEASED:
                return
            self.unwanted = self.read_by_all and not self.forsaken
            self.read_to_end = self.unwanted and all(part is not None and part.ended for part in self.subpartitions)
            self.state = RELEASED
            views = self._drop()
            structure, self.structure = self.structure, 0
        self.budget.give_back(self.owner, 0, 0, structure)
        self._tell_opener()
        for view in views:
            view.notify()

    def _drop(self) -> "Iterable[View]":
        """With the lock held: forget the data. Returns who has to be told."""
        for part in self.subpartitions:
            if part is not None:
                part.clear()
        self.budget.give_back(self.owner, self.memory, self.disk, self.index_bytes - self.structure)
        self.memory = self.disk = self.wanted = self.unsent = self.in_memory = self.in_file = 0
        self.file = None  # regions that are being sent keep it open
        views, self.views = self.views, {}
        return views

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """A request for it can be served now."""
        return self.pipelined or self.state is not OPEN

    def sent(self, part: Subpartition, end: int, memory: int, in_memory: int, in_file: int, in_file_bytes: int) -> None:
        """With the lock held: what comes before ``end`` has been taken out of a pipelined subpartition. ``settle`` comes next.

        How many of them were in memory and in the file, and their bytes.
        """
        self.unsent -= memory + in_file_bytes + (in_memory + in_file) * _BUFFER_OVERHEAD
        if not self.retains:
            part.incomplete = True
            part.let_go(end)
            if in_file:
                self._forget(memory, in_memory, in_file, in_file_bytes)
            else:
                self.memory -= memory
                self.in_memory -= in_memory
                self._owed += memory
                self._owed_buffers += in_memory

    def settle(self) -> None:
        """Give back what was ``sent``: not for each buffer, since all partitions share the budget and its lock."""
        with self.lock:
            memory, self._owed = self._owed, 0
            buffers, self._owed_buffers = self._owed_buffers, 0
        if buffers:
            self.budget.give_back(self.owner, memory, 0, buffers * IN_MEMORY_BYTES)

    def abandon(self, part: Subpartition, position: int, lost: bool) -> None:
        """With the lock held: nobody reads on from ``position`` in a pipelined subpartition.

        ``lost``: by no will of its reader.
        """
        part.incomplete = True
        self.forsaken = self.forsaken or lost
        if not part.kinds:
            return
        end = part.next_sequence
        begin = max(position, part.let_go_before)
        self.unsent -= part.bytes_between(begin, end) + (end - begin) * _BUFFER_OVERHEAD
        kept = part.let_go_before
        in_file = max(0, part.memory_from - kept)
        memory = part.bytes_between(kept + in_file, end)
        in_file_bytes = part.bytes_between(kept, kept + in_file)
        part.clear()
        self._forget(memory, end - kept - in_file, in_file, in_file_bytes)

    def _forget(self, memory: int, in_memory: int, in_file: int, in_file_bytes: int) -> None:
        """With the lock held: buffers of a pipelined partition that no subpartition has any more; ``memory``: bytes."""
        disk = 0
        if in_file:
            self.in_file -= in_file
            self.wanted -= in_file_bytes
            if not self.in_file:  # nothing in the file is wanted any more; what is being sent keeps it open
                disk, self.disk = self.disk, 0
                self.file_end = self.wanted = 0
                self.file = None
            elif self.disk > 2 * self.wanted + _GARBAGE_BYTES and not self.untidy:
                self.untidy = True
                self.on_garbage(self)
        self.memory -= memory
        self.in_memory -= in_memory
        self.budget.give_back(self.owner, memory, disk, in_memory * IN_MEMORY_BYTES + in_file * IN_FILE_BYTES)

    def unread(self, part: Subpartition, position: int, sent_all: bool) -> None:
        """With the lock held: a reader that had been sent what comes before ``position`` was lost; another will begin again.

        ``sent_all``: to the end. It may have got it: if nobody comes, it has.
        """
        part.lost = True
        part.sent_all = sent_all
        begin = part.let_go_before
        self.unsent += part.bytes_between(begin, position) + (position - begin) * _BUFFER_OVERHEAD

    def give_up_lost(self) -> bool:
        """Nobody has come in place of lost readers. True if nobody is left who could read: it can be released."""
        with self.lock:
            for part in self.subpartitions:
                if part is not None and part.lost:
                    part.lost = False
                    self.abandon(part, part.let_go_before, lost=not part.sent_all)
            return self.read_by_all

    def data_of(self, indices: IndexSet) -> int:
        """With the lock held, of a finished partition: data buffers of these subpartitions."""
        if indices.size == 1:
            part = self.subpartitions[indices.start]
            return 0 if part is None else part.data_total
        if self._data_before is None:
            totals = (0 if part is None else part.data_total for part in self.subpartitions)
            self._data_before = array("q", accumulate(totals, initial=0))
        return self._data_before[indices.end + 1] - self._data_before[indices.start]

    @property
    def read_by_all(self) -> bool:
        """With the lock held: a pipelined one that nobody can read any more."""
        # Gone is gone for ever, so each is looked at once, however many readers go one after another.
        parts = self.subpartitions
        while self._gone < len(parts) and (part := parts[self._gone]) is not None and part.gone:
            self._gone += 1
        return self.pipelined and self._gone == len(parts)

    # -- upstream -----------------------------------------------------------------------------------------------------

    def tell_writer(self, work: "Callable[[Writers], None]") -> bool:
        """Have ``work`` done where the writer is; False if it has no connection now."""
        call = self.call_writer
        if call is None:
            return False
        call(work)
        return True

    @property
    def held_back(self) -> bool:
        """Its writer has to wait. If so, ``room`` is called when that may have changed."""
        # Marked, then looked at: room that comes in between is noticed.
        self.starved = True
        if self.full or self.budget.full(to_disk=not self.pipelined):
            return True
        self.starved = False
        return False

    def room(self) -> None:
        """There may be room again: a writer that was held back is granted what it has used."""
        if self.starved and (not self.pipelined or self.unsent * 2 <= self.unsent_max or self.in_record):
            self.starved = False
            self.tell_writer(partial(_room, self))

    def acknowledged_all(self, view: "View") -> None:
        """A reader has processed all user records of its subpartitions: the writer is told, once for each."""
        if view.acknowledged:
            return
        view.acknowledged = True
        with self.lock:
            new = [index for index in view.indices if index not in self._acknowledged]
            self._acknowledged.update(new)
        self.tell_writer(partial(_all_processed, self, new))

    @property
    def full(self) -> bool:
        """A pipelined partition whose readers are far behind, by their own doing."""
        return self.pipelined and self.unsent >= self.unsent_max and not self.in_record

    @property
    def in_record(self) -> bool:
        """A reader of several subpartitions waits for the rest of a record, and takes nothing else before: it must come, however
        much of the others is there."""
        return self.awaited > 0

    @property
    def buffers(self) -> int:
        """Those that are kept."""
        return self.in_memory + self.in_file

    @property
    def index_bytes(self) -> int:
        """What is kept beside payloads."""
        return self.structure + self.in_memory * IN_MEMORY_BYTES + self.in_file * IN_FILE_BYTES


def _all_processed(partition: ResultPartition, subpartitions: list[int], writers: "Writers") -> None:
    writers.all_processed(partition, subpartitions)


def _room(partition: ResultPartition, writers: "Writers") -> None:
    writers.room(partition)
