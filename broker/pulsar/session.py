"""The frames of a connection. Pure; used by the connection's processor only.

Small commands are parsed here. Large commands are parsed by the handler, because that takes up to 80 ms for the largest. SENDs,
ACKs and FLOWs are only recognised: their bytes are read when they are handled, because the reactor may move them. SENDs that
arrive together are taken as a single frame, so that they share an append, an fsync and a push of receipts.

Tests: tests/pulsar/test_session.py.
"""

import struct
from collections.abc import Mapping
from math import inf
from typing import Any

from broker.network.service import Request
from broker.network.work import BULK_BYTES
from protocol.errors import ProtocolError
from protocol.pulsar import frames
from protocol.pulsar.pulsar_pb2 import BaseCommand

_SEND = int(BaseCommand.Type.SEND)
# Commands whose handlers read the frame.
_RAW = frozenset({_SEND, int(BaseCommand.Type.ACK), int(BaseCommand.Type.FLOW)})
# The longest frame before CONNECTED: a CONNECT with a token takes a few KB.
_BEFORE_CONNECT_BYTES = 64 * 1024
# The type of a large command that does not begin with its type: unknown until a handler parses it.
_UNKNOWN = -1
# The first bytes of a SEND's command: its type. Clients write the type first; all other SENDs are taken singly.
_AS_SEND = 0x0806
_START = struct.Struct(">IIH")  # the sizes of frame and command, and the first two bytes of the command
# SENDs that are taken together: about 1 ms of work, as for a turn of the processor.
_TOGETHER_MAX = 128
# The limit of bytes of several SENDs, because all of them may be metadata.
_TOGETHER_BYTES = 256 * 1024


class PulsarRequest(Request):
    """A frame. ``body`` is its command, or None if its bytes are read when it is handled."""

    __slots__ = ("body", "type")

    def __init__(self, type: int, body: Any) -> None:
        self.type = type
        self.body = body

    @property
    def unparsed(self) -> bool:
        """The command is so large that the processor leaves parsing to a handler."""
        return self.body is None and self.type not in _RAW

    def parse(self) -> None:
        """Raises ProtocolError."""
        self.type = frames.command_type(self.frame)
        if self.unparsed:
            self.type, self.body = frames.read_command(self.frame)


class PulsarSession:
    in_flight_max = 1

    def __init__(self, max_message_bytes: int, deadline: float) -> None:
        """``deadline``: the time (Clock.monotonic() s) at which the processor closes the connection unless the client has
        connected."""
        self.deadline = deadline
        self.client_words: Mapping[str, str] = {}  # the client's description of itself, for people. Any thread
        self._connected = False
        self._max_message_bytes = max_message_bytes
        # The largest frame, as in `frames.frame_size`.
        self._most = max_message_bytes + frames.FRAME_PADDING

    def connected(self) -> None:
        """The client has been accepted. On the thread that handles its CONNECT."""
        self._connected = True
        self.deadline = inf

    def frame_size(self, data: memoryview) -> int:
        """The size of a frame, or of several whole SENDs together."""
        size = frames.frame_size(data, self._max_message_bytes)
        if not self._connected and size > _BEFORE_CONNECT_BYTES:
            raise ProtocolError(f"a frame of {size} bytes before CONNECT")
        end = min(len(data), max(size, _TOGETHER_BYTES))
        if not size or size + 10 > end or data[8] != 0x08 or data[9] != _SEND:
            return size
        most, unpack = self._most, _START.unpack_from
        for _ in range(_TOGETHER_MAX - 1):
            if size + 10 > end:
                break
            length, _, command = unpack(data, size)
            if command != _AS_SEND or length > most or size + 4 + length > end or length < 6:
                break
            size += 4 + length
        return size

    def receive(self, frame: memoryview) -> Request:
        # If these are several frames, all of them are SENDs, and the size in the first is that of the first only.
        if len(frame) >= 10 and frame[8] == 0x08 and frame[9] == _SEND:
            return PulsarRequest(_SEND, None)
        if len(frame) > BULK_BYTES and frame[8] != 0x08:
            return PulsarRequest(_UNKNOWN, None)
        kind = frames.command_type(frame)
        if kind in _RAW or len(frame) > BULK_BYTES:
            return PulsarRequest(kind, None)
        return PulsarRequest(*frames.read_command(frame))
