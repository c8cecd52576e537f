"""The contents of a result partition: its buffers in memory and in its file, and their accounts; and the files' interface.

Owns the counters of a partition, and knows its file. Guarded by the partition's lock, which the caller of every method except
``settle`` holds. Everything counted here is also counted in the budget of all partitions.

Tests: tests/shuffle/test_model.py,
tests/shuffle/serving/test_view.py,
tests/shuffle/spill/test_spiller.py.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.runtime.disk import File
from broker.runtime.threads import Lock
from broker.shuffle.partition.budget import IN_FILE_BYTES, IN_MEMORY_BYTES, Budget, NoRoom
from broker.shuffle.partition.reading_state import ReadingEvent, ReadingState
from broker.shuffle.partition.subpartition import Subpartition
from protocol.shuffle.data_type import DataType
from protocol.shuffle.push_row import PushRun


class SpillFile(Protocol):
    """The file of a partition. Files with a name are open only while they are used."""

    def get(self) -> File:
        """The open file; it stays open as long as the caller keeps the reference. OSError."""


class NamelessFile:
    """A file whose name was removed: it is deleted when its last reference is dropped."""

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    def get(self) -> File:
        return self._file


# The cost of an empty buffer, counted against the bound of a pipelined partition.
BUFFER_OVERHEAD = 128
# A pipelined partition's file is rewritten when this many bytes of it, and half of it, belong to dropped buffers: as many bytes
# were written before, so rewriting doubles the cost at most.
_GARBAGE_BYTES = 16 * 1024 * 1024

_CONSUMING = ReadingState.CONSUMING

# Buffers of a subpartition: the sequence number of the first, and their payloads.
Run = tuple[Subpartition, int, list[bytes]]
# Buffers of a subpartition in a file: the sequence number of the first, and their offsets and sizes.
FileRun = tuple[Subpartition, int, "array[int]", "array[int]"]


class OverQuota(Exception):
    """The owner's quota is used up."""


def _nothing() -> None:
    pass


