"""A protocol of four-byte lengths and one-letter commands, to test the reactor without any real one.

Frame: length (4, of what follows), command (1), payload. The reply is a frame with the same command and payload.
"""

import struct
import threading
from typing import Any

from broker.network.service import Connection, Handover, Outbox, Peer, Request
from broker.runtime.disk import File, FileRegion
from protocol.errors import ProtocolError

_LENGTH = struct.Struct(">I")


def frame(command: bytes, payload: bytes = b"") -> bytes:
    return _LENGTH.pack(1 + len(payload)) + command + payload


class EchoRequest(Request):
    __slots__ = ("command", "copy")
    command: bytes
    copy: bytes  # of the whole frame, for those that are answered later


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
    """Commands: e echo inline, p echo through the pool, s the same in a lane, w wait for `gate` (pool), n no answer,
    N no answer (pool), c close, C close (pool), x raise (inline), X raise (pool), ! not a request at all, h park until the test
    answers, H the same (pool), t echo and begin to throttle, z 1 MiB back per byte of payload, f payload "offset size": that
    part of `file`."""

    def __init__(self, in_flight_max: int = 1) -> None:
        self.in_flight_max = in_flight_max
        self.gate = threading.Event()
        self.parked: list[tuple[Request, Outbox]] = []
        self.writable_calls = 0
        self.held_ups = 0
        self.gone: list[Connection] = []
        self.connections: list[Connection] = []
        self.throttled: list[tuple[Connection, Outbox]] = []
        self.handled: list[bytes] = []
        self.prepared: list[bytes | None] = []
        self.file: File | None = None

    def connect(self, peer: Peer) -> EchoSession:
        return EchoSession(self.in_flight_max)

    def inline(self, request: Any) -> Any:
        if request.command in b"pswXCHN":
            return Handover("slow" if request.command == b"s" else None, request.command)
        return request.command

    def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
        command = request.command
        self.handled.append(command)
        self.prepared.append(prepared)
        if request.connection not in self.connections:
            self.connections.append(request.connection)
        if command == b"w":
            self.gate.wait(30)
        if command in b"nN":
            outbox.no_op(request)
        elif command in b"cC":
            outbox.close(request)
        elif command in b"xX":
            raise RuntimeError("asked for")
        elif command in b"hH":
            request.copy = bytes(request.frame)
            self.parked.append((request, outbox))
        elif command == b"t":
            outbox.start_throttling(request.connection)
            self.throttled.append((request.connection, outbox))
            outbox.send(request, [bytes(request.frame)])
        elif command == b"f":
            offset, size = map(int, bytes(request.frame[5:]).split())
            assert self.file is not None
            outbox.send(request, [_LENGTH.pack(1 + size) + b"f", FileRegion(self.file, offset, size)])
        elif command == b"z":
            size = len(request.frame) - 5
            outbox.send(request, [frame(b"z", b"\0" * (size << 20))])
        else:
            outbox.send(request, [bytes(request.frame)])

    def held_up(self) -> None:
        self.held_ups += 1

    def writable(self, connection: Connection) -> None:
        self.writable_calls += 1

    def stopping(self, connection: Connection) -> None:
        pass

    def disconnected(self, connection: Connection) -> None:
        self.gone.append(connection)


class Waking(EchoService):
    """A request "e" also answers a request that is parked, on another connection."""

    def handle(self, request: Any, outbox: Outbox, prepared: Any = None) -> None:
        if request.command == b"e" and self.parked:
            parked, _ = self.parked.pop()
            outbox.send(parked, [parked.copy])  # type: ignore[attr-defined]
        super().handle(request, outbox)
