"""One connection's frames. Pure; used by the connection's processor only.

Commands are parsed here. SENDs are only recognised: their bytes are read when they are handled, because the reactor may move
them. So are ACK and FLOW, which have readers of their own (``protocol/pulsar/acks.py``). SENDs that have arrived together are
taken as one frame, so that they become one append, one fsync and one push of receipts.

Tests: tests/pulsar/test_session.py.
"""

import struct
from math import inf
from typing import Any

from broker.network.service import Request
from protocol.errors import ProtocolError
from protocol.pulsar import frames
from protocol.pulsar.pulsar_pb2 import BaseCommand

_SEND = int(BaseCommand.Type.SEND)
_READ_LATER = frozenset({_SEND, int(BaseCommand.Type.ACK), int(BaseCommand.Type.FLOW)})
# The longest frame of a client that has not connected yet: a CONNECT with a token takes a few KB.
_BEFORE_CONNECT_BYTES = 64 * 1024
# How the command of a SEND begins: its type. Clients write the type first; other SENDs are taken one by one.
_AS_SEND = 0x0806
_START = struct.Struct(">IIH")  # the sizes of the frame and of the command, and the first two bytes of that
# SENDs that are taken together: about 1 ms of work, as for a turn of the processor.
_TOGETHER_MAX = 128


class PulsarRequest(Request):
    """A frame. ``body`` is its command, or None for those whose bytes are read when they are handled."""

    __slots__ = ("body", "type")

    def __init__(self, type: int, body: Any) -> None:
        self.type = type
        self.body = body


class PulsarSession:
    in_flight_max = 1

    def __init__(self, max_message_bytes: int, deadline: float) -> None:
        """``deadline``: until when (Clock.monotonic() s) the client must have connected, or the processor closes the
        connection."""
        self.deadline = deadline
        self._connected = False
        self._max_message_bytes = max_message_bytes
        # The largest frame, as `frames.frame_size` has it.
        self._most = max_message_bytes + frames.FRAME_PADDING

    def connected(self) -> None:
        """The client has been let in. On the thread that handles its only command."""
        self._connected = True
        self.deadline = inf

    def frame_size(self, data: memoryview) -> int:
        """That of a frame, or of several SENDs that are whole."""
        size = frames.frame_size(data, self._max_message_bytes)
        if not self._connected and size > _BEFORE_CONNECT_BYTES:
            raise ProtocolError(f"a frame of {size} bytes before CONNECT")
        end = len(data)
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
        # Of several frames the first is as long as it says, and all of them are SENDs.
        if len(frame) >= 10 and frame[8] == 0x08 and frame[9] == _SEND:
            return PulsarRequest(_SEND, None)
        kind = frames.command_type(frame)
        if kind in _READ_LATER:
            return PulsarRequest(kind, None)
        return PulsarRequest(*frames.read_command(frame))
