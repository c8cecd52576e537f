"""What the reactor's tests share: a processor that the test itself steps, a whole server, and a client that never blocks.

``Bench`` runs one processor over real loopback sockets on the test's own thread, with a clock that only moves when told: who runs
when is up to the test, so nothing in it depends on timing. ``serving`` starts the real thing, threads and all.
"""

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from broker.network import memory_pool, receiving
from broker.network.connection import ProcessorConnection
from broker.network.expiry import Unsent
from broker.network.leased_sending import AnswersLease, Gate
from broker.network.memory_pool import MemoryPool
from broker.network.new_connection import Attachment, NewConnection
from broker.network.processor import Processor, ProcessorSettings
from broker.network.quota import ConnectionQuotas
from broker.network.request_channel import Handler, RequestChannel
from broker.network.sending import ProcessorOutbox
from broker.network.service import Peer
from broker.network.socket_server import Binding, SocketServer, SocketServerSettings
from broker.runtime import system_runtime
from broker.runtime.net import SystemNetwork
from broker.runtime.poller import SelectorPoller
from broker.runtime.run_token import RunToken, TokenHolder
from broker.security.tls_listener import TlsListener
from tests.clocks import ManualClock
from tests.network.echo import EchoService, frame
from tests.open_files import open_files, wait_for_files
from tests.waiting import wait_for

# Generous: only a hang gets there.
DEADLINE_S = 60.0

Frames = list[tuple[bytes, bytes]]


