"""The least that a Python program needs for a request: loops without features, as floors to compare the broker with.

    python -m tests.bench.bare produce|fetch|fsync DIRECTORY

``produce``: a blocking server for one connection at a time. It takes Produce v7 (one partition), compares the checksum, writes
the batch and answers. ``fetch``: takes the same, and Fetch v4 (one partition), from any number of connections, with epoll. It
knows positions because all batches of a topic are of the same size; a fetch at the end waits for the next produce. ``fsync``: of
one connection, appends and syncs whatever comes, and answers with 50 bytes. Each prints its address.
"""

import os
import select
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

from crc32c import crc32c

_INT = struct.Struct(">i")
_BATCH = struct.Struct(">qiibIhi")  # up to the last offset delta
_ANSWER = struct.Struct(">iihqqqi")
_CHECKED_FROM = 21
_MOST_BYTES = 4 << 20
_SMALL = 32 * 1024


def _created(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)


class Log:
    def __init__(self, path: str, batch_size: int, records: int) -> None:
        self.fd = _created(path)
        self.batch_size = batch_size
        self.records = records
        self.end = self.size = 0
        self.waiting: list[tuple[Any, ...]] = []  # connection, correlation id, topic, offset, bytes at most


class Logs:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.by_topic: dict[bytes, Log] = {}

    def append(self, frame: memoryview) -> tuple[Log, bytes]:
        """Store a request's batch. Its log, and the answer."""
        _, _, correlation_id, client = struct.unpack_from(">hhih", frame, 4)
        # Transactional id, acks, timeout and the number of topics come before the name.
        (length,) = struct.unpack_from(">h", frame, at := 14 + client + 2 + 2 + 4 + 4)
        topic = bytes(frame[at + 2 : at + 2 + length])
        records = frame[at + 2 + length + 12 :]
        _, _, _, _, checksum, _, last = _BATCH.unpack_from(records)
        assert crc32c(records[_CHECKED_FROM:]) == checksum
        log = self.by_topic.get(topic)
        if log is None:
            log = Log(f"{self._directory}/{topic.decode()}", len(records), last + 1)
            self.by_topic[topic] = log
        base = log.end
        struct.pack_into(">q", records, 0, base)
        log.size += os.pwrite(log.fd, records, log.size)
        log.end += last + 1
        body = struct.pack(">iih", correlation_id, 1, length) + topic + _ANSWER.pack(1, 0, 0, base, -1, 0, 0)
        return log, _INT.pack(len(body)) + body


