"""The sources of spilled buffers to be sent: file regions, or bytes read together.

Owned by a view, on the processor of its connection. Large buffers are sent by ``sendfile``. Small buffers that are adjacent in
the file are read with one call. In a finished partition, the following small buffers are read as well and kept for the next turn,
because a receiver with little credit, or one of many, takes one buffer at a time.

Tests: tests/shuffle/serving/test_view.py.
"""

from broker.runtime.disk import File, FileRegion
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.holdings import SpillFile
from broker.shuffle.partition.subpartition import Subpartition

# A spilled buffer of this size or more is sent by sendfile; smaller ones are read together with their neighbours, at most this
# many bytes at once.
_SENDFILE_BYTES = 8 * 1024
_READ_BYTES = 64 * 1024
# In a finished partition the following buffers are read with them, up to this many bytes.
_AHEAD_BYTES = 16 * 1024

_NOTHING = memoryview(b"")

# A buffer to be sent: subpartition, type (for the receiver's generation), compressed, payload, size, backlog.
Taken = tuple[int, int, bool, "bytes | memoryview | FileRegion", int, int]
# The same, but the payload of a spilled buffer is its offset in the file.
Located = tuple[int, int, bool, "bytes | int", int, int]


class ReadAhead:
    """``data``: bytes of the file from ``start`` on, read before they could be sent."""

    __slots__ = ("_budget", "_run_end", "data", "start")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._run_end = 0  # the file offset at which the small buffers after the next buffers end
        self.data = _NOTHING
        self.start = 0

    def look_ahead(self, part: Subpartition, position: int) -> None:
        """The buffer before ``position`` is about to be read: find the small buffers after it. With the partition's lock held."""
        self._run_end = _end_of_small(part, position)

    def look_no_further(self) -> None:
        """Nothing may be read ahead now."""
        self._run_end = 0

    def at_hand(self, part: Subpartition, index: int, most: int, file: File) -> list[memoryview | FileRegion]:
        """Of ``most`` spilled buffers from ``part.kinds[index]`` on, those before the first that must be read before it is sent.

        With the partition's lock held.
        """
        result: list[memoryview | FileRegion] = []
        data, start = self.data, self.start
        offsets, sizes = part.offsets, part.sizes
        for place in range(index, min(index + most, len(offsets))):
            offset, size = offsets[place], sizes[place]
            if size >= _SENDFILE_BYTES:
                result.append(FileRegion(file, offset, size))
            elif start <= offset and offset + size <= start + len(data):
                result.append(data[offset - start : offset - start + size])
            else:
                break
        return result

    def with_payloads(self, taken: list[Located], file: SpillFile) -> list[Taken]:
        """The same buffers with their sources: memory, a file region, or bytes read here. Raises OSError."""
        opened: File | None = None
        result: list[Taken] = []
        run, run_start = self.data, self.start
        for position, (subpartition, data_type, compressed, payload, size, backlog) in enumerate(taken):
            where: bytes | memoryview | FileRegion
            if type(payload) is bytes:
                where = payload
            else:
                assert type(payload) is int
                if size >= _SENDFILE_BYTES:
                    opened = opened or file.get()
                    where = FileRegion(opened, payload, size)
                else:
                    if not run_start <= payload <= payload + size <= run_start + len(run):
                        opened = opened or file.get()
                        run_start, run = payload, self._read(opened, payload, _end_of_run(taken, position))
                    where = run[payload - run_start : payload - run_start + size]
            result.append((subpartition, data_type, compressed, where, size, backlog))
        return result

    def _read(self, file: File, start: int, end: int) -> memoryview:
        """Bytes from ``start`` to at least ``end``. Raises OSError."""
        ahead = end < self._run_end <= start + _AHEAD_BYTES and not self._budget.memory_scarce
        if ahead:
            end = self._run_end
        data = memoryview(file.pread(end - start, start))
        if len(data) < end - start:
            raise OSError(f"{file.path} ends before byte {end}")
        self._keep(data if ahead else _NOTHING, start)
        return data

    def _keep(self, data: memoryview, start: int) -> None:
        if len(data) != len(self.data):
            self._budget.read_ahead(len(data) - len(self.data))
        self.data, self.start = data, start

    def forget(self) -> None:
        """Drop the bytes read ahead."""
        self._keep(_NOTHING, 0)


def _end_of_small(part: Subpartition, position: int) -> int:
    """The file offset at which the small buffers, or the first of them, after the buffer before ``position`` end."""
    offsets, sizes = part.offsets, part.sizes
    index = position - part.first
    end = offsets[index - 1] + sizes[index - 1]
    end_max = end + _AHEAD_BYTES - _SENDFILE_BYTES
    while index < len(offsets) and end < end_max and offsets[index] == end and sizes[index] < _SENDFILE_BYTES:
        end += sizes[index]
        index += 1
    return end


def _end_of_run(taken: list[Located], position: int) -> int:
    """The file offset at which the adjacent small buffers from ``taken[position]`` on end."""
    start = end = taken[position][3]
    assert type(start) is int
    assert type(end) is int
    for _, _, _, payload, size, _ in taken[position:]:
        if payload != end or size >= _SENDFILE_BYTES or end + size - start > _READ_BYTES:
            break
        end += size
    return end
