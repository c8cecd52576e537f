"""The items that a gate gives to its reader: a buffer of records, an event, or several buffers.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from typing import Protocol

from broker.client.shuffle.reading.credit import EXCLUSIVE, FLOATING
from protocol.shuffle.buffer_response import BufferRow
from protocol.shuffle.data_type import DATA_TYPES, DataType
from protocol.shuffle.events import Event


class BufferOwner(Protocol):
    """The channel to which the room of a buffer is returned."""

    def recycle(self, kind: int) -> None:
        """Return a buffer of this kind. May be called from any thread, without the gate's lock."""

    def free(self, kind: int) -> None:
        """Return a buffer of this kind. Called with the gate's lock held."""

    def free_row(self, floating: int, exclusive: int) -> None:
        """Return this many buffers of each kind. Called with the gate's lock held."""


class BufferOrEvent:
    """Either ``data`` (a decompressed buffer, which belongs to the user) or ``event`` is set; the other is None.

    ``channel`` is the number of the gate's channel, from 0; an aligned barrier, which belongs to all channels, has -1.
    ``subpartition`` is the producer's, or -1 if the sender does not state it. A buffer takes room until the next
    ``poll``. To keep the room for longer, for example while another thread processes the buffer, call ``hold``, and
    ``recycle`` afterwards: this is how a slow reader holds back its writers.
    """

    __slots__ = (
        "_held",
        "_input",
        "_kind",
        "channel",
        "compressed",
        "data",
        "data_type",
        "event",
        "sequence",
        "subpartition",
    )

    def __init__(
        self,
        channel: int,
        subpartition: int,
        sequence: int,
        data_type: DataType,
        data: bytes | bytearray | memoryview | None,
        compressed: bool,
        source: BufferOwner | None,
        kind: int | None,
    ) -> None:
        self.channel = channel
        self.subpartition = subpartition
        self.sequence = sequence
        self.data_type = data_type
        self.data = data
        self.compressed = compressed
        self.event: Event | None = None
        self._input = source
        self._kind = kind  # EXCLUSIVE or FLOATING; None if it takes no room
        self._held = False

    @property
    def is_event(self) -> bool:
        return self.event is not None

    def hold(self) -> "BufferOrEvent":
        """Keep the buffer's room until ``recycle``."""
        self._held = True
        return self

    def release(self) -> None:
        """The reader asks for the next item. Called with the gate's lock held."""
        if not self._held and self._kind is not None and self._input is not None:
            kind, self._kind = self._kind, None
            self._input.free(kind)

    def recycle(self) -> None:
        """Release the buffer's room, from any thread. Calling it twice is no error."""
        kind, self._kind = self._kind, None
        if kind is not None and self._input is not None:
            self._input.recycle(kind)

    def __repr__(self) -> str:
        what = repr(self.event) if self.event is not None else f"{len(self.data or b'')} bytes"
        return f"BufferOrEvent(channel={self.channel}, subpartition={self.subpartition}, {what})"


class BufferRun:
    """Data buffers of one channel, in order. They take room until the next ``poll``.

    ``data`` has the buffers, which belong to the user. The other columns have the same length: ``subpartitions`` (-1 if
    the sender does not state it) and ``data_types``. ``sequence`` is the number of the first buffer.
    """

    __slots__ = (
        "_floating",
        "_input",
        "_room",
        "channel",
        "data",
        "data_types",
        "sequence",
        "subpartitions",
    )

    def __init__(
        self,
        channel: int,
        sequence: int,
        subpartitions: list[int],
        data_types: list[int],
        data: list[bytes],
        source: BufferOwner,
        floating: int,
    ) -> None:
        self.channel = channel
        self.sequence = sequence
        self.subpartitions = subpartitions
        self.data_types = data_types
        self.data = data
        self._input = source
        self._floating = floating  # this many of the first buffers take FLOATING room, the others EXCLUSIVE
        self._room = len(data)  # of all buffers; the user may change the list

    @classmethod
    def of(cls, row: BufferRow, channel: int, source: BufferOwner, floating: int) -> "BufferRun":
        return cls(channel, row.sequence, row.subpartitions, row.data_types, row.payloads, source, floating)

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"BufferRun(channel={self.channel}, {len(self)} buffers)"

    def release(self) -> None:
        """The reader asks for the next item. Called with the gate's lock held."""
        self._input.free_row(*self.room(0))

    def extend(self, row: BufferRow, floating: int) -> None:
        """Add the buffers that came after these."""
        self.data += row.payloads
        self.subpartitions += row.subpartitions
        self.data_types += row.data_types
        self._floating += floating
        self._room += len(row)

    def room(self, begin: int) -> tuple[int, int]:
        """How many FLOATING and EXCLUSIVE buffers those from this place on take."""
        floating = max(0, self._floating - begin)
        return floating, self._room - begin - floating

    def split(self, count: int) -> "tuple[BufferRun, BufferRun]":
        """The first ``count`` buffers, and the rest."""
        floating = min(self._floating, count)
        return self._part(slice(0, count), floating), self._part(slice(count, None), self._floating - floating)

    def _part(self, part: slice, floating: int) -> "BufferRun":
        return BufferRun(
            self.channel,
            self.sequence + (part.start or 0),
            self.subpartitions[part],
            self.data_types[part],
            self.data[part],
            self._input,
            floating,
        )

    def buffer(self, place: int) -> BufferOrEvent:
        """The buffer at this place as an item of its own, which then owns its room."""
        return BufferOrEvent(
            self.channel,
            self.subpartitions[place],
            self.sequence + place,
            DATA_TYPES[self.data_types[place]],
            self.data[place],
            False,
            self._input,
            FLOATING if place < self._floating else EXCLUSIVE,
        )


Item = BufferOrEvent | BufferRun
