"""The spiller's state of a partition, as one table; and its writes: which buffers are moved next, and how they are copied.

``Spill.state`` holds the state; it is guarded by the partition's lock. Everything else is for the spiller's thread.

IDLE: a piece of its memory is moved to its file when memory is scarce, or, of a blocking partition, when much of it is in memory;
that also happens in the other states before RELEASED. UNTIDY (pipelined only): most of its file belongs to dropped buffers, and
it is queued to be rewritten. LEFT_UNTIDY: the disk refused that; it is tried again after another piece has been written and
garbage is noticed again. FINISHING (blocking only): its writer has pushed everything, and it is queued, or being written to the
end with its index. STORED: data, index and their names are durable. NOT_STORED: the disk refused that; its producer fails.
RELEASED: its buffers have been dropped, and its files are queued to be removed.

A pair that is not in the table is a bug in the broker (AssertionError).

Tests: tests/shuffle/spill/test_spiller.py.
"""

from array import array
from enum import IntEnum
from typing import Self

from broker.runtime.disk import File
from broker.runtime.open_files import CachedFile
from broker.shuffle.partition.holdings import FileRun, Run
from broker.shuffle.partition.result_partition import ResultPartition
from broker.transitions import Transitions


class SpillState(IntEnum):
    IDLE = 0
    UNTIDY = 1
    LEFT_UNTIDY = 2
    FINISHING = 3
    STORED = 4
    NOT_STORED = 5
    RELEASED = 6
    REMOVED = 7


class SpillEvent(IntEnum):
    GARBAGE_FOUND = 0
    FILE_REWRITTEN = 1
    REWRITE_FAILED = 2
    PIECE_WRITTEN = 3
    FINISH_ASKED = 4
    STORE_DONE = 5
    STORE_FAILED = 6
    REMOVE_ASKED = 7
    FILES_REMOVED = 8


TABLE = Transitions(
    SpillState,
    SpillEvent,
    """
    IDLE         GARBAGE_FOUND   UNTIDY
    IDLE         FINISH_ASKED    FINISHING
    IDLE         REMOVE_ASKED    RELEASED
    UNTIDY       FILE_REWRITTEN  IDLE
    UNTIDY       REWRITE_FAILED  LEFT_UNTIDY
    UNTIDY       REMOVE_ASKED    RELEASED
    LEFT_UNTIDY  PIECE_WRITTEN   IDLE
    LEFT_UNTIDY  REMOVE_ASKED    RELEASED
    FINISHING    STORE_DONE      STORED
    FINISHING    STORE_FAILED    NOT_STORED
    FINISHING    REMOVE_ASKED    RELEASED
    STORED       REMOVE_ASKED    RELEASED
    NOT_STORED   REMOVE_ASKED    RELEASED
    RELEASED     FILES_REMOVED   REMOVED
    """,
)
next_state = TABLE.next


class Spill:
    """``state`` is guarded by the partition's lock; the rest belongs to the spiller's thread."""

    __slots__ = ("named_file", "next_subpartition", "partition", "state")

    def __init__(self, partition: ResultPartition) -> None:
        self.partition = partition
        self.state = SpillState.IDLE
        self.named_file: CachedFile | None = None  # the file of a blocking partition, until it is removed
        self.next_subpartition = 0  # the next to be written

    @classmethod
    def stored(cls, partition: ResultPartition, file: CachedFile) -> Self:
        """For a partition that an earlier broker stored."""
        spill = cls(partition)
        spill.state = SpillState.STORED
        spill.named_file = file
        return spill

    def note(self, event: SpillEvent) -> None:
        """With the partition's lock held."""
        self.state = next_state(self.state, event)


# The size of a write: large enough to be cheap, small enough that memory is freed soon.
_PIECE_BYTES = 4 * 1024 * 1024
# Small payloads are joined before they are written: a system call costs as much as copying some KiB.
_JOIN_BYTES = 128 * 1024
# The cost of a buffer in addition to its bytes: gathering many small buffers takes long, too.
_OVERHEAD_BYTES = 64


def oldest(spill: Spill) -> tuple[list[Run], int, int]:
    """With the partition's lock held: the buffers to move next, at most a piece; their number, and their bytes.

    The subpartitions take turns, and each gives its oldest buffers in memory: they are adjacent in the file and read together.
    """
    parts, runs = spill.partition.subpartitions, []
    count = size = 0
    for turn in range(len(parts)):
        part = parts[(spill.next_subpartition + turn) % len(parts)]
        if part is None or not part.payloads:
            continue
        start, payloads = part.oldest_in_memory(_PIECE_BYTES - size - _OVERHEAD_BYTES * count)
        if payloads:
            runs.append((part, start, payloads))
            count += len(payloads)
            size += sum(map(len, payloads))
            if size + _OVERHEAD_BYTES * count >= _PIECE_BYTES:
                spill.next_subpartition = (spill.next_subpartition + turn + 1) % len(parts)
                break
    return runs, count, size


def joined(runs: list[Run]) -> list[bytes]:
    """The payloads of all runs in fewer pieces."""
    whole: list[bytes] = []
    pending: list[bytes] = []
    size = 0
    for _, _, payloads in runs:
        for payload in payloads:
            pending.append(payload)
            size += len(payload)
            if size >= _JOIN_BYTES:
                whole.append(b"".join(pending))
                pending, size = [], 0
    whole.append(b"".join(pending))
    return whole


def copied(old: File, new: File, runs: list[FileRun]) -> tuple[list["array[int]"], int]:
    """Copy buffers from one file to another, contiguously. Returns their new offsets and their end. Raises OSError."""
    moved, end = [], 0
    for _, _, offsets, sizes in runs:
        new_offsets = array("q")
        position = 0
        while position < len(offsets):
            start = stop = offsets[position]
            while position < len(offsets) and offsets[position] == stop and stop - start < _PIECE_BYTES:
                new_offsets.append(end + stop - start)
                stop += sizes[position]
                position += 1
            data = old.pread(stop - start, start)
            if len(data) < stop - start:
                raise OSError(f"a spill file ends before byte {stop}")
            if data:
                new.pwrite([data], end)
            end += stop - start
        moved.append(new_offsets)
    return moved, end
