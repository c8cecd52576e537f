"""Which buffers the spiller moves next, and how they are written and copied.

On the spiller's thread.

Tests: tests/shuffle/spill/test_spiller.py.
"""

from array import array

from broker.runtime.disk import File
from broker.shuffle.partition.holdings import FileRun, Run
from broker.shuffle.spill.spill import Spill

# One write: long enough to be cheap, short enough that memory is freed soon.
_PIECE_BYTES = 4 * 1024 * 1024
# Small payloads are put together before they are written: a system call costs as much as copying some KiB.
_JOIN_BYTES = 128 * 1024
# What a buffer counts beside its bytes: gathering many small ones takes long, too.
_OVERHEAD_BYTES = 64


def oldest(spill: Spill) -> tuple[list[Run], int, int]:
    """With the partition's lock held: what to move next, at most a piece; how many buffers, and their bytes.

    The subpartitions take turns, and each gives the oldest buffers that it has in memory: they lie together in the file and are
    read together.
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
    """Copy buffers from one file to another, one after another. Returns their new offsets, and where they end. OSError."""
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