def descriptors() -> int:
    """Open descriptors of this process, without those of garbage that an earlier test left."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def tiny_buffers() -> Iterator[None]:
    """Every size at which a frame changes its path, divided by 256: all paths with frames of a few KiB."""
    with (
        mock.patch.object(receiving, "_RECEIVE_BYTES", 1024),
        mock.patch.object(receiving, "_COPY_BYTES", 64),
        mock.patch.object(receiving, "SMALL_BYTES", 64),
        mock.patch.object(memory_pool, "SMALL_BYTES", 64),
        mock.patch.object(memory_pool, "_KEEP_FOR_BYTES", 256),
        mock.patch.object(memory_pool, "_GRAIN", 256),
        mock.patch.object(memory_pool, "_LEAST", 16),
    ):
        yield


class Client:
    """The other end of a connection. Never blocks: ``pump`` moves what can be moved."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent = bytearray()
        self.received = bytearray()
        self.reads = True  # False: leaves what comes in the kernel
        self.eof = False  # the broker has closed
        self.reset = False  # ... without courtesy
        self.established = True  # False before the end of a TLS handshake
        self.leaving = False  # closes its side once all is sent

    def send(self, data: bytes) -> "Client":
        self.unsent += data
        self.pump()
        return self

    def pump(self) -> None:
        if self.socket.fileno() < 0:
            return
        try:
            while self.unsent and not self.eof:
                del self.unsent[: self._send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()
        if self.leaving and not self.unsent and not self.eof:
            self.leaving = False
            with suppress(OSError):  # the broker has closed, and this end has not read that yet
                self.finish()
        while self.reads and not self.eof:
            try:
                got = self._receive()
            except BlockingIOError:
                break
            except OSError:
                self.eof = self.reset = True
                break
            if not got:
                self.eof = True
            self.received += got

    def _send(self, data: bytearray) -> int:
        return self.socket.send(data)

    def _receive(self) -> bytes:
        return self.socket.recv(1 << 20)

    def trickle(self, size: int) -> bytes:
        """Take at most ``size`` bytes out of the kernel, whatever ``reads`` says. Returns the data in them."""
        try:
            return self.socket.recv(size)
        except BlockingIOError:
            return b""

    @property
    def frames(self) -> Frames:
        """The whole frames that have come, as (command, payload)."""
        return list(cut(bytes(self.received)))

    def take(self, count: int) -> Frames:
        """Remove the first ``count`` frames from what has come."""
        frames = self.frames[:count]
        assert len(frames) == count
        del self.received[: sum(5 + len(payload) for _, payload in frames)]
        return frames

    def finish(self) -> None:
        """Close our side only."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def abort(self) -> None:
        """Close with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


def cut(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position + 5 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        if position + 4 + size > len(data):
            return
        yield data[position + 4 : position + 5], data[position + 5 : position + 4 + size]
        position += 4 + size


class Roles:
    """One real thread that plays several: the processor's only while it steps."""

    def __init__(self) -> None:
        self.playing = 0

    def get_ident(self) -> int:
        return self.playing

    def spawn(self, *_: Any) -> Any:
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        raise NotImplementedError


class Stage:
    """What several processors share, as they do in a server."""

    def __init__(
        self,
        *,
        memory: int = 1 << 28,
        unsent: int = 1 << 28,
        queue: int = 100,
        quotas: ConnectionQuotas | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.roles = Roles()
        self.memory = MemoryPool(memory)
        self.unsent = Unsent(unsent)
        self.channel = RequestChannel(queue)
        self.quotas = quotas or ConnectionQuotas(1 << 30, 1 << 30, {}, 0)
        self.outbox = ProcessorOutbox()
        self.handler = Handler(self.channel, self.outbox, self.clock)


class Bench:
    """A processor, a handler and clients, stepped by the test."""

    def __init__(
        self,
        service: Any = None,
        *,
        stage: Stage | None = None,
        memory: int = 1 << 28,
        queue: int = 100,
        high: int = 1 << 20,
        low: int = 1 << 18,
        idle: float = 600.0,
        frame_max: int = 100 << 20,
        send_buffer: int = -1,
        receive_buffer: int = -1,
        tls: TlsListener | None = None,
        attach: Callable[[], Attachment | None] = lambda: None,
        token: RunToken | None = None,
        client: type[Client] = Client,
        handshake_timeout: float = 10.0,
        gate: Gate | None = None,
    ) -> None:
        """``tls``: the listener's. Its clients are then made by ``client``, and ``connect`` waits for the handshake."""
        self.tls = tls
        self._client = client
        self.service = service or EchoService()
        self.stage = stage or Stage(memory=memory, queue=queue)
        self.clock, self.memory, self.channel = self.stage.clock, self.stage.memory, self.stage.channel
        self.quotas, self.outbox, self.roles = self.stage.quotas, self.stage.outbox, self.stage.roles
        self.frame_max = frame_max
        self.rooms = 0  # times the acceptor was told that there is room
        self._settings = ProcessorSettings(idle, high, low, handshake_timeout, gate=gate)
        self._attach = attach
        self._token = token
        self.processor = self._new_processor()
        self._ident = id(self)
        self._listener = SystemNetwork().listen("127.0.0.1", 0, 256, send_buffer, receive_buffer)
        self.clients: list[Client] = []

    def _new_processor(self) -> Processor:
        self.poller = SelectorPoller()
        return Processor(
            id(self),
            settings=self._settings,
            poller=self.poller,
            clock=self.clock,
            threads=self.roles,
            channel=self.channel,
            memory=self.memory,
            unsent=self.stage.unsent,
            outbox=self.outbox,
            quotas=self.quotas,
            on_room=self._room,
            token=None if self._token is None else TokenHolder(self._token),
            attachment=self._attach(),
        )

    def replace(self, *heirs: Processor) -> Processor:
        """Let the processor go and put a new one in its place. Returns the one that has gone."""
        old = self.processor
        old.leave(lambda: heirs)
        self.step()
        assert old.departure.over
        old.close()
        self.processor = self._new_processor()
        return old

    def _room(self) -> None:
        self.rooms += 1

    def connect(self, *, receive_buffer: int = 0) -> Client:
        client = self.dial(receive_buffer=receive_buffer)
        assert self.processor.offer(self.new_connection())
        self.step()
        while not client.established or len(self.processor.handshakes):
            self.step(timeout=0.001)
        return client

    def dial(self, *, receive_buffer: int = 0) -> Client:
        client = self._client(self._listener.address, receive_buffer=receive_buffer)
        self.clients.append(client)
        return client

    def new_connection(self) -> NewConnection:
        accepted = None
        while accepted is None:
            accepted = self._listener.accept()
        sock, (host, port), local = accepted
        assert self.quotas.open(host, "echo")
        return NewConnection(
            sock, Peer(host, port, "echo", local, self.quotas.suspensions), self.service, self.frame_max, self.tls
        )

    def connection_of(self, client: Client) -> ProcessorConnection:
        port = client.socket.getsockname()[1]
        return next(c for c in self.processor.connections if c.peer.port == port)

    def step(self, times: int = 1, timeout: float = 0.0) -> None:
        for _ in range(times):
            self.roles.playing = self._ident
            try:
                self.processor.step(timeout)
            finally:
                self.roles.playing = 0  # the test itself: another thread
            for client in self.clients:
                client.pump()

    def handle(self) -> bool:
        """Let the handler take one request; on "another thread"."""
        return self.stage.handler.step(0)

    def on_processor(self, work: Callable[[], None]) -> None:
        """Do something as if on the processor's own thread."""
        self.roles.playing = self._ident
        try:
            work()
        finally:
            self.roles.playing = 0

    def until(self, condition: Callable[[], Any], *, handling: bool = True, what: str = "") -> None:
        """Step until ``condition`` holds; with ``handling``, the handler works too."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.step(timeout=0.0)
            if condition():
                return
            assert time.monotonic() < deadline, what or "it never came"
            if not (handling and self.handle()):
                self.step(timeout=0.001)

    def settle(self, *, handling: bool = True) -> None:
        """Step until nothing happens any more."""
        quiet = 0
        while quiet < 5:
            before = self._marks()
            self.step(timeout=0.0005)
            if handling:
                while self.handle():
                    self.step()
            quiet = quiet + 1 if before == self._marks() else 0

    def _marks(self) -> tuple[Any, ...]:
        stats = self.processor.stats
        return (
            stats.requests,
            stats.bytes_in,
            stats.bytes_out,
            len(self.processor.connections),
            sum(len(c.received) for c in self.clients),
            sum(len(c.unsent) for c in self.clients),
            sum(c.eof for c in self.clients),
            len(self.channel),
        )

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.processor.close()
        self._listener.close()


class Served:
    """A running server and its clients."""

    def __init__(self, server: SocketServer, services: dict[str, Any], crashes: list[BaseException]) -> None:
        self.server = server
        self.services = services
        self.service = services["echo"]
        self.crashes = crashes
        self.clients: list[Client] = []

    def connect(self, name: str = "echo", *, receive_buffer: int = 0) -> Client:
        client = Client(self.server.address(name), receive_buffer=receive_buffer)
        self.clients.append(client)
        return client

    def until(self, condition: Callable[[], Any], what: str = "") -> None:
        def pumped() -> Any:
            for client in self.clients:
                client.pump()
            return condition()

        wait_for(pumped, what)

    def ask(self, client: Client, data: bytes, count: int = 1) -> Frames:
        """Send, and wait for so many frames."""
        client.send(data)
        self.until(lambda: len(client.frames) >= count or client.eof)
        return client.take(count)

    def serves(self, name: str = "echo") -> bool:
        """A new client is answered, inline and by a handler."""
        client = self.connect(name)
        answers = self.ask(client, frame(b"e", b"in") + frame(b"p", b"pool"), 2)
        client.close()
        self.clients.remove(client)
        return answers == [(b"e", b"in"), (b"p", b"pool")]

    @property
    def connections(self) -> int:
        return sum(len(processor.connections) for processor in self.server.processors)


def settings(**changes: Any) -> SocketServerSettings:
    values: dict[str, Any] = {
        "network_threads": 2,
        "io_threads": 2,
        "queued_max_requests": 100,
        "queued_max_request_bytes": 1 << 28,
        "backlog": 1024,
        "send_buffer": -1,
        "receive_buffer": -1,
        "idle_max_s": 600.0,
        "high_water_bytes": 1 << 20,
        "low_water_bytes": 1 << 18,
    }
    return SocketServerSettings(**{**values, **changes})


@contextmanager
def serving(
    service: Any = None,
    *,
    control: Any = None,
    quotas: ConnectionQuotas | None = None,
    frame_max: int = 100 << 20,
    lease: AnswersLease | None = None,
    **changes: Any,
) -> Iterator[Served]:
    """A server with an ``echo`` listener (and a ``control`` one, which does not suspend); nothing of it may be left behind."""
    threads_before, files_before = threading.active_count(), open_files()
    crashes: list[BaseException] = []
    services = {"echo": service or EchoService()}
    bindings = [Binding("echo", "echo", "127.0.0.1", 0, 0, frame_max)]
    if control is not None:
        services["control"] = control
        bindings.append(Binding("control", "control", "127.0.0.1", 0, 0, frame_max, control=True, suspends=False))
    server = SocketServer(
        system_runtime(),
        settings(**changes),
        quotas or ConnectionQuotas(1 << 30, 1 << 30, {}, 0),
        crashes.append,
        lease,
    )
    server.bind(bindings)
    server.start(services)
    served = Served(server, services, crashes)
    try:
        yield served
    finally:
        for each in services.values():
            each.gate.set()
        for client in served.clients:
            client.close()
        server.stop_accepting()
        server.stop()
    assert crashes == []
    assert server.quotas.total == 0
    wait_for(lambda: server.memory.in_use == 0, "request memory was not given back")
    # The last threads and descriptors go a moment after they were told to.
    wait_for(lambda: threading.active_count() <= threads_before, "threads are left")
    wait_for_files(files_before)
