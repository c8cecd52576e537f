"""The handling of the connection in clients with a single connection."""

import math
from typing import Any

from tests.sim.fabric import ClientSocket


class Connected:
    """The base of clients with one connection. Subclasses connect, and forget a connection's state in ``_gone``."""

    name: str
    world: Any
    socket: ClientSocket | None
    paused_until: float
    quiet: bool
    closed: bool
    quiet_since = math.inf

    def be_quiet(self) -> None:
        """Faults are over."""
        self.quiet = True
        self.quiet_since = self.world.now
        self.paused_until = 0.0

    def close(self) -> None:
        """For good."""
        self.disconnect()
        self.closed = True

    def disconnect(self, *, rudely: bool = False) -> None:
        """From our side."""
        if self.socket is not None:
            if rudely:
                self.socket.reset()
            else:
                self.socket.close()
            self._gone()

    def _gone(self) -> None:
        raise NotImplementedError
