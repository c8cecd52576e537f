"""The items that a gate gives to its reader: a buffer of records, or an event.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from typing import Protocol

from protocol.shuffle.data_type import DataType
from protocol.shuffle.events import Event


class BufferOwner(Protocol):
    """The channel that gets the room of a buffer back."""

    def recycle(self, kind: int) -> None:
        """Return a buffer of this kind. May be called from any thread, without the gate's lock."""

    def free(self, kind: int) -> None:
        """Return a buffer of this kind. Called with the gate's lock held."""


class BufferOrEvent:
    """Either ``data`` (a decompressed buffer, which belongs to the user) or ``event`` is set; the other is None.

    ``channel`` is the number of the gate's channel, from 0; an aligned barrier, which belongs to all channels, has -1.
    ``subpartition`` is the producer's, or -1 if the sender does not state it. A buffer takes room until the next ``poll``. To
    keep the room for longer, for example while another thread processes the buffer, call ``hold``, and ``recycle`` afterwards:
    this is how a slow reader holds back its writers.
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
        """Keep the buffer's room taken until ``recycle``."""
        self._held = True
        return self

    def recycle(self) -> None:
        """Release the buffer's room, from any thread. Calling it twice is no error."""
        kind, self._kind = self._kind, None
        if kind is not None and self._input is not None:
            self._input.recycle(kind)

    def __repr__(self) -> str:
        what = repr(self.event) if self.event is not None else f"{len(self.data or b'')} bytes"
        return f"BufferOrEvent(channel={self.channel}, subpartition={self.subpartition}, {what})"
