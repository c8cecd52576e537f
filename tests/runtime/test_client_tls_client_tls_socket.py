"""The client's end of TLS on a non-blocking socket, against Python's own server on a thread."""

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.runtime.client_tls import ClientTlsSocket, TlsRefused, TlsSettings, tls_context
from broker.runtime.net import WOULD_BLOCK, SystemNetwork
from broker.runtime.poller import READ, WRITE
from tests import certificates

PATIENCE_S = 30
Serve = Callable[[ssl.SSLSocket], None]


class Server:
    """Serves one connection on a thread."""

    def __init__(self, context: ssl.SSLContext, serve: Serve) -> None:
        self.error: BaseException | None = None
        self._context, self._serve = context, serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        plain, _ = self._listener.accept()
        plain.settimeout(PATIENCE_S)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        try:
            with self._context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=False) as encrypted:
                self._serve(encrypted)
        except Exception as error:
            self.error = error
        finally:
            plain.close()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def server_context(tmp_path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=certificates.authority().pem)
    context.load_cert_chain(certificates.server().write(tmp_path, "server").both)
    return context


@contextlib.contextmanager
def connected(
    context: ssl.SSLContext, serve: Serve, settings: TlsSettings | None = None, host: str = "localhost"
) -> Iterator[tuple[ClientTlsSocket, Server]]:
    server = Server(context, serve)
    plain = SystemNetwork().connect("127.0.0.1", server.port)
    assert plain is not None
    select.select([], [plain], [], PATIENCE_S)
    sock = ClientTlsSocket(plain, tls_context(settings or TlsSettings(ca_data=certificates.authority().pem)), host)
    try:
        yield sock, server
    finally:
        sock.forget()
        server.join()


def wait(sock: ClientTlsSocket, events: int) -> None:
    readable = [sock] if events & READ else []
    writable = [sock] if events & WRITE else []
    assert any(select.select(readable, writable, [], PATIENCE_S))


def shake_hands(sock: ClientTlsSocket) -> None:
    while wanted := sock.handshake():
        wait(sock, wanted)


def receive(sock: ClientTlsSocket, size: int) -> bytes:
    """Until ``size`` bytes or the end; it waits for the poller only where nothing is buffered."""
    received = bytearray()
    space = memoryview(bytearray(7001))  # less than a record
    while len(received) < size:
        if not sock.buffered:
            wait(sock, READ)
        got = sock.recv_into(space)
        if not got:
            break
        if got != WOULD_BLOCK:
            received += space[:got]
    return bytes(received)


def test_what_is_sent_comes_back_whatever_its_pieces(server_context: ssl.SSLContext) -> None:
    pieces = [os.urandom(size) for size in (1, 20, 16383, 5, 16384, 16385, 700_000, 3, 3, 24_000_000, 40_000)]
    everything = b"".join(pieces)
    has_blocked = threading.Event()

    def echo(peer: ssl.SSLSocket) -> None:
        assert has_blocked.wait(PATIENCE_S)
        data = bytearray()
        while len(data) < len(everything):
            data += peer.recv(65536)
        peer.sendall(data)

    with connected(server_context, echo) as (sock, server):
        shake_hands(sock)
        waiting = [memoryview(piece) for piece in pieces]
        while waiting:
            sent = sock.send(waiting[:64], False)
            if sent == WOULD_BLOCK:
                has_blocked.set()
                wait(sock, WRITE)
                continue
            while waiting and sent >= len(waiting[0]):
                sent -= len(waiting.pop(0))
            if sent:
                waiting[0] = waiting[0][sent:]
        assert has_blocked.is_set()
        assert everything == receive(sock, len(everything))
    assert server.error is None


def test_end_of_stream_reads_nothing(server_context: ssl.SSLContext) -> None:
    with connected(server_context, lambda peer: peer.sendall(b"last words")) as (sock, _):
        shake_hands(sock)
        assert b"last words" == receive(sock, 100)


def test_close_says_goodbye_and_forget_says_nothing(server_context: ssl.SSLContext) -> None:
    """With ``suppress_ragged_eofs=False`` the server notices the difference."""
    for how in (ClientTlsSocket.close, ClientTlsSocket.forget):
        with connected(server_context, lambda peer: [] == peer.recv(10)) as (sock, server):  # type: ignore[arg-type,return-value]
            shake_hands(sock)
            how(sock)
        # A reset, and not the end, where the client has not read the last that the server sent (tickets of TLS 1.3).
        cut_off = isinstance(server.error, (ssl.SSLEOFError, ConnectionResetError))
        assert (how is ClientTlsSocket.forget) == cut_off


def test_untrusted_or_wrong_server_is_refused(server_context: ssl.SSLContext) -> None:
    with (
        connected(server_context, lambda _: None, TlsSettings()) as (sock, _),
        pytest.raises(TlsRefused, match=r"certificate is not accepted.*ssl\.truststore\.location"),
    ):
        shake_hands(sock)
    with (
        connected(server_context, lambda _: None, host="elsewhere.example") as (sock, _),
        pytest.raises(TlsRefused, match=r"certificate is not accepted.*identification"),
    ):
        shake_hands(sock)


def test_a_missing_certificate_of_ours_is_named(server_context: ssl.SSLContext) -> None:
    server_context.verify_mode = ssl.CERT_REQUIRED
    with connected(server_context, lambda _: None) as (sock, _):
        # With TLS 1.3 the handshake has ended for us before the server looks at our certificate.
        shake_hands(sock)
        with pytest.raises((TlsRefused, ConnectionResetError)) as failure:
            receive(sock, 1)
        assert "ssl.keystore.location" in str(failure.value) or failure.type is ConnectionResetError


def test_what_is_no_tls_is_named() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    plain = SystemNetwork().connect("127.0.0.1", listener.getsockname()[1])
    assert plain is not None
    select.select([], [plain], [], PATIENCE_S)
    peer, _ = listener.accept()
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    sock = ClientTlsSocket(plain, tls_context(TlsSettings()), "localhost")
    with pytest.raises(TlsRefused, match="speaks no TLS"):
        shake_hands(sock)
    for one in (sock, peer, listener):
        one.close()
