"""A proxy before a server of S3's protocol that does on demand what real stores and networks do to their clients.

Faults are asked in the order in which they were added; the first that matches a request takes it, ``times`` times (None: always).
Requests that none takes are passed on. Signatures stay valid, because the Host header is passed on as it came.
"""

import http.client
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs

# What a fault does to a request.
Act = Callable[["Exchange"], None]


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    protocol_version = "HTTP/1.1"
    server: "_Server"
    body: bytes

    def handle_any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.store.take(self)
        if fault is None:
            pass_on(self)
        else:
            fault.act(self)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def ask_upstream(self) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.store.upstream_port, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(self.body or None)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, sent: int | None = None) -> None:
        """``sent``: only so many bytes of the body; then the connection is closed."""
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        self.send_header("Content-Length", length if length and self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])
        if sent is not None:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    store: "BadStore"

    def handle_error(self, *_: Any) -> None:
        """The client has closed the connection."""


def pass_on(exchange: Exchange) -> None:
    exchange.answer(*exchange.ask_upstream())


def status(code: int, body: bytes = b"") -> Act:
    """Nothing is done but answered. Stores always send an ETag for what was put."""
    return lambda exchange: exchange.answer(code, [("ETag", '"x"')], body)


def reset(exchange: Exchange) -> None:
    """Nothing is done, and the connection is reset."""
    exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.close_connection = True
    exchange.connection.close()


def silence(exchange: Exchange) -> None:
    """Nothing is done, and no answer comes."""
    exchange.server.store.closed.wait()
    exchange.close_connection = True


def lie(exchange: Exchange) -> None:
    """It is done, but no answer comes."""
    exchange.ask_upstream()
    silence(exchange)


def delay(seconds: float) -> Act:
    """It is done later."""

    def act(exchange: Exchange) -> None:
        exchange.server.store.closed.wait(seconds)
        pass_on(exchange)

    return act


def lie_with(code: int) -> Act:
    """It is done, but the answer is this."""

    def act(exchange: Exchange) -> None:
        exchange.ask_upstream()
        exchange.answer(code, [], b"")

    return act


def cut(sent: int) -> Act:
    """Only so many bytes of the answer's body come."""

    def act(exchange: Exchange) -> None:
        exchange.answer(*exchange.ask_upstream(), sent)

    return act


def drip(exchange: Exchange) -> None:
    """The answer's body comes byte by byte, too slowly for anybody's deadline but never silent for long."""
    code, headers, body = exchange.ask_upstream()
    exchange.answer(code, headers, body, sent=0)
    for position in range(len(body)):
        if exchange.server.store.closed.wait(0.3):
            return
        exchange.wfile.write(body[position : position + 1])


def shorten(size: int) -> Act:
    """As if the object had only so many bytes."""

    def act(exchange: Exchange) -> None:
        code, headers, body = exchange.ask_upstream()
        kept = [(name, value) for name, value in headers if name.lower() not in ("content-length", "content-range")]
        exchange.answer(code, [*kept, ("Content-Range", f"bytes 0-{size - 1}/{size}")], body[:size])

    return act


@attrs.define(eq=False)
class Fault:
    act: Act
    method: str | None
    where: str
    times: int | None
    matches: Callable[[Mapping[str, str]], bool]
    hits: int = 0

    def takes(self, exchange: Exchange) -> bool:
        return (
            (self.times is None or self.hits < self.times)
            and self.method in (None, exchange.command)
            and self.where in exchange.path
            and self.matches(exchange.headers)
        )


class BadStore:
    """``endpoint`` is for clients; ``requests`` are those that came: method and path with query. Close it in the end. ``tls``:
    of a server, which the endpoint then speaks."""

    def __init__(self, upstream_port: int, tls: ssl.SSLContext | None = None) -> None:
        self.upstream_port = upstream_port
        self.closed = threading.Event()
        self.requests: list[str] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), Exchange)
        self._server.store = self
        self.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), name="bad-store", daemon=True).start()

    def fail(
        self,
        act: Act,
        method: str | None = None,
        where: str = "",
        times: int | None = 1,
        matches: Callable[[Mapping[str, str]], bool] = lambda headers: True,
    ) -> Fault:
        """Of requests with this method, with ``where`` in path or query, and with headers that match."""
        fault = Fault(act, method, where, times, matches)
        with self._lock:
            self._faults.append(fault)
        return fault

    def repair(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()

    def take(self, exchange: Exchange) -> Fault | None:
        """The fault for this request."""
        with self._lock:
            self.requests.append(f"{exchange.command} {exchange.path}")
            for fault in self._faults:
                if fault.takes(exchange):
                    fault.hits += 1
                    return fault
        return None

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
