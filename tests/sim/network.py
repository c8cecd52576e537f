"""The broker's ends of simulated connections: ``Network``, ``Listener`` and ``Socket`` for one life of the broker."""

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from broker.client.kafka import config, connection
from broker.runtime.disk import Buffer, FileRegion
from broker.runtime.net import WOULD_BLOCK, Exhausted
from tests.sim.fabric import ClientSocket, Fabric, NetworkFaults, Wire
from tests.sim.threads import SimClock, SimEntropy
from tests.sim.world import Process, World

__all__ = ["Fabric", "NetworkFaults", "SimDialled", "SimListener", "SimNetwork", "SimSocket", "dialling"]


class SimSocket:
    """The broker's end."""

    buffered = False
    held_bytes = 0

    def __init__(self, process: Process, wire: Wire) -> None:
        self._process = process
        self._wire = wire
        self._fd = process.world.next_descriptor()
        process.sockets[self._fd] = self

    def fileno(self) -> int:
        return self._fd

    def _check(self) -> None:
        self._process.check()
        if self._fd < 0:
            raise OSError(errno.EBADF, "closed")
        if self._wire.broken:
            raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    def recv_into(self, buffer: memoryview) -> int:
        self._check()
        assert len(buffer) > 0, "a read of nothing looks like the end"
        pipe = self._wire.up
        available = pipe.available
        if not available:
            return 0 if pipe.ended else WOULD_BLOCK
        size = min(available, len(buffer))
        fabric = self._wire.fabric
        if fabric.rng.random() < fabric.faults.short:
            size = fabric.rng.randrange(1, size + 1)
        buffer[:size] = pipe.take(size)
        self._process.world.note(f"  {self._wire.number} < {size}")
        return size

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        self._check()
        assert all(len(buffer) for buffer in buffers) and buffers, "an empty write"
        return self._send(b"".join(buffers))

    def send_file(self, region: FileRegion) -> int:
        self._check()
        room = self._wire.down.free
        if not room and not self._wire.client_closed:
            return WOULD_BLOCK
        file = self._process.opened[region.file.fileno()]
        data = file.peek(min(region.size, max(room, 1)), region.offset)
        return self._send(data) if data else 0

    def _send(self, data: bytes) -> int:
        wire, fabric = self._wire, self._wire.fabric
        if wire.client_closed:  # the other end answers with a reset
            wire.reset(fabric.rng.random() * fabric.faults.delay_most_s)
            return len(data)
        if fabric.faults.reset and fabric.rng.random() < fabric.faults.reset:
            fabric.world.note(f"  {wire.number} reset")
            wire.reset()
            raise ConnectionResetError(errno.ECONNRESET, "reset by peer")
        size = min(len(data), wire.down.free)
        if not size:
            return WOULD_BLOCK
        if fabric.rng.random() < fabric.faults.short:
            size = fabric.rng.randrange(1, size + 1)
        wire.down.write(data[:size])
        fabric.world.note(f"  {wire.number} > {size}")
        return size

    def at_eof(self) -> bool:
        self._check()
        return self._wire.up.ended

    def broken(self) -> bool:
        self._process.check()
        return self._wire.broken

    # -- for the poller ---------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        wire = self._wire
        up = wire.up
        if up._flying:
            up.settle()
        return (
            bool(up._readable) or (wire.broken_at is not None and wire.broken) or (up._ends_at is not None and up.ended)
        )

    @property
    def writable(self) -> bool:
        wire = self._wire
        return wire.broken or wire.down.free > 0 or wire.client_closed

    # -- the end ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._fd < 0:
            return
        self._process.check()
        self._forget()
        wire = self._wire
        wire.broker_closed = True
        if wire.up.available:  # TCP: unread data turns the close into a reset
            wire.reset(wire.fabric.rng.random() * wire.fabric.faults.delay_most_s)
        else:
            wire.down.end()
        wire.up.discard = True

    def reset(self) -> None:
        if self._fd >= 0:
            self._process.check()
            self._forget()
            self._wire.broker_closed = True
            self._wire.reset()

    def _forget(self) -> None:
        del self._process.sockets[self._fd]
        for poller in self._process.pollers:
            poller.closed_descriptor(self._fd)
        self._fd = -1


