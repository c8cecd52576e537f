"""Rows of pushes: the PushBuffer frames of a writer that were sent, and received, together.

A writer of small buffers sends hundreds of frames at once. ``take_row`` unpacks consecutive frames of the same length by one
``struct``, header and payload, which copies each payload once and calls nothing for each field. Only data buffers are in a row,
because each event must be examined.

A row is equivalent to its pushes. A caller that cannot use ``runs`` iterates over ``pushes`` and gets the results of
``parse_push`` for each frame, errors included. A row belongs to one thread at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from protocol.shuffle.data_type import BUFFERS
from protocol.shuffle.frame import MAGIC, whole_frame
from protocol.shuffle.writer_frames import PUSH_HEADER_BYTES, parse_push
from protocol.shuffle.writer_values import PushBuffer, WriterId
from protocol.wire import BytesLike

_PUSH_BUFFER = int(WriterId.PUSH_BUFFER)
# Length, magic, id and handle; subpartition, sequence, type, compressed, size of the payload.
_HEADER = ">iIBiiiBBi"
_header = struct.Struct(_HEADER)


class PushRun(NamedTuple):
    """Pushes of one subpartition with consecutive numbers from ``sequence`` on."""

    subpartition: int
    sequence: int
    data_types: Sequence[int]
    compressed: Sequence[int]  # 0: not compressed
    payloads: Sequence[bytes]
    size: int  # bytes of all payloads


class PushRow:
    """Pushes of one writer, in columns."""

    __slots__ = ("_compressed", "_data_types", "_payloads", "_sequences", "_sizes", "_subpartitions", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._subpartitions: list[int] = []
        self._sequences: list[int] = []
        self._data_types: list[int] = []
        self._compressed: list[int] = []
        self._sizes: list[int] = []  # from the headers, not checked
        self._payloads: list[bytes] = []

    def __len__(self) -> int:
        return len(self._payloads)

    def add(self, view: memoryview, length: int) -> int:
        """Adds the frames at the beginning of ``view`` that have this length and are this writer's data; returns their number."""
        subpartitions, sequences, sizes = self._subpartitions.append, self._sequences.append, self._sizes.append
        data_types, compressed, payloads = self._data_types.append, self._compressed.append, self._payloads.append
        handle, before = self.handle, len(self._payloads)
        for (
            size_of_frame,
            magic,
            frame_id,
            number,
            subpartition,
            sequence,
            data_type,
            flag,
            size,
            payload,
        ) in whole_frame(_HEADER, length).iter_unpack(view):
            if size_of_frame != length or magic != MAGIC or frame_id != _PUSH_BUFFER or number != handle:
                break
            if data_type not in BUFFERS:
                break
            subpartitions(subpartition)
            sequences(sequence)
            data_types(data_type)
            compressed(flag)
            sizes(size)
            payloads(payload)
        return len(self._payloads) - before

    def runs(self) -> list[PushRun] | None:
        """The pushes by subpartition. None: some are not consecutive, or invalid."""
        sizes = list(map(len, self._payloads))
        if sizes != self._sizes or min(self._sequences) < 0 or min(self._subpartitions) < 0:
            return None
        subpartitions = self._subpartitions
        if subpartitions.count(subpartitions[0]) == len(subpartitions):
            columns = self._sequences, self._data_types, self._compressed, self._payloads
            run = _run(subpartitions[0], *columns, sum(sizes))
            return None if run is None else [run]
        places: dict[int, list[int]] = {}
        for place, subpartition in enumerate(subpartitions):
            places.setdefault(subpartition, []).append(place)
        runs = []
        for subpartition, chosen in places.items():
            run = _run(
                subpartition,
                [self._sequences[place] for place in chosen],
                [self._data_types[place] for place in chosen],
                [self._compressed[place] for place in chosen],
                [self._payloads[place] for place in chosen],
                sum([sizes[place] for place in chosen]),
            )
            if run is None:
                return None
            runs.append(run)
        return runs

    def pushes(self) -> Iterator[PushBuffer]:
        """The pushes in order. Raises ProtocolError at the first invalid push."""
        handle = self.handle
        for subpartition, sequence, data_type, compressed, size, payload in zip(
            self._subpartitions,
            self._sequences,
            self._data_types,
            self._compressed,
            self._sizes,
            self._payloads,
            strict=True,
        ):
            length = PUSH_HEADER_BYTES + len(payload)
            header = _header.pack(
                length, MAGIC, _PUSH_BUFFER, handle, subpartition, sequence, data_type, compressed, size
            )
            yield parse_push(memoryview(header + payload))


def _run(
    subpartition: int,
    sequences: list[int],
    data_types: list[int],
    compressed: list[int],
    payloads: list[bytes],
    size: int,
) -> PushRun | None:
    first = sequences[0]
    if sequences != list(range(first, first + len(sequences))):
        return None
    return PushRun(subpartition, first, data_types, compressed, payloads, size)


def take_row(data: memoryview, pushes_max: int, bytes_max: int) -> tuple[PushRow | None, int]:
    """The row of whole frames at the beginning of ``data``, and its size; None and 0 if it would have fewer than two frames.

    It has at most ``pushes_max`` pushes and ``bytes_max`` bytes. Whatever the frames are, each is examined at most twice.
    """
    end = min(len(data), bytes_max)
    length = _push_of_data(data, 0, end)
    if not length or not _push_of_data(data, length, end):
        return None, 0
    row = PushRow(int.from_bytes(data[9:13], "big", signed=True))
    pos = 0
    while length:
        # Following frames of other lengths are not unpacked in vain.
        alike = data[pos + length : pos + length + 4] == data[pos : pos + 4]
        most = min((end - pos) // length, pushes_max - len(row)) if alike else 1
        added = row.add(data[pos : pos + most * length], length)
        pos += added * length
        if not added or len(row) == pushes_max:
            break
        length = _push_of_data(data, pos, end)
    return (row, pos) if len(row) > 1 else (None, 0)


def _push_of_data(data: memoryview, pos: int, end: int) -> int:
    """The length of the whole PushBuffer frame with data at ``pos``. 0: there is none."""
    if end - pos < PUSH_HEADER_BYTES:
        return 0
    length: int
    length, magic, frame_id, _, _, _, data_type, _, _ = _header.unpack_from(data, pos)
    if magic != MAGIC or frame_id != _PUSH_BUFFER or data_type not in BUFFERS:
        return 0
    return length if PUSH_HEADER_BYTES <= length <= end - pos else 0


def push_frames(
    handle: int,
    subpartition: int,
    sequence: int,
    data_types: Sequence[int],
    compressed: Sequence[int],
    payloads: Sequence[BytesLike],
) -> list[BytesLike]:
    """The frames of pushes numbered from ``sequence`` on: headers and payloads, alternating."""
    pack = _header.pack
    parts: list[BytesLike] = [b""] * (2 * len(payloads))
    parts[::2] = [
        pack(PUSH_HEADER_BYTES + size, MAGIC, _PUSH_BUFFER, handle, subpartition, number, data_type, flag, size)
        for number, data_type, flag, size in zip(
            count(sequence), data_types, compressed, map(len, payloads), strict=False
        )
    ]
    parts[1::2] = payloads
    return parts
