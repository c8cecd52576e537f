"""The least that a Python program needs for the same fetches: a loop without features, as a floor to compare the broker with.

    python -m tests.bench.bare DIRECTORY

It takes Produce v7 (one partition, stored without a check) and Fetch v4 (one partition) from any number of connections, one
thread, epoll. It knows positions because all batches of a topic are of the same size. A fetch at the end waits for the next
produce. Prints its address.
"""

import os
import select
import socket
import struct
import sys

_SMALL = 32 * 1024


class Log:
    def __init__(self, path: str, batch_size: int, records: int) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.batch_size = batch_size
        self.records = records
        self.end = 0
        self.size = 0
        self.waiting: list[tuple[Connection, int, bytes, int, int]] = []


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.buffer = b""
        self.out: list[bytes | tuple[int, int, int]] = []  # bytes, or descriptor, offset and size


class Server:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.logs: dict[bytes, Log] = {}
        self.poll = select.epoll()

    def run(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        print("{}:{}".format(*listener.getsockname()), flush=True)
        connections: dict[int, Connection] = {}
        self.poll.register(listener, select.EPOLLIN)
        while True:
            for fd, events in self.poll.poll():
                if fd == listener.fileno():
                    sock, _ = listener.accept()
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connections[sock.fileno()] = Connection(sock)
                    self.poll.register(sock, select.EPOLLIN)
                    continue
                connection = connections[fd]
                if events & select.EPOLLOUT:
                    self.flush(connection)
                    continue
                data = connection.socket.recv(1 << 20)
                if not data:
                    self.poll.unregister(fd)
                    connections.pop(fd).socket.close()
                    continue
                connection.buffer = connection.buffer + data if connection.buffer else data
                self.handle(connection)

    def handle(self, connection: Connection) -> None:
        data = connection.buffer
        at = 0
        while len(data) - at >= 4:
            size = struct.unpack_from(">i", data, at)[0] + 4
            if len(data) - at < size:
                break
            key, _, correlation_id, client = struct.unpack_from(">hhih", data, at + 4)
            body = at + 14 + max(client, 0)
            if key == 0:
                self.produce(connection, data, correlation_id, body + 8)
            else:
                self.fetch(connection, data, correlation_id, body + 17)
            at += size
        connection.buffer = data[at:] if at < len(data) else b""
        self.flush(connection)

    def produce(self, connection: Connection, data: bytes, correlation_id: int, at: int) -> None:
        at += 4  # the number of topics
        (length,) = struct.unpack_from(">h", data, at)
        topic = data[at + 2 : at + 2 + length]
        at += 2 + length + 8
        (size,) = struct.unpack_from(">i", data, at)
        records = bytearray(data[at + 4 : at + 4 + size])
        log = self.logs.get(topic)
        if log is None:
            (last,) = struct.unpack_from(">i", records, 23)
            log = self.logs[topic] = Log(os.path.join(self.directory, topic.decode()), size, last + 1)
        struct.pack_into(">q", records, 0, log.end)
        os.pwrite(log.fd, records, log.size)
        answer = struct.pack(">iih", correlation_id, 1, length) + topic
        answer += struct.pack(">iihqqqi", 1, 0, 0, log.end, -1, 0, 0)
        connection.out.append(struct.pack(">i", len(answer)) + answer)
        log.end += log.records
        log.size += size
        waiting, log.waiting = log.waiting, []
        for one in waiting:
            self.answer(log, *one)
            self.flush(one[0])

    def fetch(self, connection: Connection, data: bytes, correlation_id: int, at: int) -> None:
        at += 4
        (length,) = struct.unpack_from(">h", data, at)
        topic = data[at + 2 : at + 2 + length]
        offset, most = struct.unpack_from(">qi", data, at + 2 + length + 8)
        log = self.logs[topic]
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
        head = struct.pack(">i", len(head) + size) + head
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
            self.poll.modify(connection.socket, select.EPOLLIN)
        except BlockingIOError:
            self.poll.modify(connection.socket, select.EPOLLOUT)


if __name__ == "__main__":
    Server(sys.argv[1]).run()
