"""Blocking connections, for clients that work on the calling thread. The broker does not use them.

Plain TCP and TLS. Errors of a connection are raised as ``OSError``, time-outs as ``TimeoutError``, which is an ``OSError``; the
peer's refusal of our certificate as ``TlsRefused``.
"""

import select
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Protocol

from broker.runtime.client_tls import CLOSED_EARLY, TlsContext, closed_early, refusal
from broker.runtime.disk import Buffer
from broker.runtime.net import keep_alive

# Linux caps one writev at 1024 buffers.
_IOV_MAX = 1024


class Dialled(Protocol):
    """One connection, used by one thread. ``deadline``: Clock.monotonic() s."""

    def send(self, buffers: Sequence[Buffer], deadline: float) -> None:
        """Hand all of ``buffers`` over to the kernel, one after another."""

    def receive(self, view: memoryview, deadline: float) -> None:
        """Fill ``view``. ConnectionResetError if the other side closes before that."""

    def wait(self, deadline: float) -> bool:
        """Wait until there is something to receive, the end of the connection included. False if ``deadline`` came first."""

    def close(self) -> None: ...


class _Tcp:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, buffers: Sequence[Buffer], deadline: float) -> None:
        sock = self._socket
        sock.settimeout(_left(deadline))
        size = sum(map(len, buffers))
        sent = sock.sendmsg(buffers[:_IOV_MAX])
        if sent == size:  # the usual case
            return
        views = [memoryview(buffer) for buffer in buffers]
        while True:
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if not views:
                return
            if sent:
                views[0] = views[0][sent:]
            sock.settimeout(_left(deadline))
            sent = sock.sendmsg(views[:_IOV_MAX])

    def receive(self, view: memoryview, deadline: float) -> None:
        sock = self._socket
        position, size = 0, len(view)
        while position < size:
            sock.settimeout(_left(deadline))
            received = sock.recv_into(view[position:])
            if not received:
                raise ConnectionResetError("the other side has closed the connection")
            position += received

    def wait(self, deadline: float) -> bool:
        left_s = max(0.0, deadline - time.monotonic())
        if not hasattr(select, "poll"):  # Windows
            return bool(select.select([self._socket], [], [], left_s)[0])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(left_s * 1000))

    def close(self) -> None:
        self._socket.close()


class _Tls(_Tcp):
    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)

    def send(self, buffers: Sequence[Buffer], deadline: float) -> None:
        # Join small pieces, so that they share TLS records, and send large ones as they are.
        pending = bytearray()
        for buffer in buffers:
            if len(buffer) <= 16384:
                pending += buffer
                continue
            self._send_all(pending, deadline)
            pending = bytearray()
            self._send_all(buffer, deadline)
        self._send_all(pending, deadline)

    def _send_all(self, buffer: Buffer, deadline: float) -> None:
        # Not `sendall`: its time-out starts again with each piece that a slow peer takes.
        view = memoryview(buffer)
        while view:
            self._socket.settimeout(_left(deadline))
            try:
                view = view[self._socket.send(view) :]
            except ssl.SSLError as error:
                raise self._refused(error) from None

    def receive(self, view: memoryview, deadline: float) -> None:
        try:
            super().receive(view, deadline)
        except ssl.SSLError as error:
            raise self._refused(error) from None

    def wait(self, deadline: float) -> bool:
        # What has been decrypted already is no longer in the kernel.
        return bool(self._socket.pending()) or super().wait(deadline)  # type: ignore[attr-defined]

    @staticmethod
    def _refused(error: ssl.SSLError) -> Exception:
        """With TLS 1.3 a server checks the client's certificate after the client's handshake has ended."""
        return refusal(error) if error.reason and "ALERT" in error.reason and "CERTIFICATE" in error.reason else error


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the connection timed out")
    return left


def dial(host: str, port: int, timeout: float, context: TlsContext | None = None) -> Dialled:
    """A connection to the first address of ``host`` that answers. ``timeout`` (s) includes all addresses and the handshake.

    Raises OSError, and TlsRefused for a handshake that would fail again.
    """
    deadline = time.monotonic() + timeout
    sock = _connected(host, port, deadline)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        if context is None:
            return _Tcp(sock)
        sock.settimeout(_left(deadline))
        try:
            return _Tls(context.wrap_socket(sock, server_hostname=host))
        except ssl.SSLError as error:
            if closed_early(error):  # another try may succeed
                raise ConnectionResetError(CLOSED_EARLY) from None
            raise refusal(error) from None
    except BaseException:
        sock.close()
        raise


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """A socket connected to the first address of ``host`` that answers. The addresses share the time equally."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError(f"{host} has no address")
    for index, (family, kind, proto, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(_left(deadline) / (len(addresses) - index))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def pause(seconds: float) -> None:
    """Wait."""
    if seconds > 0:
        time.sleep(seconds)


class NotAnswered(OSError):
    """Something listens there, and it does not answer in this protocol."""


def ask(host: str, port: int, frame: bytes, timeout: float, most: int = 1024 * 1024) -> bytes:
    """Send ``frame`` (its 4-byte length included) and return the answer without its length.

    ``timeout`` in s for each step. Raises OSError: refused, timed out, closed early, or an answer of more than ``most`` bytes.
    """
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(frame)
        size = int.from_bytes(_receive(connection, 4), "big")
        if size > most:
            raise NotAnswered(f"an answer of {size} bytes, which is not one of this protocol")
        return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise NotAnswered("the connection was closed before the whole answer had come")
        received += piece
    return bytes(received)
