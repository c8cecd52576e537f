"""The buffers of one subpartition, in the order of their sequence numbers; the oldest of them may lie in a file.

Guarded by the lock of its partition. A buffer is a byte of kind and, as long as it is in memory, its payload, untouched; when it
has been spilled its payload is an offset and a size, 12 bytes in two arrays. There is no object for a buffer but the payload, so
that neither millions of spilled ones nor the garbage collector's visits cost what they would otherwise.

    first             memory_from                 next_sequence
      | in the file      | in memory                   |          nothing has come yet
"""

from array import array
from typing import TYPE_CHECKING, NamedTuple

from protocol.shuffle.data_type import DATA_TYPES, IS_BUFFER, DataType

if TYPE_CHECKING:
    from broker.shuffle.serving.view import Cursor

# The kind of a buffer is its data type, and this if it is compressed.
COMPRESSED = 0x80
# How much longer than what is kept the lists may get before they are cut: cutting costs their length.
_CUT_FROM = 64
# What a payload counts beside its bytes when it is moved to the file.
_OVERHEAD_BYTES = 64

_END_OF_DATA, _END_OF_PARTITION = DataType.END_OF_DATA, DataType.END_OF_PARTITION


class Stored(NamedTuple):
    """One buffer, for those who look at single ones. ``payload``: the bytes, or their offset in the file."""

    data_type: DataType
    compressed: bool
    payload: bytes | int
    size: int


class Subpartition:
    __slots__ = (
        "cursor",
        "data_ended",
        "data_total",
        "ended",
        "first",
        "incomplete",
        "kinds",
        "let_go_before",
        "lost",
        "memory_from",
        "offsets",
        "payloads",
        "sent_all",
        "sizes",
    )

    def __init__(self) -> None:
        self.first = 0  # sequence number of kinds[0], and of offsets[0] and sizes[0] if there are any
        self.memory_from = 0  # sequence number of payloads[0]
        self.let_go_before = 0  # what has a lower number is gone, though it may not have been cut yet
        self.kinds = bytearray()
        self.offsets = array("q")
        self.sizes = array("i")
        self.payloads: list[bytes | None] = []  # None: let go
        self.data_total = 0  # data buffers ever
        self.data_ended = False  # EndOfData has come
        self.ended = False  # the last one is EndOfPartition
        self.cursor: Cursor | None = None  # a pipelined one's reader
        self.incomplete = False  # a reader has had buffers that are not kept any more
        self.lost = False  # its reader's connection was lost; another may begin again
        self.sent_all = False  # ... when it had been sent everything

    @property
    def gone(self) -> bool:
        """A pipelined one that nobody reads any more, nor ever can."""
        return self.incomplete and self.cursor is None

    @property
    def next_sequence(self) -> int:
        return self.first + len(self.kinds)

    @property
    def kept(self) -> range:
        """The sequence numbers of what is there."""
        return range(self.let_go_before, self.first + len(self.kinds))

    def at(self, position: int) -> Stored | None:
        """None if it has not come yet."""
        index = position - self.first
        if index >= len(self.kinds):
            return None
        kind = self.kinds[index]
        data_type, compressed = DATA_TYPES[kind & ~COMPRESSED], bool(kind & COMPRESSED)
        if position < self.memory_from:
            return Stored(data_type, compressed, self.offsets[index], self.sizes[index])
        payload = self.payloads[position - self.memory_from]
        assert payload is not None, "a buffer that was let go of"
        return Stored(data_type, compressed, payload, len(payload))

    def append(self, data_type: DataType, compressed: bool, payload: bytes) -> None:
        self.kinds.append(data_type | COMPRESSED if compressed else data_type)
        self.payloads.append(payload)
        self.note(data_type)

    def load(self, data_type: DataType, compressed: bool, offset: int, size: int) -> None:
        """One that was in the file before this broker began."""
        self.kinds.append(data_type | COMPRESSED if compressed else data_type)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.memory_from += 1
        self.note(data_type)

    def note(self, data_type: DataType) -> None:
        """A buffer of this type has come."""
        if IS_BUFFER[data_type]:
            self.data_total += 1
        elif data_type is _END_OF_DATA:
            self.data_ended = True
        elif data_type is _END_OF_PARTITION:
            self.ended = True

    def pass_over(self, data_type: DataType) -> None:
        """One has come and is not kept. Nothing else is kept either."""
        assert not self.kinds
        self.first += 1
        self.memory_from = self.let_go_before = self.first
        self.note(data_type)

    def bytes_between(self, start: int, end: int) -> int:
        """Of those kept from ``start`` to before ``end``."""
        border = min(max(self.memory_from, start), end)
        size = sum(self.sizes[start - self.first : border - self.first]) if border > start else 0
        held = self.payloads[border - self.memory_from : end - self.memory_from]
        return size + sum(len(payload) for payload in held if payload is not None)

    def let_go(self, end: int) -> None:
        """Forget what comes before ``end``."""
        start, border = self.let_go_before, self.memory_from
        if end > border:
            begin = start - border if start > border else 0
            if end == border + begin + 1:
                self.payloads[begin] = None
            else:
                self.payloads[begin : end - border] = [None] * (end - border - begin)
        self.let_go_before = end
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
        """Forget everything."""
        end = self.first + len(self.kinds)
        self.kinds = bytearray()
        self.offsets, self.sizes = array("q"), array("i")
        self.payloads = []
        self.first = self.memory_from = self.let_go_before = end

    # -- to the file ----------------------------------------------------------------------------------------------------

    def oldest_in_memory(self, most_bytes: int) -> tuple[int, list[bytes]]:
        """The sequence number of the first, and the payloads from there on, up to the one with which they are so many bytes.

        Each counts some bytes more: somebody waits for the partition's lock while small ones are gathered.
        """
        start = max(self.memory_from, self.let_go_before)
        found: list[bytes] = []
        for index in range(start - self.memory_from, len(self.payloads)):
            payload = self.payloads[index]
            assert payload is not None
            found.append(payload)
            most_bytes -= len(payload) + _OVERHEAD_BYTES
            if most_bytes <= 0:
                break
        return start, found

    def spilled(self, start: int, payloads: list[bytes], offset: int) -> tuple[int, int]:
        """These, from ``start`` on, lie in the file now, one after another from ``offset`` on.

        Returns how many of them were still wanted, and their bytes; others were let go of meanwhile.
        """
        end = start + len(payloads)
        if self.memory_from < start:  # let go of before, and not cut yet
            self._cut(start)
        count = size = 0
        for position, payload in enumerate(payloads, start):
            length = len(payload)
            if position >= self.memory_from:
                self.offsets.append(offset)
                self.sizes.append(length)
                if position >= self.let_go_before:
                    count += 1
                    size += length
            offset += length
        if end > self.memory_from:
            del self.payloads[: end - self.memory_from]
            self.memory_from = end
        return count, size
