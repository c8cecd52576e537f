"""Which writer has a result partition, and what the next one inherits from it.

Guarded by the partition's lock, which the caller holds. Each opening of a partition has an epoch, one higher than the one before;
the newest opening has the partition, and what comes from an earlier epoch is refused.
"""

from collections.abc import Callable

from broker.shuffle.partition.listeners import WriterListener
from protocol.shuffle.writer_frames import NO_INCARNATION


class Fenced(Exception):
    """A newer opening has taken the partition over."""


class WriterLease:
    __slots__ = ("_attempt", "_incarnation", "_opener", "_processed", "buffer_bytes", "cut_off", "epoch", "listener")

    def __init__(self) -> None:
        self.epoch = 0  # of the newest opening
        self.listener: WriterListener | None = None  # of the writer's connection, while it has one
        self.buffer_bytes = 0  # the size of the last writer's buffers, when it left
        self.cut_off = False  # the last writer was disconnected because there was no room for its push
        self._incarnation = NO_INCARNATION  # of the writer that opened the partition last
        self._attempt = 0  # of that writer
        self._opener: Callable[[bool], None] | None = None  # a writer that came while the partition was being finished
        self._processed: set[int] = set()  # subpartitions whose readers have processed everything

    def check(self, incarnation: int, resumes: bool, attempt: int) -> None:
        """Raises Fenced if a writer may not open the partition.

        That is so if it ``resumes`` and another writer has opened the partition since, or if it is an earlier ``attempt`` of the
        same writer, which has given up that connection.
        """
        if incarnation == self._incarnation != NO_INCARNATION:
            if attempt < self._attempt:
                raise Fenced
            self._attempt = attempt
        elif resumes and self.epoch:
            raise Fenced

    def take(self, listener: WriterListener, incarnation: int, attempt: int) -> WriterListener | None:
        """A writer that was checked opens the partition.

        Returns the listener of the writer that is fenced, if it is connected.
        """
        self.epoch += 1
        self._incarnation, self._attempt = incarnation, attempt
        before, self.listener = self.listener, listener
        return before

    def give_up(self, epoch: int) -> bool:
        """The writer of this epoch has left. False if another one has the partition."""
        if epoch != self.epoch:
            return False
        self.listener = None
        return True

    def remember_buffers(self, size: int) -> None:
        """A writer has left whose buffers were of this size (bytes)."""
        self.buffer_bytes = size

    def note_cut_off(self) -> None:
        self.cut_off = True

    def take_cut_off(self) -> bool:
        """Whether the last writer was cut off; the next one is not told again."""
        cut_off, self.cut_off = self.cut_off, False
        return cut_off

    def set_opener(self, opener: Callable[[bool], None] | None) -> Callable[[bool], None] | None:
        """Remember who is to be told when finishing has ended. Returns who was to be told until now."""
        before, self._opener = self._opener, opener
        return before

    def newly_processed(self, subpartitions: range) -> list[int]:
        """Those of ``subpartitions`` whose writer has not been told yet that all their records were processed."""
        new = [index for index in subpartitions if index not in self._processed]
        self._processed.update(new)
        return new
