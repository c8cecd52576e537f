"""A blocking connection to a Kafka listener, and the fields of the requests that tests send most.

Fields that are left out have Kafka's defaults.
"""

import socket
import struct
from collections.abc import Iterable
from typing import Any, Self

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control

# Generous: only a hang gets there.
PATIENCE_S = 60.0
LENGTH = struct.Struct(">i")


def parts(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``."""
    host, port = address.rsplit(":", 1)
    return host, int(port)


def exactly(sock: socket.socket, size: int) -> bytes:
    """The next ``size`` bytes. Raises ConnectionError, which is an OSError, if the other side closes before."""
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        data += piece
    return bytes(data)


class KafkaConnection:
    """``with KafkaConnection(address) as connection``. ``address``: host and port, or ``host:port``.

    Whatever reads raises ConnectionError when the broker has closed the connection, and TimeoutError after a minute."""

    def __init__(
        self, address: str | tuple[str, int], *, timeout_s: float = PATIENCE_S, receive_buffer: int = 0
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(parts(address) if isinstance(address, str) else address)
        except BaseException:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def finish(self) -> None:
        """Close our side only."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the broker has closed already

    def abort(self) -> None:
        """Close with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def try_send(self, data: bytes) -> None:
        """The broker may close in the middle of it."""
        try:
            self.socket.sendall(data)
        except OSError:
            pass

    def exactly(self, size: int) -> bytes:
        return exactly(self.socket, size)

    def frame(self) -> bytes:
        """The next whole response, its length included."""
        head = self.exactly(LENGTH.size)
        return head + self.exactly(LENGTH.unpack(head)[0])

    def rest(self) -> bytes:
        """All that comes until the broker closes."""
        data = bytearray()
        try:
            while piece := self.socket.recv(1 << 20):
                data += piece
        except ConnectionError:
            pass
        return bytes(data)

    def is_closed(self) -> bool:
        """Waits for the end. True if nothing else comes before it."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def tell(self, key: ApiKey, version: int, /, **fields: Any) -> None:
        """Ask, and do not wait for the answer."""
        self.send(control.encode_request(key, version, 7, "test", fields))

    def answer(self, key: ApiKey, version: int) -> Any:
        """To a request that was sent before."""
        correlation_id, response = control.parse_response(key, version, self.frame())
        assert correlation_id == 7
        return response

    def ask(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """The parsed response. Fields that the version does not know are left out of the request."""
        self.tell(key, version, **fields)
        return self.answer(key, version)


def produce_fields(
    topic: str, records: bytes | bytearray | memoryview, partition: int = 0, **fields: Any
) -> dict[str, Any]:
    """Of a Produce request with one batch, acks=all unless ``fields`` say otherwise."""
    data = [{"index": partition, "records": bytes(records)}]
    return {"acks": -1, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": data}]} | fields


def fetch_fields(
    topic: str, partitions: Iterable[int] = (0,), offset: int = 0, max_bytes: int = 1 << 20, **fields: Any
) -> dict[str, Any]:
    """Of a Fetch request that waits for nothing unless ``fields`` say otherwise. ``max_bytes``: of each partition and of all."""
    wanted = [{"partition": one, "fetch_offset": offset, "partition_max_bytes": max_bytes} for one in partitions]
    topics = [{"topic": topic, "partitions": wanted}]
    return {"max_wait": 0, "min_bytes": 1, "max_bytes": max_bytes, "topics": topics} | fields
