"""The readers of a result partition with the subpartitions left to them, and its writer with its successor's inheritance.

Guarded by the partition's lock, which the caller holds. Each opening of a partition has an epoch, one higher than the previous
opening's; the newest opening has the partition, and pushes from an earlier epoch are refused.

Tests: tests/shuffle/test_model.py,
tests/shuffle/serving/test_view.py,
tests/shuffle/test_writing.py.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from broker.shuffle.partition.holdings import Holdings
from broker.shuffle.partition.reading_state import ReadingEvent
from broker.shuffle.partition.subpartition import ReaderListener, Subpartition, WriterListener
from protocol.shuffle.ids import IndexSet
from protocol.shuffle.writer_frames import NO_INCARNATION


class Readers:
    __slots__ = (
        "_abandoned",
        "_data_before",
        "_holdings",
        "_inside_records",
        "_pipelined",
        "_readers",
        "_retains",
        "_subpartitions",
        "forsaken",
    )

    def __init__(
        self, subpartitions: list[Subpartition | None], holdings: Holdings, pipelined: bool, retains: bool
    ) -> None:
        self._subpartitions = subpartitions
        self._holdings = holdings
        self._pipelined = pipelined
        self._retains = retains
        self.forsaken = False  # a reader was lost before the end, and no other can replace it
        self._readers: dict[ReaderListener, None] = {}
        self._inside_records = 0  # readers of several subpartitions that are waiting for the rest of a record
        self._abandoned = 0  # so many of the first subpartitions are known to be abandoned
        self._data_before: array[int] | None = None  # of a finished partition: data buffers before each subpartition

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[ReaderListener]:
        return iter(self._readers)

    def add(self, reader: ReaderListener) -> None:
        self._readers[reader] = None

    def remove(self, reader: ReaderListener) -> None:
        self._readers.pop(reader, None)

    def take_all(self) -> Iterable[ReaderListener]:
        """Remove all readers; the caller tells them of the partition's end."""
        readers, self._readers = self._readers, {}
        return readers

    def data_of(self, indices: IndexSet) -> int:
        """The number of data buffers of these subpartitions of a finished partition."""
        parts = self._subpartitions
        if indices.size == 1:
            part = parts[indices.start]
            return 0 if part is None else part.data_total
        if self._data_before is None:
            totals = (0 if part is None else part.data_total for part in parts)
            self._data_before = array("q", accumulate(totals, initial=0))
        return self._data_before[indices.end + 1] - self._data_before[indices.start]

    # -- inside a record ------------------------------------------------------------------------------------------------

    @property
    def inside_record(self) -> bool:
        """A reader waits for the rest of a record, which must come, however much else is unread."""
        return self._inside_records > 0

    def wait_inside_record(self) -> None:
        """A reader of several subpartitions has begun a record and takes nothing else before its rest is pushed."""
        self._inside_records += 1

    def go_on_inside_record(self) -> None:
        """The rest has come, or the reader has left."""
        self._inside_records -= 1

    # -- leaving --------------------------------------------------------------------------------------------------------

    def leave(self, part: Subpartition, position: int, cancelled: bool, sent_all: bool) -> None:
        """The reader of a pipelined subpartition has left; it was sent the buffers before ``position``.

        ``cancelled``: it has cancelled; otherwise its connection was lost, perhaps with the last buffers. ``sent_all``: it
        was sent everything to the end.
        """
        if cancelled or not self._retains:
            self._abandon(part, position, ReadingEvent.READER_LEFT, lost=not (cancelled or sent_all))
        else:
            part.note(ReadingEvent.READER_LOST_AT_END if sent_all else ReadingEvent.READER_LOST)
            self._holdings.unsend(part, position)

    def _abandon(self, part: Subpartition, position: int, event: ReadingEvent, lost: bool) -> None:
        """No reader continues from ``position``. ``lost``: the reader has not cancelled, its connection was lost."""
        part.note(event)
        self.forsaken = self.forsaken or lost
        self._holdings.drop(part, position)

    def give_up_lost(self) -> None:
        """No reader has replaced the lost readers."""
        for part in self._subpartitions:
            if part is not None and part.waits_for_reader:
                lost = not part.sent_all
                self._abandon(part, part.dropped_before, ReadingEvent.WAIT_ENDED, lost)

    @property
    def all_left(self) -> bool:
        """The partition is pipelined, and no reader can read it any more."""
        # ABANDONED is final, so each subpartition is examined once, however many readers leave.
        parts = self._subpartitions
        while self._abandoned < len(parts) and (part := parts[self._abandoned]) is not None and part.abandoned:
            self._abandoned += 1
        return self._pipelined and self._abandoned == len(parts)


class Fenced(Exception):
    """A newer opening has taken over the partition."""


class WriterLease:
    __slots__ = ("_attempt", "_incarnation", "_opener", "_processed", "buffer_bytes", "cut_off", "epoch", "listener")

    def __init__(self) -> None:
        self.epoch = 0  # epoch of the newest opening
        self.listener: WriterListener | None = None  # of the writer's connection, while it has one
        self.buffer_bytes = 0  # the size of the last writer's buffers, when it left
        self.cut_off = False  # the last writer was disconnected for want of room for its push
        self._incarnation = NO_INCARNATION  # of the last writer that opened the partition
        self._attempt = 0  # of that writer
        self._opener: Callable[[bool], None] | None = None  # of a writer that came while the partition was finishing
        self._processed: set[int] = set()  # subpartitions with all records processed

    def check(self, incarnation: int, resumes: bool, attempt: int) -> None:
        """Raises Fenced if a writer may not open the partition.

        It may not if it ``resumes`` and another writer has opened the partition since, or if it is an earlier ``attempt`` of the
        same writer, which has given up that connection.
        """
        if incarnation == self._incarnation != NO_INCARNATION:
            if attempt < self._attempt:
                raise Fenced
            self._attempt = attempt
        elif resumes and self.epoch:
            raise Fenced

    def take(self, listener: WriterListener, incarnation: int, attempt: int) -> WriterListener | None:
        """A writer that passed ``check`` opens the partition.

        Returns the listener of the fenced writer, if it is connected.
        """
        self.epoch += 1
        self._incarnation, self._attempt = incarnation, attempt
        before, self.listener = self.listener, listener
        return before

    def give_up(self, epoch: int) -> bool:
        """The writer of this epoch has left. False if another writer has the partition."""
        if epoch != self.epoch:
            return False
        self.listener = None
        return True

    def remember_buffers(self, size: int) -> None:
        """A writer with buffers of this size (bytes) has left."""
        self.buffer_bytes = size

    def note_cut_off(self) -> None:
        self.cut_off = True

    def take_cut_off(self) -> bool:
        """Whether the last writer was cut off; clears the mark."""
        cut_off, self.cut_off = self.cut_off, False
        return cut_off

    def set_opener(self, opener: Callable[[bool], None] | None) -> Callable[[bool], None] | None:
        """Set the callback for the end of finishing. Returns the previous one."""
        before, self._opener = self._opener, opener
        return before

    def newly_processed(self, subpartitions: range) -> list[int]:
        """The ``subpartitions`` not yet reported to the writer as processed; they count as reported now."""
        new = [index for index in subpartitions if index not in self._processed]
        self._processed.update(new)
        return new