class Holdings:
    __slots__ = (
        "_budget",
        "_lock",
        "_owed_buffers",
        "_owed_bytes",
        "_owner",
        "_retains",
        "disk",
        "file",
        "file_end",
        "in_file",
        "in_memory",
        "live_bytes",
        "memory",
        "on_garbage",
        "structure",
        "unsent",
    )

    def __init__(self, budget: Budget, owner: str, lock: Lock, retains: bool, structure: int) -> None:
        """``retains``: sent buffers are kept. ``structure``: bytes that the budget's index already counts for the partition."""
        self._budget = budget
        self._owner = owner
        self._lock = lock
        self._retains = retains
        self.structure = structure  # bytes of the budget's index for the partition and its subpartitions
        self.unsent = 0  # bytes that were sent to no reader, with `BUFFER_OVERHEAD` for each buffer
        self.memory = 0  # bytes of payloads in memory
        self.disk = 0  # bytes of `file`
        self.live_bytes = 0  # bytes of `file` with buffers that are not dropped, in a pipelined partition
        self.in_memory = 0  # buffers in memory
        self.in_file = 0  # buffers in `file`
        self.file: SpillFile | None = None
        self.file_end = 0
        # Called when much of the file belongs to dropped buffers, with the lock held, at each drop until the file is rewritten.
        self.on_garbage: Callable[[], None] = _nothing
        self._owed_bytes = self._owed_buffers = 0  # sent and dropped, but still counted by the budget

    @property
    def buffers(self) -> int:
        return self.in_memory + self.in_file

    @property
    def index_bytes(self) -> int:
        """The bytes kept in addition to payloads."""
        return self.structure + self.in_memory * IN_MEMORY_BYTES + self.in_file * IN_FILE_BYTES

    # -- adding ---------------------------------------------------------------------------------------------------------

    def charge(self, structure: int, bounded: bool = False) -> None:
        """Count subpartitions that are used for the first time. Raises NoRoom if ``bounded`` and they are too many."""
        self._budget.charge(self._owner, structure, bounded)
        self.structure += structure

    def keep(
        self,
        part: Subpartition,
        data_type: DataType,
        compressed: bool,
        payload: bytes | memoryview,
        obliged: bool = False,
        unpromised: int | None = None,
    ) -> None:
        """Keep a buffer; copies the payload once. Raises OverQuota, NoRoom. For the options see ``Budget.take``."""
        size = len(payload)
        budget = self._budget
        if not budget.take(self._owner, size, obliged, IN_MEMORY_BYTES, unpromised):
            raise OverQuota(f"{self._owner or 'nobody'} has {budget.owned(self._owner)} bytes")
        part.append(data_type, compressed, bytes(payload))
        self.memory += size
        self.unsent += size + BUFFER_OVERHEAD
        self.in_memory += 1

    def make_room(self, size: int, count: int) -> bool:
        """Have the budget count ``count`` buffers of ``size`` bytes, to be kept next. False if it has no room for all."""
        try:
            return self._budget.take(self._owner, size, index=count * IN_MEMORY_BYTES)
        except NoRoom:
            return False

    def keep_run(self, part: Subpartition, run: PushRun) -> None:
        """Keep these buffers, for which ``make_room`` was called."""
        part.extend(run.data_types, run.compressed, run.payloads)
        count = len(run.payloads)
        self.memory += run.size
        self.unsent += run.size + count * BUFFER_OVERHEAD
        self.in_memory += count

    def load(self, part: Subpartition, data_type: DataType, compressed: bool, offset: int, size: int) -> None:
        """Add a buffer that an earlier broker wrote to the file. ``count_loaded`` later counts all in the budget."""
        part.load(data_type, compressed, offset, size)
        self.disk += size
        self.in_file += 1

    # -- sending -------------------------------------------------------------------------------------------------------

    def sent(self, part: Subpartition, end: int, memory: int, in_memory: int, in_file: int, in_file_bytes: int) -> None:
        """The buffers before ``end`` were taken out of a pipelined subpartition; ``settle`` is to be called soon.

        ``memory``, ``in_file_bytes``: bytes of the buffers in memory and in the file; ``in_memory``, ``in_file``: their numbers.
        """
        self.unsent -= memory + in_file_bytes + (in_memory + in_file) * BUFFER_OVERHEAD
        if not self._retains:
            if part.reading is not _CONSUMING:
                part.note(ReadingEvent.BUFFERS_DROPPED)
            part.drop_before(end)
            if in_file:
                self._dropped(memory, in_memory, in_file, in_file_bytes)
            else:
                self.memory -= memory
                self.in_memory -= in_memory
                self._owed_bytes += memory
                self._owed_buffers += in_memory

    def sent_from_memory(self, part: Subpartition, end: int, memory: int, count: int) -> bool:
        """``sent``, for ``count`` buffers of ``memory`` bytes, all in memory.

        True: they were dropped, and the caller must give them back to the budget, without the lock.
        """
        self.unsent -= memory + count * BUFFER_OVERHEAD
        if self._retains:
            return False
        if part.reading is not _CONSUMING:
            part.note(ReadingEvent.BUFFERS_DROPPED)
        part.drop_before(end)
        self.memory -= memory
        self.in_memory -= count
        return True

    def settle(self) -> None:
        """Give ``sent`` buffers back to the budget. Without the lock.

        Not done for each buffer, because all partitions share the budget and its lock.
        """
        with self._lock:
            memory, self._owed_bytes = self._owed_bytes, 0
            buffers, self._owed_buffers = self._owed_buffers, 0
        if buffers:
            self._budget.give_back(self._owner, memory, 0, buffers * IN_MEMORY_BYTES)

    def unsend(self, part: Subpartition, position: int) -> None:
        """The buffers before ``position`` will be sent again, to another reader."""
        begin = part.dropped_before
        self.unsent += part.bytes_between(begin, position) + (position - begin) * BUFFER_OVERHEAD

    # -- dropping ----------------------------------------------------------------------------------------------------------

    def drop(self, part: Subpartition, position: int) -> None:
        """Drop all buffers of a pipelined subpartition; those before ``position`` had been sent to its reader."""
        if not part.kinds:
            return
        end = part.next_sequence
        begin = max(position, part.dropped_before)
        self.unsent -= part.bytes_between(begin, end) + (end - begin) * BUFFER_OVERHEAD
        kept = part.dropped_before
        in_file = max(0, part.memory_from - kept)
        memory = part.bytes_between(kept + in_file, end)
        in_file_bytes = part.bytes_between(kept, kept + in_file)
        part.clear()
        self._dropped(memory, end - kept - in_file, in_file, in_file_bytes)

    def _dropped(self, memory: int, in_memory: int, in_file: int, in_file_bytes: int) -> None:
        disk = 0
        if in_file:
            self.in_file -= in_file
            self.live_bytes -= in_file_bytes
            if not self.in_file:  # all of the file is dropped; regions being sent keep it open
                disk, self.disk = self.disk, 0
                self.file_end = self.live_bytes = 0
                self.file = None
            elif self.disk > 2 * self.live_bytes + _GARBAGE_BYTES:
                self.on_garbage()
        self.memory -= memory
        self.in_memory -= in_memory
        self._budget.give_back(self._owner, memory, disk, in_memory * IN_MEMORY_BYTES + in_file * IN_FILE_BYTES)

    def drop_all(self, parts: Sequence[Subpartition | None]) -> None:
        """Drop the buffers of all subpartitions. ``file_end`` stays: the spiller needs the file's size."""
        for part in parts:
            if part is not None:
                part.clear()
        self._budget.give_back(self._owner, self.memory, self.disk, self.index_bytes - self.structure)
        self.memory = self.disk = self.live_bytes = self.unsent = self.in_memory = self.in_file = 0
        self.file = None  # regions being sent keep it open

    def take_structure(self) -> int:
        """The bytes of a released partition's objects, which the caller gives back to the budget without the lock."""
        structure, self.structure = self.structure, 0
        return structure

    # -- the spiller's --------------------------------------------------------------------------------------------------

    def piece_written(self, file: SpillFile, offset: int, runs: list[Run]) -> None:
        """The payloads of ``runs`` have been written to ``file``, contiguously from ``offset`` on."""
        moved = kept = 0
        for part, start, payloads in runs:
            count, size = part.spilled(start, payloads, offset)  # the others were sent meanwhile
            kept += count
            moved += size
            offset += sum(map(len, payloads))
        self.file = file
        self.file_end = offset
        self.in_memory -= kept
        self.in_file += kept
        self.memory -= moved
        self.disk += moved
        self.live_bytes += moved
        if not self.in_file:
            self.file, self.file_end = None, 0
        # Still with the lock held, before moved buffers can be given back.
        self._budget.spilled(moved, kept * (IN_MEMORY_BYTES - IN_FILE_BYTES), self._owner)

    def file_rewritten(self, file: SpillFile, end: int, runs: list[FileRun], moved: "list[array[int]]") -> None:
        """The kept buffers have been copied to ``file``, of ``end`` bytes; ``moved``: their offsets there."""
        for (part, start, _, _), offsets in zip(runs, moved, strict=True):
            part.moved_in_file(start, offsets)
        self.file, self.file_end = file, end
        unused, self.disk = self.disk - end, end
        self._budget.give_back(self._owner, 0, unused)

    def loaded(self, file: SpillFile, size: int) -> None:
        """All buffers have been loaded; they lie in ``file``, of ``size`` bytes."""
        self.file = file
        self.file_end = size

    def count_loaded(self, structure: int) -> None:
        """Count a loaded partition in the budget; its subpartitions have been charged, ``structure`` has not."""
        charged = self.structure
        self.structure += structure
        self._budget.loaded(self._owner, self.disk, self.index_bytes - charged)
