"""Rows of received buffers: the BufferResponse frames that a client received together, taken apart together.

As for rows of pushes (``push_row.py``), consecutive frames of the same length are unpacked by one ``struct``, header and payload,
which copies each payload once. The frames of several receivers may alternate; each receiver has a row of its own. Only data
buffers of generation 2.0 that are not packed, compressed or empty are in a row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from protocol.shuffle.data_type import BUFFERS, DATA_TYPES, DataType
from protocol.shuffle.frame import MAGIC, whole_frame

# Length, magic, id; receiver, subpartition, number of partial buffers, sequence, backlog, type, compressed, size of the payload.
_HEADER = ">iIB16siiiiBBi"
_header = struct.Struct(_HEADER)
HEADER_BYTES = _header.size


class RowBuffer(NamedTuple):
    """One buffer of a row."""

    subpartition: int
    sequence: int
    data_type: DataType
    payload: bytes


class BufferRow:
    """Data buffers of one receiver with consecutive numbers, the first of which is ``sequence``; in columns."""

    __slots__ = ("backlog", "data_types", "payloads", "receiver", "sequence", "subpartitions")

    def __init__(self, receiver: bytes, sequence: int) -> None:
        self.receiver = receiver
        self.sequence = sequence
        self.backlog = 0  # that of the last buffer
        self.subpartitions: list[int] = []
        self.data_types: list[int] = []
        self.payloads: list[bytes] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[RowBuffer]:
        columns = zip(self.subpartitions, self.data_types, self.payloads, strict=True)
        for sequence, (subpartition, data_type, payload) in enumerate(columns, self.sequence):
            yield RowBuffer(subpartition, sequence, DATA_TYPES[data_type], payload)


def take_rows(view: memoryview, max_payload: int) -> tuple[list[BufferRow], int]:
    """The rows of the whole frames at the beginning of ``view``, and the size of these frames. None and 0 if it does not begin
    with two such frames.

    Whatever the frames are, each is looked at twice at most.
    """
    end = len(view)
    length = _data_frame(view, 0, end, max_payload)
    if not length or not _data_frame(view, length, end, max_payload):
        return [], 0
    rows: dict[bytes, BufferRow] = {}
    pos = 0
    while length:
        # Frames of other lengths behind this one are not unpacked for nothing.
        alike = view[pos + length : pos + length + 4] == view[pos : pos + 4]
        most = (end - pos) // length if alike else 1
        added = _add(rows, view[pos : pos + most * length], length)
        if not added:
            break
        pos += added * length
        length = _data_frame(view, pos, end, max_payload)
    return list(rows.values()), pos


def _data_frame(view: memoryview, pos: int, end: int, max_payload: int) -> int:
    """The length of the whole BufferResponse frame with data that begins at ``pos``. 0: there is none."""
    if end - pos <= HEADER_BYTES:
        return 0
    length: int
    length, magic, frame_id, _, _, partials, _, _, data_type, compressed, size = _header.unpack_from(view, pos)
    if magic != MAGIC or frame_id or partials or compressed or data_type not in BUFFERS or not 0 < size <= max_payload:
        return 0
    return length if length == HEADER_BYTES + size and length <= end - pos else 0


def _add(rows: dict[bytes, BufferRow], view: memoryview, length: int) -> int:
    """Add the frames at the beginning of ``view`` that have this length and belong into a row; how many."""
    count = 0
    payload_size = length - HEADER_BYTES
    last: bytes | None = None
    row = BufferRow(b"", 0)
    frames = whole_frame(_HEADER, length).iter_unpack(view)
    for (
        total,
        magic,
        frame_id,
        receiver,
        index,
        partials,
        number,
        backlog,
        data_type,
        compressed,
        size,
        payload,
    ) in frames:
        if total != length or magic != MAGIC or frame_id or partials or size != payload_size:
            break
        if compressed or data_type not in BUFFERS or number < 0 or backlog < 0:
            break
        if receiver != last:
            last = receiver
            known = rows.get(receiver)
            row = rows[receiver] = known or BufferRow(receiver, number)
            payloads = row.payloads
        if number != row.sequence + len(payloads):
            break
        row.subpartitions.append(index)
        row.data_types.append(data_type)
        payloads.append(payload)
        row.backlog = backlog
        count += 1
    return count
