"""A protocol of four-byte lengths and one-letter commands, to test the reactor without any real one.

Frame: length (4, of what follows), command (1), payload. The reply is a frame with the same command and payload.
"""

import struct
import threading
from typing import Any

from broker.network.connection import Connection
from broker.network.service import Outbox, Peer, Request
from protocol.errors import ProtocolError

_LENGTH = struct.Struct(">I")


def frame(command: bytes, payload: bytes = b"") -> bytes:
    return _LENGTH.pack(1 + len(payload)) + command + payload


class EchoRequest(Request):
    __slots__ = ("command",)
    command: bytes


class EchoSession:
    def __init__(self, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max

    def frame_size(self, data: memoryview) -> int:
        if len(data) < 4:
            return 0
        (length,) = _LENGTH.unpack_from(data)
        if length == 0:
            raise ProtocolError("an empty frame")
        return 4 + length

    def receive(self, data: memoryview) -> Request:
        request = EchoRequest()
        request.command = bytes(data[4:5])
        if request.command == b"!":
            raise ProtocolError("asked for")
        return request


class EchoService:
    """Commands: e echo inline, p echo through the pool, w wait for `gate` (pool), n no answer, c close, x raise (inline),
    X raise (pool), h park until `release` is called, z 1 MiB back per byte of payload."""

    def __init__(self, in_flight_max: int = 1) -> None:
        self.in_flight_max = in_flight_max
        self.gate = threading.Event()
        self.parked: list[tuple[Request, Outbox]] = []
        self.writable_calls = 0
        self.gone: list[Connection] = []
        self.connections: list[Connection] = []
        self.handled: list[bytes] = []

    def connect(self, peer: Peer) -> EchoSession:
        return EchoSession(self.in_flight_max)

    def inline(self, request: Any) -> bool:
        return request.command not in b"pwX"

    def handle(self, request: Any, outbox: Outbox) -> None:
        command = request.command
        self.handled.append(command)
        if request.connection not in self.connections:
            self.connections.append(request.connection)
        if command == b"w":
            self.gate.wait(10)
        if command == b"n":
            outbox.no_op(request)
        elif command == b"c":
            outbox.close(request)
        elif command in b"xX":
            raise RuntimeError("asked for")
        elif command == b"h":
            self.parked.append((request, outbox))
        elif command == b"z":
            size = len(request.frame) - 5
            outbox.send(request, [frame(b"z", b"\0" * (size << 20))])
        else:
            outbox.send(request, [bytes(request.frame)])

    def writable(self, connection: Connection) -> None:
        self.writable_calls += 1

    def disconnected(self, connection: Connection) -> None:
        self.gone.append(connection)
