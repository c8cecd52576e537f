"""Records in data buffers: a four-byte length and the record's bytes, back to back, across buffer boundaries.

A record, and even its length, may begin in one buffer and continue in the next. The bytes of a record are not interpreted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from protocol.errors import ProtocolError
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE
from protocol.wire import BytesLike

_LENGTH = struct.Struct(">i")
_pack = _LENGTH.pack
_unpack = _LENGTH.unpack_from

# 1 GiB: a record is in memory as a whole on both sides. Flink's own limit is 2 GiB - 1.
DEFAULT_MAX_RECORD = 1 << 30


def encode_record(record: BytesLike) -> bytes:
    """A record with its length."""
    return b"".join((_pack(len(record)), record))


class RecordEncoder:
    """Splits a stream of records into buffers of ``buffer_size`` bytes. For one thread at a time."""

    __slots__ = ("_pending", "buffer_size")

    def __init__(self, buffer_size: int = DEFAULT_BUFFER_SIZE) -> None:
        """``buffer_size`` may be changed between calls, because a reader may ask for another size."""
        self.buffer_size = buffer_size
        self._pending = bytearray()

    @property
    def pending(self) -> int:
        """Bytes in the unfinished buffer."""
        return len(self._pending)

    def add(self, record: BytesLike) -> list[bytes]:
        """The buffers that ``record`` fills; usually none."""
        pending = self._pending
        pending += _pack(len(record))
        pending += record
        return self._full() if len(pending) >= self.buffer_size else []

    def add_all(self, records: Iterable[BytesLike]) -> list[bytes]:
        pending = self._pending
        for record in records:
            pending += _pack(len(record))
            pending += record
        return self._full() if len(pending) >= self.buffer_size else []

    def flush(self) -> bytes:
        """The pending bytes as a last buffer, which may be empty. It ends with a whole record."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _full(self) -> list[bytes]:
        pending, size = self._pending, self.buffer_size
        end = len(pending) - len(pending) % size
        with memoryview(pending) as view:
            buffers = [bytes(view[start : start + size]) for start in range(0, end, size)]
        del pending[:end]
        return buffers


class RecordDecoder:
    """Reassembles the records of one subpartition. For one thread at a time.

    It keeps only the received bytes of an unfinished record: a large length alone allocates nothing.
    """

    __slots__ = ("_max_record", "_needed", "_rest")

    def __init__(self, max_record: int = DEFAULT_MAX_RECORD) -> None:
        self._max_record = max_record
        self._rest = bytearray()  # of an unfinished record, its length included
        self._needed = 0  # bytes that `_rest` must have before the next step

    @property
    def pending(self) -> int:
        """Bytes of an unfinished record; 0: the stream may end here."""
        return len(self._rest)

    def feed(self, buffer: BytesLike) -> list[bytes]:
        """The records that ``buffer`` finishes. Raises ProtocolError for a length below 0 or above the limit."""
        view = memoryview(buffer)
        end = len(view)
        records: list[bytes] = []
        pos = 0
        rest = self._rest
        while rest:
            before = pos
            pos = min(end, pos + self._needed - len(rest))
            rest += view[before:pos]
            if len(rest) < self._needed:
                return records
            if self._needed > 4:
                with memoryview(rest) as whole:
                    records.append(bytes(whole[4:]))
                rest.clear()
            else:
                self._needed = 4 + self._length(rest, 0)
                if self._needed == 4:
                    records.append(b"")
                    rest.clear()
        limit = self._max_record
        while end - pos >= 4:
            size: int = _unpack(view, pos)[0]
            if not 0 <= size <= limit:
                self._length(view, pos)
            after = pos + 4 + size
            if after > end:
                self._needed = 4 + size
                rest += view[pos:]
                return records
            records.append(bytes(view[pos + 4 : after]))
            pos = after
        if pos < end:
            self._needed = 4
            rest += view[pos:]
        return records

    def finish(self) -> None:
        """To be called at the end of the stream. Raises ProtocolError if it ended inside a record."""
        if self._rest:
            raise ProtocolError(f"a stream of records that ends {self._needed - len(self._rest)} bytes too early")

    def _length(self, view: BytesLike, pos: int) -> int:
        size: int = _unpack(view, pos)[0]
        if not 0 <= size <= self._max_record:
            raise ProtocolError(f"a record of {size} bytes: at most {self._max_record} are allowed")
        return size