class SimListener:
    def __init__(self, process: Process, fabric: "Fabric", address: tuple[str, int], backlog: int) -> None:
        self._process = process
        self._fabric = fabric
        self.life = process.number
        self.address = address
        self._backlog = backlog
        self._fd = process.world.next_descriptor()
        process.sockets[self._fd] = self
        self.waiting: deque[tuple[Wire, tuple[str, int]]] = deque()

    def fileno(self) -> int:
        return self._fd

    @property
    def full(self) -> bool:
        return len(self.waiting) > self._backlog  # as Linux: one more than asked for

    @property
    def readable(self) -> bool:
        return bool(self.waiting) and self.waiting[0][0].established_at <= self._fabric.world.now

    writable = False

    def accept(self) -> tuple[SimSocket, tuple[str, int], tuple[str, int]] | None:
        self._process.check()
        faults, rng = self._fabric.faults, self._fabric.rng
        if faults.exhausted and rng.random() < faults.exhausted:
            raise Exhausted("no descriptors left")
        if not self.readable:
            return None
        wire, peer = self.waiting.popleft()
        if wire.broken or (wire.client_closed and rng.random() < 0.5):  # gone before it was looked at
            wire.broker_closed = True
            return None
        return SimSocket(self._process, wire), peer, self.address

    def close(self) -> None:
        if self._fd < 0:
            return
        self._process.check()
        del self._process.sockets[self._fd]
        for poller in self._process.pollers:
            poller.closed_descriptor(self._fd)
        self._fd = -1
        if self._fabric.listeners.get(self.address[1]) is self:
            del self._fabric.listeners[self.address[1]]
        for wire, _ in self.waiting:
            wire.broker_closed = True
            wire.reset()
        self.waiting.clear()


class SimNetwork:
    """``Network`` for one life of the broker."""

    def __init__(self, process: Process, fabric: Fabric) -> None:
        self._process = process
        self._fabric = fabric

    def listen(self, host: str, port: int, backlog: int, send_buffer: int, receive_buffer: int) -> SimListener:
        self._process.check()
        listeners = self._fabric.listeners
        if port == 0:
            port = next(free for free in range(40_000, 60_000) if free not in listeners)
        if port in listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = listeners[port] = SimListener(self._process, self._fabric, (host, port), backlog)
        return listener


class SimDialled:
    """``Dialled``: the end of a broker that has connected to another one."""

    def __init__(self, process: Process, socket: ClientSocket) -> None:
        self._process = process
        self._world = process.world
        self._socket = socket
        self._fd = process.world.next_descriptor()
        process.sockets[self._fd] = self

    def send(self, buffers: Sequence[Buffer], deadline: float) -> None:
        data = b"".join(buffers)
        while data:
            self._await(lambda: self._socket.room > 0, deadline)
            data = data[self._socket.send(data) :]

    def receive(self, view: memoryview, deadline: float) -> None:
        at = 0
        while at < len(view):
            self._await(lambda: self._socket.readable, deadline)
            received = self._socket.recv(len(view) - at)
            if not received:
                raise ConnectionResetError(errno.ECONNRESET, "reset by peer")
            view[at : at + len(received)] = received
            at += len(received)

    def wait(self, deadline: float) -> bool:
        return self._world.block(self._process, "another node", lambda: self._socket.readable, self._left_s(deadline))

    def _await(self, ready: Callable[[], bool], deadline: float) -> None:
        def ready_or_lost() -> bool:
            return self._socket.wire.broken or ready()

        if not self._world.block(self._process, "another node", ready_or_lost, self._left_s(deadline)):
            raise TimeoutError("the connection timed out")
        if self._socket.wire.broken:
            raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    def _left_s(self, deadline: float) -> float | None:
        self._process.check()
        return None if deadline == inf else max(0.0, deadline - self._world.now)

    def close(self) -> None:
        if self._fd >= 0:
            self._process.check()
            self._forget()
            self._socket.close()

    def hang_up(self, power: bool) -> None:
        """The process has died. After a power loss nobody says so to the other side."""
        self._forget()
        if not power:
            self._socket.close()

    def _forget(self) -> None:
        self._process.sockets.pop(self._fd, None)
        self._fd = -1


@contextmanager
def dialling(world: World, fabric: Fabric) -> Iterator[None]:
    """Brokers that connect to others do so in the simulated world."""

    def dial(host: str, port: int, timeout: float, context: Any = None) -> SimDialled:
        process = world.running
        assert process is not None
        world.yield_point(process)
        socket = fabric.connect(port, f"node of process {process.number}")
        if socket is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        socket.wire.between_nodes = True
        world.note(f"  dials {port} as {socket.wire.number}")
        return SimDialled(process, socket)

    def new_clock() -> SimClock:
        process = world.running
        assert process is not None
        return SimClock(process)

    changes: list[tuple[Any, str, Any]] = [
        (connection, "dial", dial),
        (connection, "SystemClock", new_clock),
        (connection, "SystemEntropy", SimEntropy(world)),
        (config, "SystemEntropy", SimEntropy(world)),
    ]
    undo = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)
