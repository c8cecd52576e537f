"""The buffers of a subpartition, in the order of their sequence numbers, its reader's position, and the partition's listeners.

Guarded by the lock of its partition. A buffer is a byte of kind and, while it is in memory, its payload, untouched. After it has
been spilled, its payload is an offset and a size, 12 bytes in two arrays. The payload is a buffer's only object, so that millions
of spilled buffers cost neither objects nor visits of the garbage collector.

    first             memory_from                 next_sequence
      | in the file      | in memory                   |          not pushed yet

The partition is below the code that serves connections, which implements the listeners: ``WriterListener`` in
``serving/writers.py``, ``ReaderListener`` in ``serving/view.py``.

Tests: tests/shuffle/test_fencing.py,
tests/shuffle/serving/test_view.py.
"""

from array import array
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from broker.shuffle.partition.reading_state import ReadingEvent, ReadingState, next_state
from protocol.shuffle.data_type import DATA_TYPES, IS_BUFFER, DataType


class WriterListener(Protocol):
    """The connection of a partition's writer. Any thread may call; a call leaves a note with the connection's processor."""

    @property
    def peer(self) -> str:
        """The peer of its connection, for people."""

    @property
    def credit(self) -> int:
        """Pushes that it may still make; from another thread the value may be stale for a moment."""

    def room_freed(self) -> None:
        """A waiting writer may get credit again."""

    def partition_ended(self) -> None:
        """The partition has failed or was released, but not by this writer."""

    def fenced(self) -> None:
        """Another writer has opened the partition."""

    def task_event(self, subpartition: int, event: bytes) -> None:
        """A reader sent an event upstream."""

    def buffer_size(self, subpartition: int, size: int) -> None:
        """A reader asks for buffers of this size (bytes)."""

    def records_processed(self, subpartitions: list[int]) -> None:
        """The readers of these subpartitions have processed all user records."""


class ReaderListener(Protocol):
    """A reader of a partition. Any thread may call, without the partition's lock."""

    def notify(self) -> None:
        """The reader has something to do: it has data where it had none, or the partition has ended."""


# The kind of a buffer is its data type, with this bit set if it is compressed.
COMPRESSED = 0x80
# Dropped buffers in the lists before they are cut: cutting costs the lists' length.
_CUT_FROM = 64
# The cost of a payload, in addition to its bytes, when it is moved to the file.
_OVERHEAD_BYTES = 64

_END_OF_DATA, _END_OF_PARTITION = DataType.END_OF_DATA, DataType.END_OF_PARTITION
_UNREAD, _LOST, _LOST_AT_END = ReadingState.UNREAD, ReadingState.LOST, ReadingState.LOST_AT_END
_ABANDONED = ReadingState.ABANDONED


class Stored(NamedTuple):
    """A single buffer. ``payload``: the bytes, or their offset in the file."""

    data_type: DataType
    compressed: bool
    payload: bytes | int
    size: int


class Reader(ReaderListener, Protocol):
    """A reader of a pipelined partition: it has a cursor in each of its subpartitions."""

    def buffers_added(self, cursor: "Cursor", data: int) -> bool:
        """Buffers were appended at the cursor's subpartition, ``data`` of them with data. Called with the partition's lock held.

        True: call ``notify`` after the lock has been released.
        """


class Cursor:
    """A reader's position in a subpartition.

    Guarded by the partition's lock, except for ``reader``; changed by its reader only.
    """

    __slots__ = ("index", "part", "position", "reader", "ready")

    def __init__(self, reader: Reader, part: "Subpartition", index: int) -> None:
        self.reader = reader
        self.part = part
        self.index = index
        self.position = part.first  # the sequence number of the next buffer to send
        self.ready = False  # it has a buffer to send, and is in the reader's row or its current cursor


