"""Kafka's zig-zag varints, thousands at a time: read at given positions of a buffer, and written. Pure.

Nearly all varints of a record batch have one or two bytes: a table of 65,536 entries decodes those in a few numpy calls, and only
the longer ones are decoded byte by byte.

Tests: tests/client/kafka/columns/test_columns.py, tests/client/kafka/columns/test_batch_builder.py.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import ProtocolError
from protocol.wire import BytesLike

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

_WORD = 8


def _table() -> npt.NDArray[np.int32]:
    """Indexed by the first two bytes of a varint (little-endian): value << 2 | size, or 0 if it has more than two bytes."""
    both = np.arange(1 << 16, dtype=np.int32)
    first, second = both & 0xFF, both >> 8
    raw = np.where(first < 0x80, first, first & 0x7F | second << 7)
    value = raw >> 1 ^ -(raw & 1)
    size = np.where(first < 0x80, 1, np.where(second < 0x80, 2, 0))
    table: npt.NDArray[np.int32] = np.where(size > 0, value << 2 | size, 0).astype(np.int32)
    return table


_TABLE = _table()
_VARINT_BYTES, _VARLONG_BYTES = 5, 10
# The most that the last of these bytes may hold: 4 of 32 bits, 1 of 64.
_LAST_BYTE = {_VARINT_BYTES: 0x0F, _VARLONG_BYTES: 0x01}


class Varints:
    """Reads varints of ``data``. Positions must not be negative. Raises ProtocolError for a varint that ends outside the data."""

    def __init__(self, data: BytesLike) -> None:
        if len(data) < _WORD:
            data = bytes(data) + bytes(_WORD)
        self.bytes: U8 = np.frombuffer(data, np.uint8)
        # The eight bytes at each position as one number. The numbers overlap: this is a view.
        self._words: U64 = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))

    def words(self, positions: I64) -> U64:
        """The eight bytes from each position on, the first one lowest, with zeros after the end of the data."""
        last = len(self._words) - 1
        try:
            if positions[-1] <= last:
                return self._words[positions]
        except IndexError:
            raise ProtocolError("a record that ends too early") from None
        words = self._words[np.minimum(positions, last)]
        late = np.flatnonzero(positions > last)
        beyond = np.minimum(positions[late] - last, _WORD - 1)
        words[late] >>= (beyond * 8).astype(np.uint64)
        return words

    def read(self, positions: I64, words: U64, *, long: bool = False) -> tuple[I64, I64]:
        """Values and sizes in bytes of the varints at ``positions``; ``words`` has at least their first two bytes.

        ``long``: varints of 64 bits instead of 32.
        """
        entries = _TABLE.take(words.astype(np.uint16))
        sizes = (entries & 3).astype(np.int64)
        values = (entries >> 2).astype(np.int64)
        if not entries.all():
            longer = np.flatnonzero(entries == 0)
            values[longer], sizes[longer] = self._read_long(
                positions[longer], _VARLONG_BYTES if long else _VARINT_BYTES
            )
        return values, sizes

    def _read_long(self, positions: I64, most: int) -> tuple[I64, I64]:
        count, end = len(positions), len(self.bytes)
        raw = np.zeros(count, np.uint64)
        sizes = np.zeros(count, np.int64)
        unfinished = np.arange(count)
        for size in range(1, most + 1):
            at = positions[unfinished] + (size - 1)
            if int(at.max()) >= end:
                raise ProtocolError("a varint that ends too early")
            byte = self.bytes[at]
            raw[unfinished] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * (size - 1))
            more = byte > 0x7F
            sizes[unfinished[~more]] = size
            unfinished = unfinished[more]
            if not len(unfinished):
                if size == most and byte.max() > _LAST_BYTE[most]:
                    raise ProtocolError("a varint of too many bits")
                return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), sizes
        raise ProtocolError(f"a varint of more than {most} bytes")


def zigzag(values: npt.NDArray[Any]) -> U64:
    wide = values.astype(np.int64, copy=False)
    if len(wide) and int(wide.min()) >= 0:  # nearly always
        return (wide << 1).view(np.uint64)
    return (wide << 1 ^ wide >> 63).view(np.uint64)


def sizes_of(raw: U64) -> I64:
    """The size in bytes of each zig-zag value as a varint."""
    largest = int(raw.max()) if len(raw) else 0
    smallest = int(raw.min()) if len(raw) else 0
    # What all have in common is not compared value by value.
    bits = 7
    while smallest >> bits and bits < 64:
        bits += 7
    sizes = np.full(len(raw), bits // 7, np.int64)
    while bits < 64 and largest >> bits:
        sizes += raw >= np.uint64(1 << bits)
        bits += 7
    return sizes


class Rows:
    """Rows of bytes, built column by column from varints and single bytes. ``flat`` has all rows one behind the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[U8 | int] = []
        self._used: list[npt.NDArray[np.bool_] | None] = []  # None: the column is used in every row
        self.sizes: I64 = np.zeros(count, np.int64)

    def byte(self, value: int) -> None:
        self._columns.append(value)
        self._used.append(None)
        self.sizes += 1

    def varint(self, raw: U64, sizes: I64) -> None:
        """``raw``: zig-zag values. ``sizes``: ``sizes_of(raw)``."""
        least, width = int(sizes.min()), int(sizes.max())
        for i in range(width):
            column = (raw >> np.uint64(7 * i) if i else raw).astype(np.uint8)
            if i < least - 1:
                column |= np.uint8(0x80)
            elif i < width - 1:
                column &= np.uint8(0x7F)
                column |= (sizes > i + 1).view(np.uint8) << np.uint8(7)
            self._columns.append(column)
            self._used.append(sizes > i if i >= least else None)
        self.sizes += sizes

    def flat(self) -> U8:
        matrix = np.empty((self._count, len(self._columns)), np.uint8)
        for i, column in enumerate(self._columns):
            matrix[:, i] = column
        if all(used is None for used in self._used):
            return matrix.reshape(-1)
        keep = np.ones(matrix.shape, np.bool_)
        for i, used in enumerate(self._used):
            if used is not None:
                keep[:, i] = used
        return matrix[keep]
