"""The cursor of a subscription: what of one partition it has consumed, and where it reads next.

Pure; the subscription's lock guards it. Positions are offsets of the log. Pulsar's mark-delete position is the entry before
``acknowledged_before``, and its individually deleted messages are the ranges above (``broker/delivery/acknowledged.py``).

The subscription alone changes what is acknowledged; the dispatcher alone moves ``read_offset``. What ``encode`` returns is
kept in the catalogue and has everything but ``read_offset``: after a restart the cursor reads from ``acknowledged_before`` on,
and entries that are acknowledged are passed over.

Entries are acknowledged whole or by the indexes of their batch, so ``acknowledged_before`` is the first offset of an entry.
Only a log that was cut inside of a batch, which Kafka's DeleteRecords can do, makes an exception. Whoever asks whether an
entry is acknowledged therefore names its last offset: what is left of that entry is delivered then.

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
    """A new one has everything before ``start`` acknowledged and reads from there."""

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
        )  # of the subscription; ``set_properties`` replaces them

    # -- questions ----------------------------------------------------------------------------------------------------

    @property
    def acknowledged_before(self) -> int:
        return self._acknowledged.before

    @property
    def version(self) -> int:
        """It changes with whatever ``encode`` has."""
        return self._acknowledged.version

    def is_acknowledged(self, entry: int) -> bool:
        """Whether the entry with this offset, best its last one, is acknowledged as a whole."""
        return self._acknowledged.covers(entry)

    def ack_set(self, entry: int) -> Sequence[int] | None:
        """Of a batch of which some messages are acknowledged: the words that MESSAGE has, bit 1 for those that are not. None
        for all others."""
        bits = self._acknowledged.part(entry)
        return None if bits is None else words_from_bits(bits)

    def remaining(self, entry: int, messages: int) -> int:
        """How many messages of the entry are not acknowledged."""
        if self._acknowledged.covers(entry):
            return 0
        bits = self._acknowledged.part(entry)
        return messages if bits is None else bits.bit_count()

    def messages(self, entry: int, remaining: int) -> int:
        """How many messages the entry had that has so many left, when it was delivered."""
        part = self._acknowledged.parts.get(entry)
        return remaining if part is None else part.records

    def next_unacknowledged(self, offset: int) -> int:
        """The first offset from this one on that is not acknowledged: where a read that begins here may begin."""
        return self._acknowledged.next_hole(offset)

    @property
    def crowded(self) -> bool:
        """So much has been acknowledged out of order that no more may be read, until the consumers acknowledge what is
        older."""
        return self._acknowledged.crowded

    @property
    def acknowledged(self) -> Acknowledged:
        """For statistics: ranges and parts. Not to be changed."""
        return self._acknowledged

    def backlog(self, end: int) -> int:
        """How many offsets before ``end`` (that of the log) are not acknowledged. Kafka's control batches count as well."""
        acknowledged = self._acknowledged
        parts = sum(part.records - part.remaining.bit_count() for part in acknowledged.parts.values())
        return max(0, end - acknowledged.before - acknowledged.beyond - parts)

    # -- changes ------------------------------------------------------------------------------------------------------

    def acknowledge(self, entry: int, messages: int, ack_set: Sequence[int] | None = None) -> int:
        """Acknowledge an entry with so many messages, or those whose bits are 0 in ``ack_set`` (missing words are 0).

        How many of its messages were not acknowledged before. Raises TooManyHoles; then nothing has changed.
        """
        if ack_set is None:
            return self._acknowledged.add(entry, entry + messages)
        return self._acknowledged.add_part(entry, messages, bits_from_words(ack_set, messages))

    def acknowledge_until(self, offset: int) -> bool:
        """Acknowledge everything before the offset. Whether that moved the cursor."""
        return self._acknowledged.until(offset)

    def skip(self, offset: int, end: int) -> None:
        """The reader has found no entry between these two: nobody will acknowledge them. Never refused."""
        self._acknowledged.add_absent(offset, end)

    def reset(self, offset: int) -> None:
        """Seek: everything before the offset is acknowledged, nothing after it, and it is read next."""
        self._acknowledged.reset(offset)
        self.read_offset = offset

    def rewind(self) -> None:
        """Read again what is not acknowledged, from the oldest."""
        self.read_offset = self._acknowledged.before

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)
        self._acknowledged.version += 1

    # -- storing ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> "CursorSnapshot":
        """What there is to encode, copied: 3 ms for 200,000 ranges. Whoever encodes it needs no lock."""
        acknowledged = self._acknowledged
        return CursorSnapshot(acknowledged.before, acknowledged.snapshot(), dict(acknowledged.parts), self.properties)

    def encode(self) -> bytes:
        """What ``decode`` reads. Raises StorageError."""
        return self.snapshot().encode()

    @classmethod
    def decode(cls, state: bytes, *, ranges_max: int = RANGES_MAX, parts_max: int = PARTS_MAX) -> "Cursor":
        """The cursor, rewound. Raises StorageError for what ``encode`` has not written."""
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
    """A cursor as it was. Nobody changes it."""

    acknowledged_before: int
    ranges: RangesSnapshot
    parts: Mapping[int, Part]
    properties: Mapping[str, str]

    def encode(self) -> bytes:
        """What ``Cursor.decode`` reads. Raises StorageError for properties that are too large: who takes them in bounds them."""
        starts, ends = self.ranges.bounds()
        # Without a loop of our own: 200,000 ranges take 20 ms.
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
    """``acknowledged_before`` of a cursor that is stored; 0 if it cannot be read."""
    if len(state) < _HEAD.size or state[0] != _VERSION:
        return 0
    position: int = _HEAD.unpack_from(state)[1]
    return position


def _take(state: bytes, at: int, size: int) -> bytes:
    if at + size > len(state):
        raise ValueError("it ends inside of a field")
    return state[at : at + size]


def _bytes_from_bits(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
