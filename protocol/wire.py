"""The primitive types of all protocols: a bounds-checked reader and a writer. Big-endian throughout.

No length is trusted: every read is checked against the remaining bytes, and an array's count is refused, before anything is
allocated for it, if those bytes could not hold so many elements. The only exception raised is ``ProtocolError``, with its
subclass ``TooManyEntries``. The most frequent messages have faster code of their own, see ``kafka/messages/produce.py``. Pure.
"""

from __future__ import annotations

import struct
from typing import NoReturn
from uuid import UUID

from protocol.errors import ProtocolError, TooManyEntries

BytesLike = bytes | bytearray | memoryview

# The classes below have methods with these names.
_Bytes = bytes
_Bool = bool

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_F64 = struct.Struct(">d")

# More elements than any message can hold: for readers without a budget.
UNLIMITED = 1 << 62
# Kafka's limit for a string in every version: its generated readers refuse longer compact strings, too.
STRING_MAX_BYTES = 0x7FFF

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def _short(what: str) -> NoReturn:
    raise ProtocolError(f"the message ends inside {what}") from None


class Reader:
    """Reads values from ``view`` in order; ``pos`` is the position of the next value.

    Byte strings are slices of ``view``, not copies; text must be UTF-8. ``entries``: how many array elements and tagged
    fields may still be read, over all arrays: a count that exceeds it raises TooManyEntries before anything is allocated.
    """

    __slots__ = ("end", "entries", "pos", "view")

    def __init__(self, view: BytesLike, pos: int = 0, entries: int = UNLIMITED) -> None:
        self.view = view if isinstance(view, memoryview) else memoryview(view)
        self.pos = pos
        self.end = len(self.view)
        self.entries = entries

    @property
    def remaining(self) -> int:
        return self.end - self.pos

    def take(self, size: int, what: str = "a field") -> memoryview:
        """The next ``size`` bytes."""
        pos = self.pos
        after = pos + size
        if size < 0 or after > self.end:
            raise ProtocolError(f"{what} of {size} bytes where {self.end - pos} are left")
        self.pos = after
        return self.view[pos:after]

    def skip(self, size: int) -> None:
        self.take(size)

    # -- numbers ------------------------------------------------------------------------------------------------

    def i8(self) -> int:
        value = self.u8()
        return value - 256 if value > 127 else value

    def u8(self) -> int:
        pos = self.pos
        if pos >= self.end:
            _short("an int8")
        self.pos = pos + 1
        return self.view[pos]

    def i16(self) -> int:
        pos = self.pos
        try:
            value: int = _I16.unpack_from(self.view, pos)[0]
        except struct.error:
            _short("an int16")
        self.pos = pos + 2
        return value

    def u16(self) -> int:
        return self.i16() & 0xFFFF

    def i32(self) -> int:
        pos = self.pos
        try:
            value: int = _I32.unpack_from(self.view, pos)[0]
        except struct.error:
            _short("an int32")
        self.pos = pos + 4
        return value

    def u32(self) -> int:
        return self.i32() & _MASK_32

    def i64(self) -> int:
        pos = self.pos
        try:
            value: int = _I64.unpack_from(self.view, pos)[0]
        except struct.error:
            _short("an int64")
        self.pos = pos + 8
        return value

    def f64(self) -> float:
        pos = self.pos
        try:
            value: float = _F64.unpack_from(self.view, pos)[0]
        except struct.error:
            _short("a float64")
        self.pos = pos + 8
        return value

    def bool(self) -> _Bool:
        # Any byte but 0 is true, as Kafka reads it.
        return self.u8() != 0

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16, "a UUID").tobytes())

    def uvarint(self) -> int:
        """An unsigned varint of at most five bytes and 32 bits."""
        value = self._varint_bits(5)
        if value > _MASK_32:
            raise ProtocolError("an unsigned varint of more than 32 bits")
        return value

    def varint(self) -> int:
        """A zig-zag varint of 32 bits."""
        value = self.uvarint()
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """A zig-zag varint of 64 bits."""
        value = self._varint_bits(10)
        if value > _MASK_64:
            raise ProtocolError("a varint of more than 64 bits")
        return (value >> 1) ^ -(value & 1)

    def _varint_bits(self, longest: int) -> int:
        view, pos = self.view, self.pos
        value = 0
        for index in range(longest):
            try:
                byte = view[pos + index]
            except IndexError:
                _short("a varint")
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                self.pos = pos + index + 1
                return value
        raise ProtocolError(f"a varint of more than {longest} bytes")

    # -- strings and bytes --------------------------------------------------------------------------------------

    def _text(self, size: int) -> str:
        if size > STRING_MAX_BYTES:
            raise ProtocolError(f"a string of {size} bytes")
        try:
            return str(self.take(size, "a string"), "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("a string that is not UTF-8") from None

    def string(self) -> str:
        size = self.i16()
        if size < 0:
            raise ProtocolError("null where a string must be")
        return self._text(size)

    def nullable_string(self) -> str | None:
        size = self.i16()
        return None if size == -1 else self._text(size)

    def compact_string(self) -> str:
        size = self.uvarint() - 1
        if size < 0:
            raise ProtocolError("null where a string must be")
        return self._text(size)

    def compact_nullable_string(self) -> str | None:
        size = self.uvarint() - 1
        return None if size < 0 else self._text(size)

    def bytes(self) -> memoryview:
        size = self.i32()
        if size < 0:
            raise ProtocolError("null where bytes must be")
        return self.take(size, "bytes")

    def nullable_bytes(self) -> memoryview | None:
        size = self.i32()
        return None if size == -1 else self.take(size, "bytes")

    def compact_bytes(self) -> memoryview:
        size = self.uvarint() - 1
        if size < 0:
            raise ProtocolError("null where bytes must be")
        return self.take(size, "bytes")

    def compact_nullable_bytes(self) -> memoryview | None:
        size = self.uvarint() - 1
        return None if size < 0 else self.take(size, "bytes")

    # -- arrays and tags ----------------------------------------------------------------------------------------

    def array(self, smallest: int = 1) -> int:
        """The count of an array that may not be null; ``smallest``: the least size of an element in bytes."""
        return self._count(self.i32(), smallest)

    def nullable_array(self, smallest: int = 1) -> int | None:
        count = self.i32()
        return None if count == -1 else self._count(count, smallest)

    def compact_array(self, smallest: int = 1) -> int:
        return self._count(self.uvarint() - 1, smallest)

    def compact_nullable_array(self, smallest: int = 1) -> int | None:
        count = self.uvarint() - 1
        return None if count < 0 else self._count(count, smallest)

    def _count(self, count: int, smallest: int) -> int:
        if count < 0:
            raise ProtocolError("null where an array must be")
        if count * smallest > self.end - self.pos:
            raise ProtocolError(f"an array of {count} elements in {self.end - self.pos} bytes")
        if count > self.entries:
            raise TooManyEntries(f"an array of {count} elements, where {self.entries} more are allowed")
        self.entries -= count
        return count

    def skip_tags(self) -> None:
        """Skips a section of tagged fields (KIP-482)."""
        for _ in range(self.compact_tag_count()):
            self.uvarint()
            self.take(self.uvarint(), "a tagged field")

    def compact_tag_count(self) -> int:
        """The number of tagged fields that follow, each of at least two bytes."""
        return self._count(self.uvarint(), 2)


class Writer:
    """Appends values to ``data``; the names mirror ``Reader``'s."""

    __slots__ = ("data",)

    def __init__(self, data: bytearray | None = None) -> None:
        self.data = bytearray() if data is None else data

    def raw(self, value: BytesLike) -> None:
        self.data += value

    def i8(self, value: int) -> None:
        self.data.append(value & 0xFF)

    u8 = i8

    def i16(self, value: int) -> None:
        self.data += _I16.pack(value)

    def u16(self, value: int) -> None:
        self.data += _U16.pack(value)

    def i32(self, value: int) -> None:
        self.data += _I32.pack(value)

    def u32(self, value: int) -> None:
        self.data += _U32.pack(value)

    def i64(self, value: int) -> None:
        self.data += _I64.pack(value)

    def f64(self, value: float) -> None:
        self.data += _F64.pack(value)

    def bool(self, value: _Bool) -> None:
        self.data.append(1 if value else 0)

    def uuid(self, value: UUID) -> None:
        self.data += value.bytes

    def uvarint(self, value: int) -> None:
        data = self.data
        while value > 0x7F:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        data.append(value)

    def varint(self, value: int) -> None:
        self.uvarint(((value << 1) ^ (value >> 31)) & _MASK_32)

    def varlong(self, value: int) -> None:
        self.uvarint(((value << 1) ^ (value >> 63)) & _MASK_64)

    def string(self, value: str) -> None:
        encoded = value.encode()
        self.data += _I16.pack(len(encoded))
        self.data += encoded

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.data += b"\xff\xff"
        else:
            self.string(value)

    def compact_string(self, value: str) -> None:
        self.compact_bytes(value.encode())

    def compact_nullable_string(self, value: str | None) -> None:
        self.compact_nullable_bytes(None if value is None else value.encode())

    def bytes(self, value: BytesLike) -> None:
        self.data += _I32.pack(len(value))
        self.data += value

    def nullable_bytes(self, value: BytesLike | None) -> None:
        if value is None:
            self.data += b"\xff\xff\xff\xff"
        else:
            self.bytes(value)

    def compact_bytes(self, value: BytesLike) -> None:
        self.uvarint(len(value) + 1)
        self.data += value

    def compact_nullable_bytes(self, value: BytesLike | None) -> None:
        if value is None:
            self.data.append(0)
        else:
            self.compact_bytes(value)

    def array(self, count: int) -> None:
        self.data += _I32.pack(count)

    def nullable_array(self, count: int | None) -> None:
        self.data += _I32.pack(-1 if count is None else count)

    def compact_array(self, count: int) -> None:
        self.uvarint(count + 1)

    def any_array(self, count: int, compact: _Bool) -> None:
        """For messages whose later versions are compact."""
        if compact:
            self.compact_array(count)
        else:
            self.array(count)

    def compact_nullable_array(self, count: int | None) -> None:
        self.uvarint(0 if count is None else count + 1)

    def no_tags(self) -> None:
        self.data.append(0)

    def getvalue(self) -> _Bytes:
        return _Bytes(self.data)


def encode_uvarint(value: int) -> bytes:
    """A single unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