def _accept(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive(connection: socket.socket, view: memoryview) -> int:
    try:
        return connection.recv_into(view)
    except ConnectionError:  # the driver goes without a goodbye
        return 0


def serve_produce(listener: socket.socket, directory: str) -> None:
    logs, buffer = Logs(directory), memoryview(bytearray(_MOST_BYTES))
    while True:
        connection, have = _accept(listener), 0
        while got := _receive(connection, buffer[have:]):
            have += got
            at, answers = 0, []
            while have - at >= 4 and have - at >= (size := 4 + _INT.unpack_from(buffer, at)[0]):
                answers.append(logs.append(buffer[at : at + size])[1])
                at += size
            if answers:
                with suppress(ConnectionError):
                    connection.sendall(b"".join(answers))
            if at:
                buffer[: have - at] = buffer[at:have]
                have -= at
        connection.close()


def serve_fsync(listener: socket.socket, directory: str) -> None:
    connection, file, end = _accept(listener), _created(f"{directory}/served"), 0
    while data := connection.recv(65536):
        end += os.pwrite(file, data, end)
        os.fdatasync(file)
        connection.sendall(_INT.pack(46) + bytes(46))


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.buffer = b""  # the beginning of a request
        self.waits_for_room = False
        self.out: list[bytes | tuple[int, int, int]] = []  # bytes, or descriptor, offset and size


class FetchServer:
    def __init__(self, listener: socket.socket, directory: str) -> None:
        self.listener, self.logs, self.poll = listener, Logs(directory), select.epoll()
        self.view = memoryview(bytearray(256 * 1024))

    def run(self) -> None:
        connections: dict[int, Connection] = {}
        self.poll.register(self.listener, select.EPOLLIN)
        while True:
            for fd, events in self.poll.poll():
                if fd == self.listener.fileno():
                    sock = _accept(self.listener)
                    sock.setblocking(False)
                    connections[sock.fileno()] = Connection(sock)
                    self.poll.register(sock, select.EPOLLIN)
                elif events & select.EPOLLOUT:
                    self.flush(connections[fd])
                elif got := _receive(connections[fd].socket, self.view):
                    self.handle(connections[fd], got)
                else:
                    self.poll.unregister(fd)
                    connections.pop(fd).socket.close()

    def handle(self, connection: Connection, got: int) -> None:
        data, at = self.view[:got], 0
        if connection.buffer:
            data = memoryview(bytearray(connection.buffer + data))
        while len(data) - at >= 4 and len(data) - at >= (size := _INT.unpack_from(data, at)[0] + 4):
            if data[at + 4 : at + 6] == b"\0\0":
                log, answer = self.logs.append(data[at : at + size])
                connection.out.append(answer)
                waiting, log.waiting = log.waiting, []
                for one in waiting:
                    self.answer(log, *one)
                    self.flush(one[0])
            else:
                self.fetch(connection, data, at)
            at += size
        connection.buffer = bytes(data[at:])
        self.flush(connection)

    def fetch(self, connection: Connection, data: memoryview, at: int) -> None:
        correlation_id, client = struct.unpack_from(">ih", data, at + 8)
        (length,) = struct.unpack_from(">h", data, at := at + 14 + client + 21)
        topic = bytes(data[at + 2 : at + 2 + length])
        offset, most = struct.unpack_from(">qi", data, at + 2 + length + 8)
        log = self.logs.by_topic[topic]
        if offset == log.end:
            log.waiting.append((connection, correlation_id, topic, offset, most))
        else:
            self.answer(log, connection, correlation_id, topic, offset, most)

    def answer(
        self, log: Log, connection: Connection, correlation_id: int, topic: bytes, offset: int, most: int
    ) -> None:
        position = offset // log.records * log.batch_size
        size = min(most, log.size - position)
        head = struct.pack(">iiih", correlation_id, 0, 1, len(topic)) + topic
        head += struct.pack(">iihqqii", 1, 0, 0, log.end, log.end, 0, size)
        head = _INT.pack(len(head) + size) + head
        if size <= _SMALL:
            connection.out.append(head + os.pread(log.fd, size, position))
        else:
            connection.out += [head, (log.fd, position, size)]

    def flush(self, connection: Connection) -> None:
        out = connection.out
        if not out:
            return
        try:
            while out:
                head = out[0]
                if isinstance(head, bytes):
                    connection.socket.send(head)  # short enough to be taken whole
                    del out[0]
                else:
                    fd, offset, size = head
                    sent = os.sendfile(connection.socket.fileno(), fd, offset, size)
                    if sent == size:
                        del out[0]
                    else:
                        out[0] = fd, offset + sent, size - sent
            if connection.waits_for_room:
                self.poll.modify(connection.socket, select.EPOLLIN)
            connection.waits_for_room = False
        except BlockingIOError:
            if not connection.waits_for_room:
                self.poll.modify(connection.socket, select.EPOLLOUT)
            connection.waits_for_room = True
        except ConnectionError:
            out.clear()


def main(kind: str, directory: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print("{}:{}".format(*listener.getsockname()), flush=True)
    if kind == "fetch":
        FetchServer(listener, directory).run()
    elif kind == "produce":
        serve_produce(listener, directory)
    else:
        serve_fsync(listener, directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
