"""One connection's frames. Pure; used by the connection's processor only.

Commands are parsed here. A SEND, an ACK or a FLOW is only recognised: its bytes are read when it is handled.

Tests: tests/pulsar/test_session.py.
"""

from broker.network.service import Request
from broker.pulsar.command import PulsarRequest, Type
from protocol.pulsar import frames

# Sent for each message or so: read when they are handled, without protobuf's objects in between where that is possible.
_READ_LATER = frozenset({int(Type.SEND), int(Type.ACK), int(Type.FLOW)})


class PulsarSession:
    in_flight_max = 1

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes

    def frame_size(self, data: memoryview) -> int:
        return frames.frame_size(data, self._max_message_bytes)

    def receive(self, frame: memoryview) -> Request:
        kind = frames.command_type(frame)
        if kind in _READ_LATER:
            return PulsarRequest(kind, None)
        return PulsarRequest(*frames.read_command(frame))
