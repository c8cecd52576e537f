"""A simulated client of a protocol that streams: one connection, frames out, messages in."""

import math
from typing import TYPE_CHECKING, Any

from tests.sim.clients.connected import Connected
from tests.sim.fabric import ClientSocket

if TYPE_CHECKING:
    from tests.sim.world import World

# The time (s) in which a running broker must serve an unhindered client once faults are over.
PATIENCE_S = 20.0


class StreamClient(Connected):
    """The base of writers and readers. Subclasses choose the messages to send (``act``) and check the
    received ones (``received``)."""

    port = 0

    def __init__(self, name: str, world: "World", fabric: Any) -> None:
        self.name = name
        self.world = world
        self.fabric = fabric
        self.rng = world.rng(name)
        self.socket: ClientSocket | None = None
        self.paused_until = 0.0
        self.quiet = False
        self.closed = False
        self.lost_at = 0.0  # the last connection; the broker has not noticed before
        self.read_most = self.rng.choice((100, 2_000, 1 << 20, 1 << 20))  # bytes at a time
        self.read_gap_s = self.rng.choice((0.0, 0.0, 0.01, 0.1))  # a slow reader: the broker's end fills up
        self._decoder: Any = None
        self._outbox = bytearray()
        self._connect_at = 0.0
        self._read_at = 0.0
        self._act_at = 0.0

    # -- for subclasses ---------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Called when ``idle`` is over: ``send`` something, or be ``idle`` again."""
        raise NotImplementedError

    def received(self, message: Any) -> None:
        raise NotImplementedError

    def new_decoder(self) -> Any:
        """For a new connection; its ``feed`` makes messages of received bytes."""
        raise NotImplementedError

    def connected(self) -> None:
        """A new connection, of which nothing has been sent yet."""

    def lost(self) -> None:
        """The connection is gone."""

    @property
    def wanted(self) -> bool:
        """It needs a connection."""
        return not self.done

    @property
    def done(self) -> bool:
        return True

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self._outbox += frame

    def idle(self, seconds: float) -> None:
        self._act_at = self.world.now + seconds

    @property
    def life(self) -> int:
        assert self.socket is not None
        return self.socket.wire.life

    # -- Actor --------------------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        now = self.world.now
        if self.closed or now < self.paused_until:
            return False
        socket = self.socket
        if socket is None:
            return now >= self._connect_at and self.wanted
        return (
            (now >= self._read_at and socket.readable)
            or (bool(self._outbox) and socket.room > 0)
            or now >= self._act_at
        )

    def deadline(self) -> float | None:
        if self.closed:
            return None
        now = self.world.now
        if now < self.paused_until:
            return self.paused_until
        if self.socket is None:
            return self._connect_at if self.wanted else None
        moments = [self._act_at]
        if self.socket.readable:
            moments.append(self._read_at)
        moment = min(moments)
        return None if moment == math.inf else moment

    def step(self) -> None:
        if self.socket is None:
            self._connect()
            return
        now = self.world.now
        if now >= self._read_at and self.socket.readable:
            self._receive()
            if self.socket is None:
                return
        if now >= self._act_at:
            self._act_at = math.inf
            self.act()
        if self._outbox and self.socket is not None:
            del self._outbox[: self.socket.send(self._outbox)]

    # -- the connection -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.socket = self.fabric.connect(self.port, host=f"10.0.1.{1 + self.rng.randrange(3)}")
        if self.socket is None:
            self._connect_at = self.world.now + 0.05 + self.rng.random() * 0.5
            return
        self.world.note(f"{self.name} connects as {self.socket.wire.number}")
        self._decoder = self.new_decoder()
        self._outbox.clear()
        self._act_at = self._read_at = 0.0
        self.connected()

    def _gone(self) -> None:
        assert self.socket is not None
        broken_at = self.socket.wire.broken_at
        self.lost_at = self.world.now if broken_at is None else min(broken_at, self.world.now)
        self.socket = None
        self._connect_at = self.world.now + self.rng.random() * 0.2
        self.lost()

    def _receive(self) -> None:
        socket = self.socket
        assert socket is not None
        if self.read_gap_s and not self.quiet:
            self._read_at = self.world.now + self.rng.random() * self.read_gap_s
        data = socket.recv(self.read_most)
        for message in self._decoder.feed(data):
            self.received(message)
            if self.socket is not socket:
                return
        if socket.lost:
            self.world.note(f"{self.name} loses {socket.wire.number}")
            socket.close()
            self._gone()
