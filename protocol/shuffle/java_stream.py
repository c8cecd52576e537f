"""Throwables in Java's object serialization (Object Serialization Specification, chapter 6): writes a few, reads any.

A stream describes itself, so reading needs no Java class. The reader does not trust the stream: it bounds the depth of objects
and of class hierarchies, and checks counts against the remaining bytes. Text is as Java writes it (``DataOutput.writeUTF``):
UTF-16 units in UTF-8, and two bytes for U+0000. Pure.

Tests: tests/protocol/shuffle/test_errors.py,
tests/protocol/shuffle/test_golden.py,
tests/protocol/shuffle/java/test_modified_utf8.py.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from protocol.errors import ProtocolError
from protocol.wire import BytesLike, Reader

# A text's length is a u16.
MAX_BYTES = 65535


def encode(text: str) -> bytes:
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = text.encode("utf-16-be", "surrogatepass")
    apart = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
    return apart.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def encode_prefixed(text: str) -> bytes:
    """``text`` after its length in two bytes. A longer text is cut after a whole character."""
    encoded = encode(text)
    if len(encoded) > MAX_BYTES:
        end = MAX_BYTES
        while encoded[end] & 0xC0 == 0x80:
            end -= 1
        encoded = encoded[:end]
    return len(encoded).to_bytes(2, "big") + encoded


def decode(data: BytesLike) -> str:
    """Raises ProtocolError. Half a surrogate pair becomes U+FFFD."""
    raw = bytes(data)
    if raw.isascii():
        return raw.decode()
    try:
        apart = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ProtocolError("a text that is not Java's UTF-8") from None
    return apart.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def read_prefixed(reader: Reader) -> str:
    return decode(reader.take(reader.u16(), "a text"))


_STREAM_HEADER = b"\xac\xed\x00\x05"

_NULL, _REFERENCE, _CLASS_DESC, _OBJECT, _STRING, _ARRAY, _CLASS, _BLOCK, _END_BLOCK = range(0x70, 0x79)
_LONG_BLOCK, _LONG_STRING, _PROXY_CLASS_DESC, _ENUM = 0x7A, 0x7C, 0x7D, 0x7E
_FIRST_HANDLE = 0x7E0000

_WRITE_METHOD, _SERIALIZABLE, _EXTERNALIZABLE, _BLOCK_DATA = 1, 2, 4, 8

_THROWABLE = "java.lang.Throwable"
_STRING_TYPE = "Ljava/lang/String;"


class _Known(NamedTuple):
    """A class that can be written: ``serialVersionUID`` in Flink 2.3 and Java 17, (name, type) of each reference field."""

    uid: int
    superclass: str | None
    fields: tuple[tuple[str, str], ...] = ()
    flags: int = _SERIALIZABLE


_FLINK = "org.apache.flink.runtime."
_PARTITION_ID_TYPE = "Lorg/apache/flink/runtime/io/network/partition/ResultPartitionID;"
_KNOWN = {
    # Of Throwable's fields only the message is written; readObject gives the others their defaults.
    _THROWABLE: _Known(-3042686055658047285, None, (("detailMessage", _STRING_TYPE),), _SERIALIZABLE | _WRITE_METHOD),
    "java.lang.Exception": _Known(-3387516993124229948, _THROWABLE),
    "java.io.IOException": _Known(7818375828146090155, "java.lang.Exception"),
    "java.lang.RuntimeException": _Known(-7034897190745766939, "java.lang.Exception"),
    "java.lang.IllegalArgumentException": _Known(-5365630128856068164, "java.lang.RuntimeException"),
    "java.lang.IllegalStateException": _Known(-1848914673093119416, "java.lang.RuntimeException"),
    _FLINK + "execution.CancelTaskException": _Known(1, "java.lang.RuntimeException"),
    _FLINK + "io.network.partition.ProducerFailedException": _Known(
        -1555492656299526395, _FLINK + "execution.CancelTaskException"
    ),
    # A null partition id makes the client fill in its own.
    _FLINK + "io.network.partition.PartitionException": _Known(
        0, "java.io.IOException", (("partitionId", _PARTITION_ID_TYPE),)
    ),
    _FLINK + "io.network.partition.PartitionNotFoundException": _Known(
        0, _FLINK + "io.network.partition.PartitionException"
    ),
}

_I64 = struct.Struct(">q")


def encode_throwable(class_name: str, message: str | None) -> bytes:
    """One of the classes above in the smallest stream that Java reads. Raises ValueError for any other class."""
    if class_name not in _KNOWN:
        raise ValueError(f"a {class_name} cannot be written")
    utf = encode_prefixed
    out = bytearray(_STREAM_HEADER)
    out.append(_OBJECT)
    values: list[bytes] = []
    name: str | None = class_name
    while name is not None:
        known = _KNOWN[name]
        out.append(_CLASS_DESC)
        out += utf(name)
        out += _I64.pack(known.uid)
        out.append(known.flags)
        out += len(known.fields).to_bytes(2, "big")
        for field, type_name in known.fields:
            out += b"L" + utf(field) + bytes((_STRING,)) + utf(type_name)
        out.append(_END_BLOCK)
        value = bytes((_NULL,)) * len(known.fields)
        if name == _THROWABLE:
            if message is not None:
                value = bytes((_STRING,)) + utf(message)
            value += bytes((_END_BLOCK,))
        values.append(value)
        name = known.superclass
    out.append(_NULL)  # no superclass
    # The values are in the opposite order: those of the topmost class come first.
    return bytes(out) + b"".join(reversed(values))


class Throwable(NamedTuple):
    class_name: str
    message: str | None


def read_throwable(data: BytesLike) -> tuple[Throwable, int]:
    """The Throwable at the beginning of ``data`` and the end of its stream. Raises ProtocolError."""
    reader = Reader(data)
    if reader.take(4, "a stream header") != _STREAM_HEADER:
        raise ProtocolError("an error that is not a Java object stream")
    error = _StreamReader(reader).content()
    if not isinstance(error, _Object):
        raise ProtocolError("an error that is not an object")
    if all(description.name != _THROWABLE for description in error.description.hierarchy):
        raise ProtocolError(f"an error of the class {error.description.name}, which is no Throwable")
    message = error.values.get("detailMessage")
    return Throwable(error.description.name, message if isinstance(message, str) else None), reader.pos


class _Description:
    __slots__ = ("fields", "flags", "hierarchy", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.flags = 0
        self.fields: list[tuple[str, str]] = []  # type code and name
        self.hierarchy: list[_Description] = [self]  # this class and its superclasses, upwards


class _Object:
    __slots__ = ("description", "values")

    def __init__(self, description: _Description) -> None:
        self.description = description
        self.values: dict[str, Any] = {}  # by name; a subclass's field replaces a field of the same name


_END = object()  # of block data
_SIZES = {"B": 1, "C": 2, "D": 8, "F": 4, "I": 4, "J": 8, "S": 2, "Z": 1}
# Nesting of objects. Each cause takes one level, so no real chain of causes is longer.
_DEPTH_MAX = 100
_HIERARCHY_MAX = 64


class _StreamReader:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.handles: list[Any] = []
        self.depth = 0

    def content(self) -> Any:
        """An object, string, array ...; None for null, ``_END`` for the end of block data."""
        reader = self.reader
        code = reader.u8()
        if code == _NULL:
            return None
        if code == _END_BLOCK:
            return _END
        if code == _STRING:
            return self._new_handle(read_prefixed(reader))
        if code == _REFERENCE:
            return self._referred()
        if code == _BLOCK:
            reader.skip(reader.u8())
            return None
        if code == _LONG_BLOCK:
            reader.skip(reader.i32())
            return None
        if code == _LONG_STRING:
            return self._new_handle(decode(reader.take(reader.i64(), "a long string")))
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise ProtocolError(f"a Java object with more than {_DEPTH_MAX} levels")
        try:
            return self._nested(code)
        finally:
            self.depth -= 1

    def _nested(self, code: int) -> Any:
        if code == _OBJECT:
            description = self._description()
            instance = self._new_handle(_Object(description))
            for each in reversed(description.hierarchy):
                self._class_data(each, instance.values)
            return instance
        if code == _ARRAY:
            return self._array(self._description())
        if code == _CLASS:
            return self._new_handle(self._description())
        if code == _ENUM:
            instance = self._new_handle(_Object(self._description()))
            instance.values["name"] = self.content()
            return instance
        if code in (_CLASS_DESC, _PROXY_CLASS_DESC):
            self.reader.pos -= 1
            return self._description()
        raise ProtocolError(f"a Java object stream with the code {code:#x}")

    def _new_handle(self, value: Any) -> Any:
        self.handles.append(value)
        return value

    def _referred(self) -> Any:
        index = self.reader.i32() - _FIRST_HANDLE
        if not 0 <= index < len(self.handles):
            raise ProtocolError("a Java object stream that refers to nothing")
        return self.handles[index]

    def _description(self) -> _Description:
        description = self._optional_description()
        if description is None:
            raise ProtocolError("a Java object without a class")
        return description

    def _optional_description(self) -> _Description | None:
        reader = self.reader
        # Each class is followed by its superclass. A loop reads them, so that a long chain needs no stack.
        first: _Description | None = None
        below: list[_Description] = []
        while True:
            code = reader.u8()
            above: list[_Description] = []
            if code == _CLASS_DESC:
                description = _Description(read_prefixed(reader))
                reader.skip(8)  # serialVersionUID
                self._new_handle(description)
                description.flags = reader.u8()
                for _ in range(reader.u16()):
                    description.fields.append(self._field())
                self._annotation()
                above.append(description)
            elif code == _PROXY_CLASS_DESC:
                description = self._new_handle(_Description("a proxy"))
                description.flags = _SERIALIZABLE
                for _ in range(reader.i32()):
                    read_prefixed(reader)
                self._annotation()
                above.append(description)
            elif code == _REFERENCE:
                referred = self._referred()
                if not isinstance(referred, _Description):
                    raise ProtocolError("a Java object whose class is something else")
                above += referred.hierarchy
            elif code != _NULL:
                raise ProtocolError(f"a class description with the code {code:#x}")
            for description in below:
                description.hierarchy += above
            if above and first is None:
                first = above[0]
            if len(below) + len(above) > _HIERARCHY_MAX:
                raise ProtocolError(f"a Java class with more than {_HIERARCHY_MAX} above it")
            if code in (_NULL, _REFERENCE):
                return first
            below += above

    def _field(self) -> tuple[str, str]:
        code = chr(self.reader.u8())
        name = read_prefixed(self.reader)
        if code in "[L":
            self.content()  # the name of its type
        elif code not in _SIZES:
            raise ProtocolError(f"a Java field of the type {code!r}")
        return code, name

    def _class_data(self, description: _Description, values: dict[str, Any]) -> None:
        flags = description.flags
        if flags & _SERIALIZABLE:
            for code, name in description.fields:
                if code in "[L":
                    values[name] = self.content()
                else:
                    self.reader.skip(_SIZES[code])
            if flags & _WRITE_METHOD:
                self._annotation()
        elif flags & _EXTERNALIZABLE and flags & _BLOCK_DATA:
            self._annotation()
        else:
            raise ProtocolError(f"a Java object of the class {description.name}, which cannot be read")

    def _annotation(self) -> None:
        while self.content() is not _END:
            pass

    def _array(self, description: _Description) -> Any:
        reader = self.reader
        code = description.name[1:2]
        elements: list[Any] = self._new_handle([])
        count = reader.i32()
        if code in _SIZES:
            reader.skip(count * _SIZES[code])
        else:
            if not 0 <= count <= reader.remaining:
                raise ProtocolError(f"a Java array of {count} elements in {reader.remaining} bytes")
            for _ in range(count):
                self.content()
        return elements