class Subpartition:
    __slots__ = (
        "cursor",
        "data_ended",
        "data_total",
        "dropped_before",
        "ended",
        "first",
        "kinds",
        "memory_from",
        "offsets",
        "payloads",
        "reading",
        "sizes",
    )

    def __init__(self) -> None:
        self.first = 0  # sequence number of kinds[0], and of offsets[0] and sizes[0] if there are any
        self.memory_from = 0  # sequence number of payloads[0]
        self.dropped_before = 0  # buffers with lower numbers are dropped, though perhaps not cut yet
        self.kinds = bytearray()
        self.offsets = array("q")
        self.sizes = array("i")
        self.payloads: list[bytes | None] = []  # None: dropped
        self.data_total = 0  # data buffers ever pushed
        # Two independent facts, not states: a writer may push EndOfPartition without EndOfData.
        self.data_ended = False  # EndOfData was pushed
        self.ended = False  # EndOfPartition was pushed
        self.reading = _UNREAD
        self.cursor: Cursor | None = None  # of its reader; only in the states READING and CONSUMING

    # -- its reader -----------------------------------------------------------------------------------------------------

    @property
    def claimable(self) -> bool:
        """A reader may claim it."""
        return self.reading is _UNREAD or self.reading is _LOST or self.reading is _LOST_AT_END

    @property
    def waits_for_reader(self) -> bool:
        """Its reader was lost, and another may come."""
        return self.reading is _LOST or self.reading is _LOST_AT_END

    @property
    def sent_all(self) -> bool:
        """Its reader was lost after everything had been sent."""
        return self.reading is _LOST_AT_END

    @property
    def abandoned(self) -> bool:
        """It has no reader and cannot get one."""
        return self.reading is _ABANDONED

    def claim(self, reader: Reader, index: int) -> Cursor:
        """``reader`` begins with the first kept buffer."""
        self.reading = next_state(self.reading, ReadingEvent.READER_CAME)
        self.cursor = cursor = Cursor(reader, self, index)
        return cursor

    def note(self, event: ReadingEvent) -> None:
        """Apply an event of the table. When the reader leaves, its cursor is dropped."""
        self.reading = next_state(self.reading, event)
        if event is not ReadingEvent.BUFFERS_DROPPED:
            self.cursor = None

    # -- its buffers ----------------------------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        return self.first + len(self.kinds)

    @property
    def kept(self) -> range:
        """The sequence numbers of the kept buffers."""
        return range(self.dropped_before, self.first + len(self.kinds))

    def at(self, position: int) -> Stored | None:
        """The buffer numbered ``position``, None if it has not been pushed yet."""
        index = position - self.first
        if index >= len(self.kinds):
            return None
        kind = self.kinds[index]
        data_type, compressed = DATA_TYPES[kind & ~COMPRESSED], bool(kind & COMPRESSED)
        if position < self.memory_from:
            return Stored(data_type, compressed, self.offsets[index], self.sizes[index])
        payload = self.payloads[position - self.memory_from]
        assert payload is not None, "the buffer was dropped"
        return Stored(data_type, compressed, payload, len(payload))

    def append(self, data_type: DataType, compressed: bool, payload: bytes) -> None:
        self.kinds.append(data_type | COMPRESSED if compressed else data_type)
        self.payloads.append(payload)
        self._count(data_type)

    def extend(self, data_types: Iterable[int], compressed: Collection[int], payloads: Collection[bytes]) -> None:
        """Append data buffers."""
        if any(compressed):
            kinds = zip(data_types, compressed, strict=True)
            data_types = [kind | COMPRESSED if flag else kind for kind, flag in kinds]
        self.kinds.extend(data_types)
        self.payloads.extend(payloads)
        self.data_total += len(payloads)

    def load(self, data_type: DataType, compressed: bool, offset: int, size: int) -> None:
        """Add a buffer that an earlier broker wrote to the file."""
        self.kinds.append(data_type | COMPRESSED if compressed else data_type)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.memory_from += 1
        self._count(data_type)

    def _count(self, data_type: DataType) -> None:
        if IS_BUFFER[data_type]:
            self.data_total += 1
        elif data_type is _END_OF_DATA:
            self.data_ended = True
        elif data_type is _END_OF_PARTITION:
            self.ended = True

    def pass_over(self, data_type: DataType) -> None:
        """Count a pushed buffer without keeping it. No other buffer may be kept."""
        assert not self.kinds
        self.first += 1
        self.memory_from = self.dropped_before = self.first
        self._count(data_type)

    def bytes_between(self, start: int, end: int) -> int:
        """Bytes of the kept buffers from ``start`` to before ``end``."""
        border = min(max(self.memory_from, start), end)
        size = sum(self.sizes[start - self.first : border - self.first]) if border > start else 0
        held = self.payloads[border - self.memory_from : end - self.memory_from]
        return size + sum(len(payload) for payload in held if payload is not None)

    def drop_before(self, end: int) -> None:
        """Drop the buffers before ``end``."""
        start, border = self.dropped_before, self.memory_from
        if end > border:
            begin = start - border if start > border else 0
            if end == border + begin + 1:
                self.payloads[begin] = None
            else:
                self.payloads[begin : end - border] = [None] * (end - border - begin)
        self.dropped_before = end
        count = end - self.first
        if count > _CUT_FROM and count * 2 > len(self.kinds):
            self._cut(end)

    def _cut(self, end: int) -> None:
        count = end - self.first
        del self.kinds[:count]
        if end < self.memory_from:
            del self.offsets[:count]
            del self.sizes[:count]
        else:
            self.offsets, self.sizes = array("q"), array("i")
            del self.payloads[: end - self.memory_from]
            self.memory_from = end
        self.first = end

    def clear(self) -> None:
        """Drop all buffers."""
        end = self.first + len(self.kinds)
        self.kinds = bytearray()
        self.offsets, self.sizes = array("q"), array("i")
        self.payloads = []
        self.first = self.memory_from = self.dropped_before = end

    # -- to the file ----------------------------------------------------------------------------------------------------

    def oldest_in_memory(self, bytes_max: int) -> tuple[int, list[bytes]]:
        """The oldest buffers in memory: the sequence number of the first, and payloads of about ``bytes_max``.

        Each counts more than its bytes, because the partition's lock is held while small payloads are gathered.
        """
        start = max(self.memory_from, self.dropped_before)
        oldest: list[bytes] = []
        for index in range(start - self.memory_from, len(self.payloads)):
            payload = self.payloads[index]
            assert payload is not None
            oldest.append(payload)
            bytes_max -= len(payload) + _OVERHEAD_BYTES
            if bytes_max <= 0:
                break
        return start, oldest

    def spilled(self, start: int, payloads: list[bytes], offset: int) -> tuple[int, int]:
        """These payloads, numbered from ``start`` on, are now in the file, contiguously from ``offset`` on.

        Returns the number of those still kept, and their bytes; the others were dropped meanwhile.
        """
        end = start + len(payloads)
        if self.memory_from < start:  # dropped before, but not cut yet
            self._cut(start)
        count = size = 0
        for position, payload in enumerate(payloads, start):
            length = len(payload)
            if position >= self.memory_from:
                self.offsets.append(offset)
                self.sizes.append(length)
                if position >= self.dropped_before:
                    count += 1
                    size += length
            offset += length
        if end > self.memory_from:
            del self.payloads[: end - self.memory_from]
            self.memory_from = end
        return count, size

    def kept_in_file(self) -> "tuple[int, array[int], array[int]] | None":
        """The kept buffers in the file: the first's sequence number, their offsets and sizes. None: there are none."""
        start = self.dropped_before
        if self.memory_from <= start:
            return None
        index = start - self.first
        return start, self.offsets[index:], self.sizes[index:]

    def moved_in_file(self, start: int, offsets: "array[int]") -> None:
        """The result of ``kept_in_file`` has been copied: the buffers from ``start`` on are now at ``offsets``.

        Does nothing if all were dropped meanwhile.
        """
        if self.memory_from == start + len(offsets) and self.offsets:
            first = max(start, self.first)
            self.offsets[first - self.first :] = offsets[first - start :]
