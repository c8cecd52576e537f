"""What one receiver sees of a partition: one subpartition, or several as a union.

Owned by the request queue of the receiver's connection, on its processor; looks into the partition under the partition's lock.
A union takes its subpartitions in the order in which they have something, and changes from one to another only after a buffer
that does not end in the middle of a record.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker.runtime.disk import FileRegion
from broker.shuffle.credit import Credit
from broker.shuffle.result_partition import FAILED, RELEASED, ResultPartition, Subpartition
from broker.shuffle.stored import StoredBuffer
from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM, IS_PARTIAL_RECORD, DataType
from protocol.shuffle.ids import IndexSet
from protocol.shuffle.writer_frames import PartitionType


class PartitionFailed(Exception):
    """The producer has failed."""


class PartitionGone(Exception):
    """The partition was released."""


class Cursor:
    """A view's place in one subpartition. Guarded by the partition's lock, but for ``view``."""

    __slots__ = ("index", "part", "position", "ready", "view")

    def __init__(self, view: "View", part: Subpartition, index: int) -> None:
        self.view = view
        self.part = part
        self.index = index
        self.position = part.first
        self.ready = False  # has something: is in the view's row, or is its current one

    def wants_data(self) -> bool:
        """Called with the lock held when a buffer was added. True if the view must be told."""
        if self.ready:
            return False
        self.ready = True
        view = self.view
        if view.current is None:
            view.row.append(self)
        elif view.current is not self:
            view.row.append(self)
            return False  # the record in hand comes first
        told, view.idle = view.idle, False
        return told


class Taken(NamedTuple):
    """A buffer to be sent. ``more``: another one could go right after it."""

    subpartition: int
    data_type: DataType
    compressed: bool
    payload: bytes | FileRegion
    size: int
    backlog: int
    more: bool


class View:
    """One receiver's view. ``on_data``: there is something where there was nothing; called on any thread without locks."""

    def __init__(
        self, partition: ResultPartition, indices: IndexSet, credit: Credit, on_data: Callable[[], None]
    ) -> None:
        """Raises IndexError for subpartitions that there are not, PartitionGone where one has been read already."""
        if indices.end >= len(partition.subpartitions):
            raise IndexError(f"subpartitions {indices} of {len(partition.subpartitions)}")
        self.partition = partition
        self.credit = credit
        self.row: deque[Cursor] = deque()  # those that have something, but for the current one
        self.current: Cursor | None = None  # in the middle of a record
        self.idle = True  # nothing to send for want of data: to be told
        self._on_data = on_data
        self._unended = indices.size
        pipelined = partition.kind is PartitionType.PIPELINED
        with partition.lock:
            parts = [partition.subpartitions[index] for index in indices.indices]
            if pipelined and any(part.cursor is not None or part.incomplete for part in parts):
                raise PartitionGone("a pipelined subpartition can be read once")
            self.cursors = [Cursor(self, part, index) for index, part in zip(indices.indices, parts, strict=True)]
            for cursor in self.cursors:
                partition.cursors.append(cursor)
                if pipelined:
                    cursor.part.cursor = cursor
                if cursor.part.buffers:
                    cursor.ready = True
                    self.row.append(cursor)
            self.idle = not self.row

    def notify(self) -> None:
        self._on_data()

    @property
    def finished(self) -> bool:
        """EndOfPartition of every subpartition has been taken."""
        return self._unended == 0

    def take(self) -> Taken | None:
        """The next buffer that may be sent; None if there is none, or no credit for it.

        Raises PartitionFailed, PartitionGone.
        """
        partition, credit = self.partition, self.credit
        with partition.lock:
            if partition.state is FAILED:
                raise PartitionFailed(partition.failure)
            if partition.state is RELEASED and not self.finished:
                raise PartitionGone
            cursor = self.current
            if cursor is None:
                if not self.row:
                    self.idle = True
                    return None
                cursor = self.row[0]
            part = cursor.part
            buffer = part.at(cursor.position)
            if buffer is None:  # the rest of a record has not come yet
                self.idle = True
                return None
            data_type = buffer.data_type
            if not credit.may_send(data_type):
                return None
            credit.sent(data_type)
            payload, size = buffer.payload, buffer.size
            assert payload is not None, "a buffer was sent twice"
            backlog = 0 if IS_BLOCKING_UPSTREAM[data_type] else self._backlog(part, buffer)
            partition.consumed(part, cursor.position)
            cursor.position += 1
            if data_type is DataType.END_OF_PARTITION:
                self._unended -= 1
            following = self._go_on(cursor, data_type)
            if following is None:
                self.idle = True
            more = following is not None and credit.may_send(following.data_type)
            starved = partition.starved
        if starved:
            partition.room()
        return Taken(cursor.index, data_type, buffer.compressed, payload, size, backlog, more)

    def _backlog(self, part: Subpartition, buffer: StoredBuffer) -> int:
        if len(self.cursors) == 1:
            return part.backlog_after(buffer)
        own = part.backlog_after(buffer)
        return own + sum(self._waiting(cursor) for cursor in self.cursors if cursor.part is not part)

    @staticmethod
    def _waiting(cursor: Cursor) -> int:
        buffer = cursor.part.at(cursor.position)
        return 0 if buffer is None else cursor.part.data_total - buffer.data_before

    def _go_on(self, cursor: Cursor, data_type: DataType) -> StoredBuffer | None:
        """With the lock held: after a buffer of this type was taken from ``cursor``. What comes next, if it is there."""
        buffer = cursor.part.at(cursor.position)
        if self.current is None:
            self.row.popleft()
        if IS_PARTIAL_RECORD[data_type] and len(self.cursors) > 1:
            self.current = cursor
            cursor.ready = buffer is not None
            return buffer
        self.current = None
        cursor.ready = buffer is not None
        if buffer is not None:
            self.row.append(cursor)
        return self.row[0].part.at(self.row[0].position) if self.row else None

    def backlog(self) -> int:
        """Data buffers that wait for credit; 0 while blocked."""
        with self.partition.lock:
            return 0 if self.credit.blocked else sum(self._waiting(cursor) for cursor in self.cursors)

    def close(self, complete: bool) -> bool:
        """The receiver is gone. ``complete``: by its own will (cancel, close), not by a lost connection.

        True if the partition has been read to its end by everybody and can be released.
        """
        partition = self.partition
        with partition.lock:
            for cursor in self.cursors:
                if cursor in partition.cursors:
                    partition.cursors.remove(cursor)
                part = cursor.part
                if part.cursor is cursor:
                    part.cursor = None
                    if partition.retains and not (complete or self.finished):
                        # Somebody may begin again, with the first buffer.
                        taken = part.buffers[: cursor.position - part.first]
                        partition.unsent += sum(buffer.size for buffer in taken if buffer is not None)
                    else:
                        part.incomplete = True
            if partition.kind is not PartitionType.PIPELINED:
                return False
            return all(part.incomplete and part.cursor is None for part in partition.subpartitions)
