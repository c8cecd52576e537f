"""A result partition: its subpartitions, its life, and whom to tell.

Any thread may call; one lock per partition, held for a few list operations. Whoever is to be told (a reader that has data, a
writer that has room) is told after it has been released, through callbacks that only leave a note with the right processor.

Life: OPEN -> FINISHED | FAILED -> RELEASED. A PIPELINED partition is read while it is written, once, and what has been
sent is let go of; with a retention it is kept until the reader says that it has all, so that a reader whose connection was
lost may begin again. A BLOCKING one is read when it is finished, as often as wanted, until its time to live is over.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.runtime.disk import File
from broker.runtime.threads import Lock
from broker.shuffle.budget import Budget
from broker.shuffle.stored import StoredBuffer
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionState, PartitionType

if TYPE_CHECKING:
    from broker.shuffle.view import Cursor, View
    from broker.shuffle.writers import Writers

OPEN, FINISHED, FAILED, RELEASED = PartitionState

# EndOfData (tag 8, StopMode DRAIN) and EndOfPartition (tag 0), as EventSerializer writes them.
_END_OF_DATA = b"\0\0\0\x08\0"
_END_OF_PARTITION = b"\0\0\0\0"


class SequenceGap(Exception):
    """A push came with a later number than the next one."""


class OverQuota(Exception):
    """The owner has as much as it may."""


class Subpartition:
    """Buffers in the order of their sequence numbers; ``buffers[0]`` has the number ``first``."""

    __slots__ = ("buffers", "cursor", "data_total", "ended", "first", "incomplete")

    def __init__(self) -> None:
        self.buffers: list[StoredBuffer | None] = []  # None: sent, and let go of
        self.first = 0
        self.data_total = 0  # data buffers ever
        self.ended = False  # the last one is EndOfPartition
        self.cursor: Cursor | None = None  # a pipelined one's reader
        self.incomplete = False  # a reader has had buffers that are not kept any more

    @property
    def next_sequence(self) -> int:
        return self.first + len(self.buffers)

    def at(self, position: int) -> StoredBuffer | None:
        """None if it has not come yet."""
        index = position - self.first
        return self.buffers[index] if index < len(self.buffers) else None

    def backlog_after(self, buffer: StoredBuffer) -> int:
        """Data buffers that come after this one."""
        return self.data_total - buffer.data_before - (1 if buffer.is_data else 0)

    def let_go(self, position: int) -> StoredBuffer | None:
        """Forget the buffer at ``position``, and with it the room of all that are forgotten at the front."""
        index = position - self.first
        buffer, self.buffers[index] = self.buffers[index], None
        # Cutting the list costs its length: do it when half of it is gone.
        if index > 64 and index * 2 > len(self.buffers) and all(b is None for b in self.buffers[: index + 1]):
            del self.buffers[: index + 1]
            self.first += index + 1
        return buffer


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
        self.owner = owner
        self.writer = writer
        self.retains = retains and kind is PartitionType.PIPELINED
        self.state: PartitionState = OPEN
        self.failure = ""
        self.lock = Lock()
        self.subpartitions = [Subpartition() for _ in range(subpartitions)]
        self.budget = budget
        self.unsent_max = unsent_max
        self.unsent = 0  # bytes that no reader has been sent
        self.memory = 0  # bytes held in memory
        self.disk = 0  # bytes held in `file`
        self.in_memory = 0  # buffers held in memory
        self.spilled_unsent = 0  # buffers in `file` that no reader has been sent
        self.file: File | None = None
        self.file_end = 0
        self.finishing = False
        self.unspilled: list[StoredBuffer] = []  # in memory, in the order of their coming
        self.cursors: list[Cursor] = []  # of all readers
        # The writer's connection, while it has one: has work done with the connection's writers, on their processor.
        self.call_writer: Callable[[Callable[[Writers], None]], None] | None = None
        self.starved = False  # the writer waits for credit that was held back
        self._acknowledged: set[int] = set()  # subpartitions whose readers have processed everything
        self.ttl_ms = -1  # how long it is kept when it is finished; -1: as the settings say

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(
        self, subpartition: int, sequence: int, data_type: DataType, compressed: bool, payload: memoryview
    ) -> bool:
        """Keep a buffer (one copy of the payload is made). False for a resend of one that is there already.

        Raises SequenceGap, OverQuota, IndexError (no such subpartition).
        """
        part = self.subpartitions[subpartition]
        cursor = None
        with self.lock:
            expected = part.first + len(part.buffers)
            if sequence != expected:
                if sequence < expected:
                    return False
                raise SequenceGap(f"subpartition {subpartition}: {sequence} came, {expected} is next")
            if self.state is not OPEN or part.ended:
                return False
            self._keep(part, data_type, compressed, bytes(payload))
            cursor = part.cursor
            if cursor is not None and not cursor.wants_data():
                cursor = None
        if cursor is not None:
            cursor.view.notify()
        return True

    def _keep(self, part: Subpartition, data_type: DataType, compressed: bool, payload: bytes) -> None:
        if not self.budget.take(self.owner, len(payload)):
            raise OverQuota(f"{self.owner or 'nobody'} has {self.budget.owned(self.owner)} bytes")
        buffer = StoredBuffer(data_type, compressed, payload, part.data_total)
        part.buffers.append(buffer)
        if buffer.is_data:
            part.data_total += 1
        part.ended = data_type is DataType.END_OF_PARTITION
        self.memory += buffer.size
        self.unsent += buffer.size
        self.in_memory += 1
        self.unspilled.append(buffer)
        if len(self.unspilled) > 1024 + 2 * self.in_memory:  # most of them have been sent meanwhile
            self.unspilled = [kept for kept in self.unspilled if kept.in_memory]

    def end_subpartitions(self) -> None:
        """A writer that finishes without having ended a subpartition: end it, or its readers would wait for ever."""
        told = []
        with self.lock:
            for part in self.subpartitions:
                if part.ended or self.state is not OPEN:
                    continue
                last = part.buffers[-1] if part.buffers else None
                if last is None or last.data_type is not DataType.END_OF_DATA:
                    self._keep(part, DataType.END_OF_DATA, False, _END_OF_DATA)
                self._keep(part, DataType.END_OF_PARTITION, False, _END_OF_PARTITION)
                if part.cursor is not None and part.cursor.wants_data():
                    told.append(part.cursor)
        for cursor in told:
            cursor.view.notify()

    def finish(self) -> bool:
        """False if it is too late: failed or released meanwhile."""
        with self.lock:
            if self.state is OPEN:
                self.state = FINISHED
            return self.state is FINISHED

    def fail(self, message: str) -> None:
        """Readers get ``message`` as a ProducerFailedException; the data goes."""
        with self.lock:
            if self.state not in (OPEN, FINISHED):
                return
            self.state = FAILED
            self.failure = message
            cursors = self._drop()
        for cursor in cursors:
            cursor.view.notify()

    def release(self) -> None:
        """Let go of everything. Readers get a PartitionNotFoundException."""
        with self.lock:
            if self.state is RELEASED:
                return
            self.state = RELEASED
            cursors = self._drop()
        for cursor in cursors:
            cursor.view.notify()

    def _drop(self) -> "list[Cursor]":
        """With the lock held: forget the data. Returns who has to be told."""
        for part in self.subpartitions:
            part.first += len(part.buffers)
            part.buffers = []
        self.unspilled = []
        self.budget.give_back(self.owner, self.memory, self.disk)
        self.memory = self.disk = self.unsent = self.in_memory = self.spilled_unsent = 0
        self.file = None  # regions that are being sent keep it open
        cursors, self.cursors = self.cursors, []
        return cursors

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """A request for it can be served now."""
        return self.kind is PartitionType.PIPELINED or self.state is not OPEN

    def consumed(self, part: Subpartition, position: int) -> None:
        """With the lock held: the buffer at ``position`` of a pipelined subpartition has been taken to be sent."""
        if self.kind is not PartitionType.PIPELINED:
            return
        buffer = part.at(position)
        assert buffer is not None
        self.unsent -= buffer.size
        if self.retains:
            return
        part.let_go(position)
        part.incomplete = True
        if buffer.in_memory:
            self._forget_memory(buffer)
        else:
            self.spilled_unsent -= 1
            if not self.spilled_unsent:  # nothing in the file is wanted any more; what is being sent keeps it open
                self.budget.give_back(self.owner, 0, self.disk)
                self.disk = self.file_end = 0
                self.file = None

    def _forget_memory(self, buffer: StoredBuffer) -> None:
        self.memory -= buffer.size
        self.in_memory -= 1
        self.budget.give_back(self.owner, buffer.size, 0)
        buffer.payload = None  # the spiller passes over it

    # -- upstream -----------------------------------------------------------------------------------------------------

    def tell_writer(self, work: "Callable[[Writers], None]") -> bool:
        """Have ``work`` done where the writer is; False if it has no connection now."""
        call = self.call_writer
        if call is None:
            return False
        call(work)
        return True

    def room(self) -> None:
        """There may be room again: a writer that was held back is granted what it has used."""
        if self.starved and (self.kind is not PartitionType.PIPELINED or self.unsent * 2 <= self.unsent_max):
            self.starved = False
            self.tell_writer(_room)

    def acknowledged_all(self, view: "View") -> None:
        """A reader has processed all user records of its subpartitions."""
        with self.lock:
            self._acknowledged.update(cursor.index for cursor in view.cursors)

    @property
    def all_acknowledged(self) -> bool:
        """Every subpartition's reader has."""
        return len(self._acknowledged) == len(self.subpartitions)

    @property
    def full(self) -> bool:
        """A pipelined partition whose readers are far behind."""
        return self.kind is PartitionType.PIPELINED and self.unsent >= self.unsent_max

    @property
    def next_sequences(self) -> Sequence[int]:
        with self.lock:
            return [part.next_sequence for part in self.subpartitions]

    @property
    def buffers(self) -> int:
        return sum(len(part.buffers) for part in self.subpartitions)


def _room(writers: "Writers") -> None:
    writers.room()
