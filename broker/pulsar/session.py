"""One connection's frames. Pure; used by the connection's processor only.

Commands are parsed here. A SEND is only recognised: its bytes are read when it is handled, because the reactor may move them.

Tests: tests/pulsar/test_session.py.
"""

from broker.network.service import Request
from broker.pulsar.command import PulsarRequest, Type
from protocol.pulsar import frames

_SEND = int(Type.SEND)


class PulsarSession:
    in_flight_max = 1

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes

    def frame_size(self, data: memoryview) -> int:
        return frames.frame_size(data, self._max_message_bytes)

    def receive(self, frame: memoryview) -> Request:
        if frames.command_type(frame) == _SEND:
            return PulsarRequest(_SEND, None)
        return PulsarRequest(*frames.read_command(frame))
