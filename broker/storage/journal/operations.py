"""The index of a flush: what it does to files, as bytes.

A flush is one row of the journal. Its index lists operations in their order; the bytes that its ``Write`` operations put into
files follow each other in the row's data. Paths are relative to the data directory, with ``/``.

The format: one byte (0: as it is, 1: deflated with zlib), then the number of data bytes (u64), their CRC-32C (u32), the number of
operations (u32) and these, each a byte for its kind, the paths (u16 length, UTF-8) and the numbers (u64). Integers are
big-endian.

Pure. Tests: tests/storage/journal/test_operations.py.
"""

import zlib
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from broker.errors import StorageError


class Create(NamedTuple):
    """Make the file if it is missing."""

    path: str


class Write(NamedTuple):
    """Put ``size`` bytes of the flush's data into the file at ``position``. Makes the file if it is missing."""

    path: str
    position: int
    size: int


class Truncate(NamedTuple):
    """Cut the file to ``size`` bytes, if it is there and longer."""

    path: str
    size: int


class Rename(NamedTuple):
    """Rename a file, or a directory with everything in it. A file replaces what has its new name, which is also removed if the
    file is not there: later rows make it."""

    old: str
    new: str


class Remove(NamedTuple):
    """Remove the file if it is there."""

    path: str


Operation = Create | Write | Truncate | Rename | Remove

_KINDS: tuple[type[Operation], ...] = (Create, Write, Truncate, Rename, Remove)
_CODES = {kind: code for code, kind in enumerate(_KINDS)}

_HEAD = Struct(">QII")
_LENGTH = Struct(">H")
_NUMBER = Struct(">Q")
_PLAIN, _DEFLATED = 0, 1
_DEFLATE_FROM = 512
# An index is never larger: a flush of 100,000 files with paths of 300 bytes. Bounds what a damaged row may cost.
INDEX_MAX = 64 * 1024 * 1024


class Index(NamedTuple):
    operations: Sequence[Operation]
    data_size: int
    data_crc: int


class CorruptIndex(StorageError):
    """The index of a row cannot be read."""


def encode(index: Index) -> bytes:
    parts = [_HEAD.pack(index.data_size, index.data_crc, len(index.operations))]
    for operation in index.operations:
        parts.append(bytes([_CODES[type(operation)]]))
        for value in operation:
            if isinstance(value, str):
                path = value.encode()
                parts += (_LENGTH.pack(len(path)), path)
            else:
                parts.append(_NUMBER.pack(value))
    plain = b"".join(parts)
    if len(plain) < _DEFLATE_FROM:
        return bytes([_PLAIN]) + plain
    return bytes([_DEFLATED]) + zlib.compress(plain, 1)


def decode(data: bytes) -> Index:
    """Raises CorruptIndex."""
    try:
        return _decode(_inflated(data))
    except (IndexError, ValueError, zlib.error) as error:
        raise CorruptIndex(f"the index of a journal row cannot be read: {error}") from error


def _inflated(data: bytes) -> bytes:
    if data[0] == _PLAIN:
        return data[1:]
    if data[0] != _DEFLATED:
        raise ValueError(f"it has the unknown form {data[0]}")
    inflater = zlib.decompressobj()
    plain = inflater.decompress(data[1:], INDEX_MAX)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("it is cut, too large, or has something behind it")
    return plain


def _decode(data: bytes) -> Index:
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        piece = data[at : at + size]
        if len(piece) < size:
            raise ValueError("it ends too early")
        at += size
        return piece

    data_size, data_crc, count = _HEAD.unpack(take(_HEAD.size))
    operations: list[Operation] = []
    while at < len(data):
        code = take(1)[0]
        if code >= len(_KINDS):
            raise ValueError(f"it has the unknown operation {code}")
        kind = _KINDS[code]
        values: list[str | int] = []
        for name in kind._fields:
            if kind.__annotations__[name] is str:
                values.append(take(*_LENGTH.unpack(take(_LENGTH.size))).decode())
            else:
                values.append(*_NUMBER.unpack(take(_NUMBER.size)))
        operations.append(kind(*values))  # type: ignore[arg-type]
    if len(operations) != count:
        raise ValueError(f"it has {len(operations)} operations and says {count}")
    written = sum(operation.size for operation in operations if isinstance(operation, Write))
    if written != data_size:
        raise ValueError(f"its operations write {written} bytes of {data_size}")
    return Index(operations, data_size, data_crc)
