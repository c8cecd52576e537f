"""TCP of the simulated world: streams that arrive late and in pieces, fill up, break, and end on one side first.

A connection is two pipes. What is written into one is cut into pieces that arrive in order, each after a delay of its own; a
pipe holds no more than its capacity, and then the writer's socket is not writable. The broker's ends are in ``network.py``;
``Fabric`` and the clients' ends, here, outlive the broker.
"""

from collections import deque
from typing import Protocol

import attrs

from broker.runtime.disk import Buffer
from tests.sim.world import Process, World


@attrs.define
class NetworkFaults:
    """Probabilities per opportunity; everything 0 is a network without faults, which still delays and cuts."""

    short: float = 0.5  # a read or write takes less than it could
    delay_most_s: float = 0.001
    stall: float = 0.0  # a piece takes much longer
    stall_most_s: float = 0.0
    reset: float = 0.0  # the connection breaks, per write
    spurious: float = 0.0  # a socket is called ready and is not
    exhausted: float = 0.0  # accept finds no descriptor


class Pipe:
    """One direction of a connection."""

    def __init__(self, fabric: "Fabric", capacity: int) -> None:
        self._fabric = fabric
        self.capacity = capacity
        self._flying: deque[tuple[float, bytes]] = deque()
        self._flying_bytes = 0
        self._readable = bytearray()
        self._last_at = 0.0
        self._ends_at: float | None = None
        self.discard = False  # nobody reads any more
        self.lag_s = 0.0  # what is written from now on takes so much longer

    @property
    def free(self) -> int:
        return max(0, self.capacity - self._flying_bytes - len(self._readable))

    def write(self, data: bytes) -> None:
        if self.discard:
            return
        faults, rng, now = self._fabric.faults, self._fabric.rng, self._fabric.world.now
        while data:
            cut = rng.randrange(1, len(data) + 1) if rng.random() < faults.short else len(data)
            self._flying.append((self._next_arrival(now), data[:cut]))
            self._flying_bytes += cut
            data = data[cut:]

    def _next_arrival(self, now: float) -> float:
        faults, rng = self._fabric.faults, self._fabric.rng
        delay = rng.random() * faults.delay_most_s
        if faults.stall and rng.random() < faults.stall:
            delay += rng.random() * faults.stall_most_s
        delay += self.lag_s
        self._last_at = max(self._last_at, now + delay)
        return self._last_at

    def end(self) -> None:
        """The writer has closed its side: the end comes after the data."""
        if self._ends_at is None:
            self._ends_at = self._next_arrival(self._fabric.world.now)

    def settle(self) -> None:
        now = self._fabric.world.now
        while self._flying and self._flying[0][0] <= now:
            piece = self._flying.popleft()[1]
            self._flying_bytes -= len(piece)
            self._readable += piece

    @property
    def available(self) -> int:
        if self._flying:
            self.settle()
        return len(self._readable)

    @property
    def ended(self) -> bool:
        """The reader finds the end."""
        return (
            self._ends_at is not None
            and self._ends_at <= self._fabric.world.now
            and not self.available
            and not self._flying
        )

    def take(self, size: int) -> bytes:
        data = bytes(self._readable[:size])
        del self._readable[:size]
        return data

    def drop_flying(self) -> None:
        self._flying.clear()
        self._flying_bytes = 0

    @property
    def busy(self) -> bool:
        return bool(self._flying) or self._ends_at is not None

    def next_arrival(self) -> float | None:
        if self._flying:
            return self._flying[0][0]
        if self._ends_at is not None and self._ends_at > self._fabric.world.now:
            return self._ends_at
        return None


class Wire:
    """One connection: both pipes and whether it is broken."""

    def __init__(self, fabric: "Fabric", number: int, life: int, up: int, down: int) -> None:
        self.fabric = fabric
        self.life = life  # the broker's, at the other end
        self.number = number
        self.up = Pipe(fabric, up)  # client to broker
        self.down = Pipe(fabric, down)
        self.established_at = fabric.world.now + fabric.rng.random() * fabric.faults.delay_most_s
        self.broken_at: float | None = None
        self.between_nodes = False
        self.dead = False  # the broker's side does not exist any more and says nothing
        self.client_closed = False
        self.broker_closed = False

    @property
    def broken(self) -> bool:
        return self.broken_at is not None and self.fabric.world.now >= self.broken_at

    def break_after(self, seconds: float) -> None:
        at = self.fabric.world.now + seconds
        if self.broken_at is None or at < self.broken_at:
            self.broken_at = at

    def reset(self, after: float = 0.0) -> None:
        """Bytes on their way are lost; both ends find out (after a while)."""
        self.break_after(after)
        self.up.drop_flying()
        self.down.drop_flying()

    def next_arrival(self) -> float | None:
        now = self.fabric.world.now
        if not (self.up.busy or self.down.busy) and self.broken_at is None and self.established_at <= now:
            return None
        moments = [at for at in (self.up.next_arrival(), self.down.next_arrival(), self.broken_at) if at is not None]
        if self.established_at > now:
            moments.append(self.established_at)
        moments = [at for at in moments if at > now]
        return min(moments) if moments else None

    @property
    def over(self) -> bool:
        return self.client_closed and self.broker_closed


