"""One TCP connection, with TLS or without, to a broker or a Flink server: connects, receives and sends on the I/O thread.

Its handler interprets the messages. Output is collected during a step of the loop and sent in one system call at its end.

Tests: tests/client/shuffle/reading/test_input_gate.py, tests/client/shuffle/test_silent_broker.py,
tests/client/shuffle/test_security.py.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from broker.client.shuffle.errors import (
    ConnectionFailedError,
    LocalTransportError,
    RemoteTransportError,
    TransportError,
)
from broker.client.shuffle.io_loop import IoLoop, Timer
from broker.client.shuffle.names import Address
from broker.client.shuffle.security import Tls
from broker.runtime.client_tls import ClientTlsSocket, TlsRefused
from broker.runtime.disk import Buffer
from broker.runtime.net import WOULD_BLOCK, Socket
from broker.runtime.poller import READ, WRITE
from protocol.errors import ProtocolError
from protocol.shuffle.buffer_response import ClientDecoder, ServerMessage
from protocol.shuffle.ids import Generation

# Flink's taskmanager.network.netty.client.connectTimeoutSec is 120 s, as long as a kernel would try. The user of a
# script should learn of a failure earlier.
CONNECT_TIMEOUT_S = 20.0
# How long a broker may leave a request unanswered. It answers within ms, but its machine may be suspended for a while.
ANSWER_TIMEOUT_S = 15.0
# How much is read after a large payload: enough for the next message's head, so that its payload, if also large, is
# read straight into its own buffer.
_HEADS_BYTES = 16 * 1024
# Reads in a row from TLS's buffer before other connections get their turn.
_BUFFERED_READS = 4


class Handler(Protocol):
    """The owner of a connection. Every method is called on the I/O thread."""

    def connected(self) -> None: ...

    def received(self, messages: list[ServerMessage]) -> None: ...

    def drained(self) -> None:
        """The kernel has taken all output."""

    def closed(self, error: TransportError) -> None:
        """The connection has ended. Called once, and not after ``close`` without an error."""


class Connection:
    """Call ``open`` first, ``send`` at any time after it, and ``close`` at the end."""

    def __init__(
        self,
        loop: IoLoop,
        address: Address,
        generation: Generation,
        max_payload: int,
        handler: Handler,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        self.outgoing_bytes = 0
        self.is_connected = False
        self.is_closed = False
        self._loop = loop
        self._handler = handler
        self._decoder = ClientDecoder(generation, max_payload, rows=True)
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._socket: Socket | ClientTlsSocket | None = None
        self._shaking_hands: ClientTlsSocket | None = None  # the same socket, until its handshake is done
        self._had_large = False  # the last payload was large, and the next one may be
        self._outgoing: deque[Buffer] = deque()
        self._interest = 0
        self._flushing = False
        self._attempt = 0
        self._timer: Timer | None = None

    def open(self) -> None:
        """Begin to connect. A failure is reported by ``closed``, possibly before this returns."""
        self._loop.watched.add(self)
        self._timer = self._loop.at(self._loop.now() + self._connect_timeout, self._too_late)
        self._connect("no address answers")

    def _connect(self, failure: str) -> None:
        """Try the next address that the host name resolves to."""
        while True:
            try:
                sock = self._loop.runtime.network.connect(*self.address, self._attempt)
            except OSError as error:
                failure = error.strerror or str(error)
                self._attempt += 1
                if self._attempt > 3:  # the host name itself cannot be resolved
                    sock = None
                else:
                    continue
            if sock is None:
                self.close(ConnectionFailedError(f"no connection to {self.name}: {failure}", self.name))
                return
            self._attempt += 1
            self._socket = sock
            self._interest = READ | WRITE
            self._loop.poller.register(sock, self._interest, self)
            return

    def _too_late(self) -> None:
        if not self.is_connected:
            self.close(
                ConnectionFailedError(
                    f"no connection to {self.name}: no answer within {self._connect_timeout:g} s", self.name
                )
            )

    def ready(self, events: int) -> None:
        """The poller reports that the socket is readable or writable."""
        if self._socket is None:
            return
        try:
            if not self.is_connected and not self._finish_connect():
                return
            if events & READ:
                self._receive()
                self._receive_buffered()
            if events & WRITE and not self.is_closed:
                try:
                    self._send()
                except OSError:
                    # The broker has closed the connection, perhaps after a message with the reason: report that message.
                    self._receive()
                    if not self.is_closed:
                        raise
        except TlsRefused as error:
            self.close(ConnectionFailedError(f"no TLS connection to {self.name}: {error}", self.name))
        except OSError as error:
            self.close(
                RemoteTransportError(f"the connection to {self.name} broke: {error.strerror or error}", self.name)
            )
        except ProtocolError as error:
            failed = LocalTransportError(f"the data from {self.name} cannot be read: {error}", self.name)
            failed.__cause__ = error
            self.close(failed)

    def _finish_connect(self) -> bool:
        """Whether the connection is made."""
        if self._shaking_hands is not None:
            return self._shake_hands(self._shaking_hands)
        assert self._socket is not None
        try:
            # Raises the error of a failed connect. There is no data yet, because servers of this protocol do not speak first.
            size = self._socket.recv_into(self._loop.receive_buffer)
        except OSError as error:
            self._forget_socket()
            self._connect(error.strerror or str(error))
            return False
        if self._tls is not None and size == WOULD_BLOCK:
            return self._begin_tls(self._tls)
        return self._is_made(size)

    def _begin_tls(self, tls: Tls) -> bool:
        assert self._socket is not None
        assert not isinstance(self._socket, ClientTlsSocket)
        plain, self._socket = self._socket, None
        self._loop.poller.unregister(plain)
        try:
            sock = ClientTlsSocket(plain, tls.context, self.address[0])
        except OSError as error:
            plain.close()
            self.close(ConnectionFailedError(f"no TLS connection to {self.name}: {error.strerror or error}", self.name))
            return False
        self._socket = self._shaking_hands = sock
        self._interest = READ | WRITE
        self._loop.poller.register(sock, self._interest, self)
        return self._shake_hands(sock)

    def _shake_hands(self, sock: ClientTlsSocket) -> bool:
        try:
            wanted = sock.handshake()
        except (TlsRefused, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "the other side has closed the connection"
            self.close(ConnectionFailedError(f"no TLS connection to {self.name}: {reason}", self.name))
            return False
        self._wait_for(wanted or READ | WRITE)
        if wanted:
            return False
        self._shaking_hands = None
        return self._is_made(WOULD_BLOCK)

    def _is_made(self, size: int) -> bool:
        """``size``: the bytes received meanwhile."""
        self.is_connected = True
        if self._timer is not None:
            self._timer.cancel()
        self._handler.connected()
        if size != WOULD_BLOCK and not self.is_closed:
            self._took(size)
        return not self.is_closed

    def _receive(self) -> None:
        assert self._socket is not None
        space = self._decoder.space
        if space is None:
            buffer = self._loop.receive_buffer
            size = self._socket.recv_into(buffer[:_HEADS_BYTES] if self._had_large else buffer)
            self._had_large = False
            if size != WOULD_BLOCK:
                self._took(size)
            return
        size = self._socket.recv_into(space)
        if size == 0:
            self._ended()
        elif size != WOULD_BLOCK:
            messages = self._decoder.filled(size)
            if messages:
                self._had_large = True
                self._handler.received(messages)

    def _receive_buffered(self) -> None:
        """Receive the rest of a TLS record, which the poller does not know of."""
        for _ in range(_BUFFERED_READS):
            if not (isinstance(self._socket, ClientTlsSocket) and self._socket.buffered):
                return
            self._receive()
        self._loop.call(self._receive_rest)

    def _receive_rest(self) -> None:
        if isinstance(self._socket, ClientTlsSocket) and self._socket.buffered:
            self.ready(READ)

    def _took(self, size: int) -> None:
        """``size`` bytes are in the loop's receive buffer."""
        if size == 0:
            self._ended()
            return
        messages = self._decoder.feed(self._loop.receive_buffer[:size])
        if messages:
            self._handler.received(messages)

    def _ended(self) -> None:
        cut_off = ", in the middle of a message" if self._decoder.pending else ""
        self.close(RemoteTransportError(f"the connection was closed by {self.name}{cut_off}", self.name))

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue the buffers; they are sent at the end of the loop's step."""
        if self.is_closed:
            return
        self._outgoing.extend(buffers)
        self.outgoing_bytes += sum(map(len, buffers))
        if not self._flushing:
            self._flushing = True
            self._loop.flush_later(self)

    def flush(self) -> None:
        """Send the collected output. The loop calls this at the end of the step."""
        self._flushing = False
        if self.is_connected and not self.is_closed and self._interest == READ:
            self.ready(WRITE)

    def _send(self) -> None:
        assert self._socket is not None
        outgoing = self._outgoing
        had = bool(outgoing)
        while outgoing:
            batch = list(outgoing) if len(outgoing) <= 64 else [outgoing[index] for index in range(64)]
            sent = self._socket.send(batch, False)
            if sent == WOULD_BLOCK:
                break
            self.outgoing_bytes -= sent
            for buffer in batch:
                size = len(buffer)
                if sent < size:
                    if sent:
                        outgoing[0] = memoryview(buffer)[sent:]
                    break
                sent -= size
                outgoing.popleft()
        self._wait_for(READ | WRITE if outgoing else READ)
        if had and not outgoing:
            self._handler.drained()

    def _wait_for(self, interest: int) -> None:
        assert self._socket is not None
        if interest != self._interest:
            self._interest = interest
            self._loop.poller.modify(self._socket, interest, self)

    def close(self, error: TransportError | None = None) -> None:
        """Close the socket. Output that the kernel has not taken is lost."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._forget_socket()
        self._loop.watched.discard(self)
        self._outgoing.clear()
        self.outgoing_bytes = 0
        if error is not None:
            self._handler.closed(error)

    def abandon(self, error: Exception) -> None:
        if not isinstance(error, TransportError):
            failed = LocalTransportError(f"this side of the connection to {self.name} failed: {error!r}", self.name)
            failed.__cause__ = error
            error = failed
        self.close(error)

    def forget(self) -> None:
        self.is_closed = True
        sock, self._socket = self._socket, None
        if isinstance(sock, ClientTlsSocket):
            sock.forget()
        elif sock is not None:
            sock.close()

    def _forget_socket(self) -> None:
        if self._socket is not None:
            self._loop.poller.unregister(self._socket)
            self._socket.close()
            self._socket = None
