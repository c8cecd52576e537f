"""Things between a client and a server: one that loses what the test chooses, connections and bytes, and a pooler of PostgreSQL's
sessions in transaction mode."""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable

import psycopg

from tests.kafka_connection import exactly

# What a client asks first: encryption, which these do not have.
_SSL, _GSS = 80877103, 80877104


class _Listener:
    """Calls ``serve`` with each connection, on a thread of its own."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._start(self.serve, client)

    def _start(self, body: Callable[..., None], *values: object) -> None:
        def run() -> None:
            with contextlib.suppress(OSError):
                body(*values)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for one in self._sockets:
            _end(one)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()


class Proxy(_Listener):
    """Forwards everything to a port, until it is told otherwise. Any thread."""

    def __init__(self, server_port: int, server_host: str = "127.0.0.1") -> None:
        self.refusing = False  # ends new connections at once
        self.mute = False  # keeps answers of the server to itself
        self.deaf = False  # passes nothing on to the server
        self.refused = 0  # new connections
        self.kept = 0  # how often a client sent something that was not passed on, because of ``deaf``
        self.cuts = 0  # by ``cut_at``
        self.answers = 0  # how often something came from the server
        self._server = server_host, server_port
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._tells_server = True
        self._tells_client = True
        self._text: bytes | None = None
        self._deliver = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._held: list[tuple[socket.socket, bytes]] = []
        super().__init__()

    def cut(self, *, server_too: bool = True) -> None:
        """End all connections, at the client's end at least; then the server never hears of it."""
        self._tells_server = server_too
        for client, server in self._pairs.copy():
            _end(client)
            if server_too:
                _end(server)
        if server_too:
            self._pairs.clear()

    def lose_clients(self) -> None:
        """The server hears that all its clients have gone. They hear nothing, and no new one comes through."""
        self.refusing = True
        self._tells_client = False
        for _, server in self._pairs.copy():
            _end(server)

    def hold(self) -> None:
        """Nothing comes through, either way, and nobody is told, as if the network were cut."""
        self._flowing.clear()

    def let_go(self) -> None:
        """After ``hold``: all that was sent meanwhile arrives, late."""
        self._flowing.set()

    def refuse(self) -> None:
        """Until ``refusing`` is taken back: both sides are told, and no new connection comes through."""
        self.refusing = True
        self.cut()

    def close(self) -> None:
        self._flowing.set()
        super().close()

    def cut_at(self, text: bytes, *, deliver: bool) -> None:
        """End the connection of the client that sends the text, once. ``deliver``: the server still gets the text, only its
        answer is lost; otherwise it gets nothing more, unless ``deliver_held`` is called, and does not learn that its client is
        gone."""
        self._deliver = deliver
        self._text = text

    def deliver_held(self) -> None:
        """Let the server have what was cut off, late."""
        for server, data in self._held:
            server.sendall(data)
        self._held.clear()

    def serve(self, client: socket.socket) -> None:
        try:
            self._flowing.wait()
            if self.refusing:
                self.refused += 1
                return
            server = socket.create_connection(self._server)
            self._sockets.append(server)
            self._pairs.append((client, server))
            cut = threading.Event()  # the server's answers are of no use any longer
            self._start(self._answer, server, client, cut)
            try:
                self._ask(client, server, cut)
            finally:
                if not cut.is_set() and self._tells_server:
                    _end(server)
        finally:
            if self._tells_client:
                _end(client)

    def _ask(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        while data := client.recv(65_536):
            self._flowing.wait()
            text = self._text
            if text is not None and text in data:
                self._text = None
                self.cuts += 1
                cut.set()
                _end(client)
                if self._deliver:
                    server.sendall(data)
                else:
                    self._held.append((server, data))
                return
            if self.deaf:
                self.kept += 1
            else:
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        try:
            while data := server.recv(65_536):
                self.answers += 1
                self._flowing.wait()
                if not cut.is_set() and not self.mute:
                    client.sendall(data)
        finally:
            if self._tells_client:
                _end(client)


class TransactionPooler(_Listener):
    """Gives its clients one of a few sessions for a transaction at a time, and needs no password of theirs."""

    def __init__(self, url: str, sessions: int) -> None:
        self._free: list[psycopg.Connection[tuple[object, ...]]] = [
            psycopg.connect(url, autocommit=True) for _ in range(sessions)
        ]
        self._all = list(self._free)
        self._changed = threading.Condition()
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        while True:
            (length,) = struct.unpack("!I", exactly(client, 4))
            (code,) = struct.unpack("!I", exactly(client, length - 4)[:4])
            if code not in (_SSL, _GSS):
                break
            client.sendall(b"N")
        ready = b"Z" + struct.pack("!Ic", 5, b"I")
        version = b"server_version\0" + str(self._all[0].info.parameter_status("server_version")).encode() + b"\0"
        client.sendall(
            b"R" + struct.pack("!II", 8, 0) + b"S" + struct.pack("!I", 4 + len(version)) + version
            + _parameter(b"client_encoding", b"UTF8") + _parameter(b"default_transaction_read_only", b"off")
            + _parameter(b"in_hot_standby", b"off") + b"K" + struct.pack("!III", 12, 1, 1) + ready
        )  # fmt: skip
        while True:
            message = _message(client)
            with self._changed:
                self._changed.wait_for(lambda: self._free)
                lent = self._free.pop()
            try:
                self._transaction(client, lent, message)
            finally:
                with self._changed:
                    self._free.append(lent)
                    self._changed.notify()

    def _transaction(self, client: socket.socket, lent: "psycopg.Connection[tuple[object, ...]]", first: bytes) -> None:
        message = first
        with socket.socket(fileno=os.dup(lent.fileno())) as server:
            server.setblocking(True)
            while True:
                server.sendall(message)
                while message[:1] not in b"QS":  # until something that is answered by "ready"
                    message = _message(client)
                    server.sendall(message)
                while True:
                    answer = _message(server)
                    client.sendall(answer)
                    if answer[:1] == b"Z":
                        break
                if answer[5:] == b"I":
                    return
                message = _message(client)

    def close(self) -> None:
        super().close()
        for connection in self._all:
            connection.close()


def _parameter(name: bytes, value: bytes) -> bytes:
    body = name + b"\0" + value + b"\0"
    return b"S" + struct.pack("!I", 4 + len(body)) + body


def _message(of: socket.socket) -> bytes:
    head = exactly(of, 5)
    return head + exactly(of, struct.unpack("!I", head[1:])[0] - 4)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
