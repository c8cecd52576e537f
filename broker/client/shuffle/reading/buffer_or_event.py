"""What a gate gives to its user: a buffer of records, or an event.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from typing import Protocol

from protocol.shuffle.data_type import DataType
from protocol.shuffle.events import Event


class BufferOwner(Protocol):
    """The channel to which the room that a buffer takes goes back."""

    def recycle(self, kind: int) -> None:
        """From any thread, without the gate's lock."""

    def free(self, kind: int) -> None:
        """With the gate's lock held."""


class BufferOrEvent:
    """``data`` of a buffer (decompressed, and bytes of the user's own), or ``event``; the other one is None.

    ``channel`` counts the gate's channels from 0 (of an aligned barrier: -1, for it is of all of them);
    ``subpartition`` is the producer's, or -1 where the sender does not say. A buffer's room counts as taken until the next
    ``poll``; who wants to work on it for longer, on another thread maybe, calls ``hold`` and, when done, ``recycle``: that
    is how a slow reader holds back its writers.
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
        self._kind = kind  # of the buffer that it fills; None: of none
        self._held = False

    @property
    def is_event(self) -> bool:
        return self.event is not None

    def hold(self) -> "BufferOrEvent":
        """Keep the buffer taken until ``recycle``."""
        self._held = True
        return self

    def recycle(self) -> None:
        """From any thread: its room may be used again. Twice is no error."""
        kind, self._kind = self._kind, None
        if kind is not None and self._input is not None:
            self._input.recycle(kind)

    def __repr__(self) -> str:
        what = repr(self.event) if self.event is not None else f"{len(self.data or b'')} bytes"
        return f"BufferOrEvent(channel={self.channel}, subpartition={self.subpartition}, {what})"