class Listening(Protocol):
    """A port that somebody listens on."""

    life: int
    address: tuple[str, int]
    waiting: deque[tuple[Wire, tuple[str, int]]]

    @property
    def full(self) -> bool: ...


class ClientSocket:
    """A client's end."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._shut = False

    @property
    def lost(self) -> bool:
        """Broken, or ended by the broker with nothing left to read."""
        return self.wire.broken or (self.wire.down.ended and not self.wire.client_closed)

    @property
    def readable(self) -> bool:
        wire = self.wire
        down = wire.down
        if down._flying:
            down.settle()
        return (
            bool(down._readable)
            or (wire.broken_at is not None and wire.broken)
            or (down._ends_at is not None and self.lost)
        )

    @property
    def room(self) -> int:
        return self.wire.up.free

    def send(self, data: Buffer) -> int:
        """Bytes taken. Into a broken connection everything goes, as TCP has it."""
        wire = self.wire
        assert not wire.client_closed and not self._shut
        if wire.broken or wire.broker_closed:
            if not wire.dead or wire.fabric.world.now > wire.established_at + 60.0:
                wire.reset(wire.fabric.rng.random() * wire.fabric.faults.delay_most_s)
            return len(data)
        size = min(len(data), wire.up.free)
        if size:
            wire.up.write(bytes(data[:size]))
        return size

    def recv(self, most: int = 1 << 62) -> bytes:
        """What is there, at most so many bytes."""
        available = min(most, self.wire.down.available)
        return self.wire.down.take(available) if available else b""

    def shut_down_writing(self) -> None:
        """Half close."""
        if not self._shut:
            self._shut = True
            self.wire.up.end()

    def close(self) -> None:
        wire = self.wire
        if wire.client_closed:
            return
        wire.client_closed = True
        if wire.down.available:
            wire.reset(wire.fabric.rng.random() * wire.fabric.faults.delay_most_s)
        else:
            wire.up.end()
        wire.down.discard = True
        wire.fabric.forget_over()

    def reset(self) -> None:
        self.wire.client_closed = True
        self.wire.reset(self.wire.fabric.rng.random() * self.wire.fabric.faults.delay_most_s)
        self.wire.fabric.forget_over()


class Fabric:
    """What outlives the broker: ports, cables, clients."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng("network")
        self.faults = NetworkFaults()
        self.listeners: dict[int, Listening] = {}
        self.wires: list[Wire] = []
        self.capacity_least = 512
        self.capacity_most = 64 * 1024
        self._number = 0
        world.arrivals = self.next_arrival

    def connect(self, port: int, host: str = "10.0.0.1") -> ClientSocket | None:
        """A connection that is being established; None if it is refused."""
        listener = self.listeners.get(port)
        if listener is None or listener.full:
            return None
        self._number += 1
        least, most = self.capacity_least, self.capacity_most
        wire = Wire(self, self._number, listener.life, self.rng.randint(least, most), self.rng.randint(least, most))
        listener.waiting.append((wire, (host, 50_000 + self._number)))
        self.wires.append(wire)
        return ClientSocket(wire)

    def forget_over(self) -> None:
        self.wires = [wire for wire in self.wires if not wire.over]

    def next_arrival(self) -> float | None:
        moments = [at for at in (wire.next_arrival() for wire in self.wires) if at is not None]
        return min(moments) if moments else None

    def replace(self, process: Process) -> None:
        """Who connects reaches another machine from now on, where this process was. Its connections stay."""
        for held in process.sockets.values():
            if hasattr(held, "waiting"):
                self.listeners.pop(held.address[1], None)
                for wire, _ in held.waiting:
                    wire.reset()

    def process_died(self, process: Process, *, power: bool) -> None:
        """kill -9: the kernel closes its sockets. Power loss: nobody says anything to the clients, until they send."""
        for fd, held in list(process.sockets.items()):
            if hasattr(held, "waiting"):
                if self.listeners.get(held.address[1]) is held:
                    del self.listeners[held.address[1]]
                for wire, _ in held.waiting:
                    wire.broker_closed = True
                    wire.reset()
            elif hasattr(held, "hang_up"):
                held.hang_up(power)
            else:
                wire = held._wire
                wire.broker_closed = True
                wire.up.discard = True
                if power:
                    wire.dead = True
                    wire.reset(self.rng.random() * 2.0)
                elif self.rng.random() < 0.5:
                    wire.reset()
                else:
                    wire.down.end()
            process.sockets.pop(fd, None)
        self.forget_over()
