"""A Kafka client that costs next to nothing, so that a benchmark measures the broker.

Requests are built once and sent again and again, pipelined; replies are only looked at as far as their error codes.
"""

import random
import socket
import struct
import time
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control

_INT = struct.Struct(">i")


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def idle(address: str, count: int) -> list[socket.socket]:
    """Connections that have been used once."""
    ask = struct.pack(">ihhih", 14, 18, 0, 1, 4) + b"idle"
    connections = []
    for _ in range(count):
        connections.append(connect(address))
        connections[-1].sendall(ask)
        assert connections[-1].recv(65536)
    return connections


class Wire:
    """One connection."""

    def __init__(self, address: str) -> None:
        self._socket = connect(address)
        self._head = bytearray(4)
        self._buffer = bytearray(1 << 20)

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The next reply without its length; valid until the next call."""
        self._fill(memoryview(self._head))
        (size,) = _INT.unpack(self._head)
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        reply = memoryview(self._buffer)[:size]
        self._fill(reply)
        return reply

    def _fill(self, view: memoryview) -> None:
        while len(view):
            got = self._socket.recv_into(view)
            if not got:
                raise ConnectionError("the broker closed the connection")
            view = view[got:]

    def call(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        """One request and its parsed reply."""
        self.ask(key, version, fields)
        return self.answer(key, version)

    def ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> None:
        self.send(control.encode_request(key, version, 1, "bench", fields))

    def answer(self, key: ApiKey, version: int) -> Any:
        reply = self.receive()
        return control.parse_response(key, version, _INT.pack(len(reply)) + reply)[1]

    def create_topic(self, name: str, partitions: int = 1) -> None:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
        reply = self.call(ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False})
        assert reply.topics[0].error_code == 0, reply


def batch(records: int, size: int) -> bytes:
    """A record batch of ``records`` values of ``size`` random bytes."""
    value = random.Random(1).randbytes(size)
    now = time.time_ns() // 1_000_000
    return bytes(build_batch([(None, value, (), now)] * records))


def produce_frame(topic: str, records: bytes, acks: int = 1, partition: int = 0) -> bytes:
    """A Produce request (version 7) for a partition."""
    name = topic.encode()
    body = struct.pack(">hhih5s", 0, 7, 1, 5, b"bench") + struct.pack(">hhii", -1, acks, 30_000, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, partition, len(records)) + records
    return _INT.pack(len(body)) + body


def produce(wire: Wire, frame: bytes, topic: str, count: int, depth: int) -> list[int]:
    """Send ``frame`` ``count`` times, ``depth`` in flight. The base offsets; AssertionError for an error reply."""
    at = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    reply_fields = struct.Struct(">hq").unpack_from
    offsets = []

    def one() -> None:
        error, offset = reply_fields(wire.receive(), at)
        assert error == 0, f"error {error}"
        offsets.append(offset)

    for sent in range(count):
        wire.send(frame)
        if sent >= depth - 1:
            one()
    while len(offsets) < count:
        one()
    return offsets


def fetch_frame(topic: str, offset: int, max_bytes: int, max_wait_ms: int = 100, partition: int = 0) -> bytes:
    """A Fetch request (version 4) for a partition."""
    name = topic.encode()
    body = struct.pack(">hhih5s", 1, 4, 2, 5, b"bench") + struct.pack(">iiiib", -1, max_wait_ms, 1, 50 << 20, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, offset, max_bytes)
    return _INT.pack(len(body)) + body


def fetch_all(wire: Wire, topic: str, start: int, end: int, max_bytes: int = 16 << 20) -> tuple[int, int]:
    """Read offsets ``start`` to ``end``. Returns bytes of records and number of requests."""
    head = 4 + 4 + 4 + 2 + len(topic.encode()) + 4
    total = requests = 0
    while start < end:
        wire.send(fetch_frame(topic, start, max_bytes))
        reply = wire.receive()
        requests += 1
        _, error, _, _, aborted = struct.unpack_from(">ihqqi", reply, head)
        assert error == 0, f"error {error}"
        at = head + 26 + 16 * max(aborted, 0)
        (size,) = _INT.unpack_from(reply, at)
        total += size
        at += 4
        stop = at + size
        while at + 61 <= stop:
            base, length = struct.unpack_from(">qi", reply, at)
            if at + 12 + length > stop:
                break
            start = base + _INT.unpack_from(reply, at + 23)[0] + 1
            at += 12 + length
    return total, requests
