"""The cursor of a subscription: the acknowledged positions of a partition, and the next position to read.

Pure; the subscription's lock guards it. Positions are offsets of the log. Pulsar's mark-delete position is the entry before
``acknowledged_before``, and its individually deleted messages are the ranges above (``broker/delivery/acknowledged.py``).

Only the subscription acknowledges; only the dispatcher moves ``read_offset``. The catalogue keeps the bytes of ``encode``, which
contain everything but ``read_offset``: after a restart the cursor reads from ``acknowledged_before`` on and skips acknowledged
entries.

Entries are acknowledged whole or by the indexes of their batch, so ``acknowledged_before`` is the first offset of an entry,
except in a log that was cut inside of a batch, which Kafka's DeleteRecords can do. Callers of ``is_acknowledged`` therefore pass
an entry's last offset, so that the rest of a cut entry is delivered.

The format: version (1 byte), offset before which everything is acknowledged (8), number of ranges (4) and size of the numbers
that follow (1: 4 or 8), for all ranges the length of the hole before each, then the length of each; number of parts (4), for
each its first offset (8), the number of its messages (4), the bytes of its bits (4) and the bits; number of properties (2),
for each the bytes of its name (2), the name, the bytes of its value (4) and the value. Big-endian, the bits little-endian.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from operator import sub
from struct import Struct, error, pack, unpack_from
from typing import Final

import attrs

from broker.delivery.acknowledged import PARTS_MAX, RANGES_MAX, Acknowledged, Part, RangesSnapshot
from broker.errors import StorageError
from protocol.pulsar.acks import bits_from_words, words_from_bits

_VERSION: Final = 1
_HEAD: Final = Struct(">BqIB")
_U32: Final = Struct(">I")
_PART: Final = Struct(">qII")
_NARROW: Final = 1 << 32


class Cursor:
    """A new cursor has everything before ``start`` acknowledged and reads from there."""

    __slots__ = ("_acknowledged", "properties", "read_offset")

    def __init__(
        self,
        start: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        ranges_max: int = RANGES_MAX,
        parts_max: int = PARTS_MAX,
    ) -> None:
        self._acknowledged = Acknowledged(start, ranges_max=ranges_max, parts_max=parts_max)
        self.read_offset = start  # the next to read
        self.properties: Mapping[str, str] = dict(
            properties or {}
        )  # of the subscription; changed by ``set_properties``

    # -- questions ----------------------------------------------------------------------------------------------------

    @property
    def acknowledged_before(self) -> int:
        return self._acknowledged.before

    @property
    def version(self) -> int:
        """Changes whenever the result of ``encode`` may change."""
        return self._acknowledged.version

    def is_acknowledged(self, entry: int) -> bool:
        """Whether the entry with this offset, preferably its last, is acknowledged as a whole."""
        return self._acknowledged.covers(entry)

    def ack_set(self, entry: int) -> Sequence[int] | None:
        """The ack set of a partly acknowledged batch, in words as in MESSAGE; bit 1: not acknowledged. None for all other
        entries."""
        bits = self._acknowledged.part(entry)
        return None if bits is None else words_from_bits(bits)

    def remaining(self, entry: int, messages: int) -> int:
        """The number of the entry's messages that are not acknowledged."""
        if self._acknowledged.covers(entry):
            return 0
        bits = self._acknowledged.part(entry)
        return messages if bits is None else bits.bit_count()

    def messages(self, entry: int, remaining: int) -> int:
        """How many messages the entry had when it was delivered, if ``remaining`` of them are not acknowledged."""
        part = self._acknowledged.parts.get(entry)
        return remaining if part is None else part.records

    def next_unacknowledged(self, offset: int) -> int:
        """The first unacknowledged offset that is not before ``offset``: a read at ``offset`` may begin there."""
        return self._acknowledged.next_hole(offset)

    @property
    def crowded(self) -> bool:
        """So much has been acknowledged out of order that no more may be read until consumers acknowledge older messages."""
        return self._acknowledged.crowded

    @property
    def acknowledged(self) -> Acknowledged:
        """Ranges and parts. Read only."""
        return self._acknowledged

    def backlog(self, end: int) -> int:
        """The number of unacknowledged offsets before ``end``, the log's end. Kafka's control batches count as well."""
        acknowledged = self._acknowledged
        parts = sum(part.records - part.remaining.bit_count() for part in acknowledged.parts.values())
        return max(0, end - acknowledged.before - acknowledged.beyond - parts)

    # -- changes ------------------------------------------------------------------------------------------------------

    def acknowledge(self, entry: int, messages: int, ack_set: Sequence[int] | None = None) -> int:
        """Acknowledge an entry of ``messages`` messages, or those whose bits are 0 in ``ack_set`` (missing words are 0).

        Returns how many messages were not acknowledged before. Raises TooManyHoles; then nothing has changed.
        """
        if ack_set is None:
            return self._acknowledged.add(entry, entry + messages)
        return self._acknowledged.add_part(entry, messages, bits_from_words(ack_set, messages))

    def acknowledge_until(self, offset: int) -> bool:
        """Acknowledge everything before the offset. Returns whether that moved the cursor."""
        return self._acknowledged.until(offset)

    def skip(self, offset: int, end: int) -> None:
        """There is no entry in this range of offsets, so nobody will acknowledge it. Never refused."""
        self._acknowledged.add_absent(offset, end)

    def reset(self, offset: int) -> None:
        """Seek: everything before the offset is acknowledged, nothing after it, and it is read next."""
        self._acknowledged.reset(offset)
        self.read_offset = offset

    def rewind(self) -> None:
        """Read unacknowledged entries again, from the oldest."""
        self.read_offset = self._acknowledged.before

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)
        self._acknowledged.version += 1

    # -- storing ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> "CursorSnapshot":
        """A copy that can be encoded without the lock. Takes 3 ms for 200,000 ranges."""
        acknowledged = self._acknowledged
        return CursorSnapshot(acknowledged.before, acknowledged.snapshot(), dict(acknowledged.parts), self.properties)

    def encode(self) -> bytes:
        """The bytes that ``decode`` reads. Raises StorageError."""
        return self.snapshot().encode()

    @classmethod
    def decode(cls, state: bytes, *, ranges_max: int = RANGES_MAX, parts_max: int = PARTS_MAX) -> "Cursor":
        """The cursor, rewound. Raises StorageError for bytes that ``encode`` did not write."""
        try:
            return cls._decode(state, ranges_max, parts_max)
        except (error, ValueError) as fault:
            raise StorageError(f"The catalogue has a cursor that cannot be read: {fault}.") from None

    @classmethod
    def _decode(cls, state: bytes, ranges_max: int, parts_max: int) -> "Cursor":
        version, before, count, width = _HEAD.unpack_from(state)
        if version != _VERSION or width not in (4, 8):
            raise ValueError(f"version {version}")
        at = _HEAD.size
        numbers = unpack_from(f">{2 * count}{'Q' if width == 8 else 'I'}", state, at)
        at += 2 * count * width
        # before + hole = start, start + length = end, end + hole = the next start, ...
        positions = list(
            accumulate(chain.from_iterable(zip(numbers[:count], numbers[count:], strict=True)), initial=before)
        )
        (part_count,) = _U32.unpack_from(state, at)
        at += 4
        parts = []
        for _ in range(part_count):
            first, messages, size = _PART.unpack_from(state, at)
            at += _PART.size
            parts.append((first, messages, int.from_bytes(_take(state, at, size), "little")))
            at += size
        (property_count,) = unpack_from(">H", state, at)
        at += 2
        properties = {}
        for _ in range(property_count):
            (size,) = unpack_from(">H", state, at)
            name = _take(state, at + 2, size).decode()
            at += 2 + size
            (size,) = _U32.unpack_from(state, at)
            properties[name] = _take(state, at + 4, size).decode()
            at += 4 + size
        if at != len(state):
            raise ValueError("more bytes than it has fields")
        cursor = cls(before, properties, ranges_max=ranges_max, parts_max=parts_max)
        cursor._acknowledged.restore(zip(positions[1::2], positions[2::2], strict=True), parts)
        return cursor


