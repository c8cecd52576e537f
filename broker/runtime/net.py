"""Sockets: non-blocking, TCP. The only module that imports ``socket``."""

import errno
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.runtime.disk import Buffer, FileRegion

WOULD_BLOCK = -1

# Errors of accept(2) for a machine without free descriptors or memory: the acceptor must pause instead of spinning.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Linux caps one writev at 1024 buffers; fewer keep a turn short.
_IOV_MAX = 64
_MSG_MORE = getattr(socket, "MSG_MORE", 0)
# A machine that loses power closes no connections, so only probes detect it. The system's default is to start them after two
# hours; here a silent connection is dropped after a minute. A stopped process is not affected: its kernel answers.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def keep_alive(sock: socket.socket) -> None:
    """Have the system detect that the peer's machine has disappeared."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:  # not every system has these options
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def address_in_use(error: OSError) -> bool:
    """Whether a bind failed because the address is in use, so that another port may work."""
    return error.errno == errno.EADDRINUSE


class Exhausted(Exception):
    """No descriptor or memory is left for another connection."""


class Socket(Protocol):
    """One connection. Its errors are raised as ``OSError``; ``WOULD_BLOCK`` (-1) is returned where a call would block."""

    # Something to read is in memory already, so that the poller may not report it. Always False without TLS.
    @property
    def buffered(self) -> bool: ...

    # Bytes that were taken to be sent, and that the kernel has not taken yet. Always 0 without TLS.
    @property
    def held_bytes(self) -> int: ...

    def fileno(self) -> int: ...

    def recv_into(self, buffer: memoryview) -> int:
        """Bytes received; 0 when the peer has closed its side; -1 when there are none yet."""

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        """Bytes of ``buffers`` (one after another) taken by the kernel; -1 for none: then the same bytes must come next, in
        the same call. ``more``: a file follows at once."""

    def send_file(self, region: FileRegion) -> int:
        """Bytes of the region taken by the kernel; -1 for none; 0 if the file ends before it."""

    def at_eof(self) -> bool:
        """True if the peer has closed its sending side and nothing is left to read. Consumes nothing. ``OSError`` as a read."""

    def broken(self) -> bool:
        """True if the connection has failed (a reset), whether or not something is left to read."""

    def close(self) -> None: ...

    def reset(self) -> None:
        """Close at once with a reset (RST), without sending the bytes that are left."""


class Listener(Protocol):
    address: tuple[str, int]

    def fileno(self) -> int: ...

    def accept(self) -> tuple[Socket, tuple[str, int], tuple[str, int]] | None:
        """A connection, its peer's address and ours; None if there is none. Raises Exhausted."""

    def close(self) -> None: ...


class Network(Protocol):
    def listen(self, host: str, port: int, backlog: int, send_buffer: int, receive_buffer: int) -> Listener:
        """Bind and listen; port 0 picks a free one. ``OSError`` (EADDRINUSE) as bind(2). Buffer sizes: -1 = the system's."""

    def connect(self, host: str, port: int, attempt: int = 0) -> Socket | None:
        """A socket that is being connected: it turns writable when it is, and its first ``recv_into`` tells the result.

        A name may have several addresses: ``attempt`` is the number of the address; None after the last. Looking up
        a name blocks, an address does not. ``OSError`` where it fails at once.
        """


class SystemSocket:
    """A TCP socket of the operating system."""

    __slots__ = ("_recv_into", "_send", "_sendmsg", "_socket")

    buffered = False
    held_bytes = 0

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._recv_into = sock.recv_into
        self._send = sock.send
        self._sendmsg = sock.sendmsg

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        try:
            return self._recv_into(buffer)
        except BlockingIOError:
            return WOULD_BLOCK

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        try:
            if len(buffers) == 1 and not more:
                return self._send(buffers[0])
            return self._sendmsg(buffers[:_IOV_MAX], (), _MSG_MORE if more else 0)
        except BlockingIOError:
            return WOULD_BLOCK

    def send_file(self, region: FileRegion) -> int:
        try:
            return os.sendfile(self._socket.fileno(), region.file.fileno(), region.offset, region.size)
        except BlockingIOError:
            return WOULD_BLOCK

    def at_eof(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def broken(self) -> bool:
        try:
            return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()

    def detach(self) -> socket.socket:
        """Hand over the socket to an object that goes on with it."""
        return self._socket

    def reset(self) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        except OSError:
            pass
        self._socket.close()


class SystemListener:
    """A listening TCP socket."""

    def __init__(self, sock: socket.socket, send_buffer: int) -> None:
        self._socket = sock
        self._send_buffer = send_buffer
        name = sock.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[Socket, tuple[str, int], tuple[str, int]] | None:
        try:
            sock, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise Exhausted(str(error)) from None
            return None  # accept(2) also reports network errors of the new connection, which concern nothing else
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._send_buffer > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
            local = sock.getsockname()
        except OSError:  # reset before we could look at it
            sock.close()
            return None
        return SystemSocket(sock), (address[0], address[1]), (local[0], local[1])

    def close(self) -> None:
        self._socket.close()


def reserve_port(host: str, port: int) -> Callable[[], None] | None:
    """Keep the kernel from giving this port to others until the returned function is called. Clients are refused meanwhile, as if
    nobody listened, and another listener may take it. None if the port is taken, or this system cannot do that."""
    if sys.platform != "linux":
        return None  # elsewhere, SO_REUSEADDR does not let a listener share a port that is only bound
    family, kind, proto, _, address = _passive(host, port)
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that were closed wait on it
        sock.bind(address)
    except OSError:
        sock.close()
        return None
    return sock.close


def _passive(host: str, port: int) -> tuple[Any, ...]:
    return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]


class SystemNetwork:
    """TCP of the operating system."""

    def listen(self, host: str, port: int, backlog: int, send_buffer: int, receive_buffer: int) -> Listener:
        family, kind, proto, _, address = _passive(host, port)
        sock = socket.socket(family, kind, proto)
        try:
            if sys.platform != "win32":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if receive_buffer > 0:  # before listen: the window scale is fixed at the handshake
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(backlog)
        except OSError:
            sock.close()
            raise
        return SystemListener(sock, send_buffer)

    def connect(self, host: str, port: int, attempt: int = 0) -> Socket | None:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if attempt >= len(addresses):
            return None
        family, kind, proto, _, address = addresses[attempt]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
            error = sock.connect_ex(address)
            if error not in (0, errno.EINPROGRESS):
                raise OSError(error, os.strerror(error))
        except OSError:
            sock.close()
            raise
        return SystemSocket(sock)