@attrs.frozen
class CursorSnapshot:
    """The state of a cursor at a moment. Immutable."""

    acknowledged_before: int
    ranges: RangesSnapshot
    parts: Mapping[int, Part]
    properties: Mapping[str, str]

    def encode(self) -> bytes:
        """The bytes that ``Cursor.decode`` reads. Raises StorageError if the properties are too large; handlers bound them."""
        starts, ends = self.ranges.bounds()
        # Without a loop in Python: 200,000 ranges take 20 ms.
        holes = list(map(sub, starts, chain((self.acknowledged_before,), ends)))
        lengths = list(map(sub, ends, starts))
        wide = max(chain(holes, lengths), default=0) >= _NARROW
        count = len(starts)
        numbers = f">{2 * count}{'Q' if wide else 'I'}"
        pieces = [
            _HEAD.pack(_VERSION, self.acknowledged_before, count, 8 if wide else 4),
            pack(numbers, *holes, *lengths),
            _U32.pack(len(self.parts)),
        ]
        for first, part in sorted(self.parts.items()):
            bits = _bytes_from_bits(part.remaining)
            pieces += (_PART.pack(first, part.records, len(bits)), bits)
        try:
            pieces.append(pack(">H", len(self.properties)))
            for name, value in self.properties.items():
                name_bytes, value_bytes = name.encode(), value.encode()
                pieces += (pack(">H", len(name_bytes)), name_bytes, _U32.pack(len(value_bytes)), value_bytes)
        except error:
            raise StorageError("The properties of a subscription are too large to be stored.") from None
        return b"".join(pieces)


def stored_position(state: bytes) -> int:
    """``acknowledged_before`` of a stored cursor; 0 if it cannot be read."""
    if len(state) < _HEAD.size or state[0] != _VERSION:
        return 0
    position: int = _HEAD.unpack_from(state)[1]
    return position


def cut_state(state: bytes, end: int) -> bytes:
    """A stored cursor without what it says about ``end`` and later offsets, which a log has lost. Raises StorageError."""
    before = Cursor.decode(state)
    starts, ends = before.acknowledged.snapshot().bounds()
    ranges = [(start, min(stop, end)) for start, stop in zip(starts, ends, strict=True) if start < end]
    parts = [(first, part.records, part.remaining) for first, part in before.acknowledged.parts.items() if first < end]
    after = Cursor(min(before.acknowledged_before, end), before.properties)
    after._acknowledged.restore(ranges, parts)
    return after.encode()


def _take(state: bytes, at: int, size: int) -> bytes:
    if at + size > len(state):
        raise ValueError("it ends inside of a field")
    return state[at : at + size]


def _bytes_from_bits(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
