"""``Clock``, ``Entropy`` and ``Threads`` of the simulated world."""

import uuid
from collections.abc import Callable
from typing import Any

from tests.sim.world import Process, Thread, World


class SimClock:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def monotonic(self) -> float:
        self._world.yield_point(self._process)
        return self._world.now

    def time_ms(self) -> int:
        """Follows ``monotonic`` until a fault moves ``wall_offset_s``, in either direction."""
        return int((self._world.now + self._world.wall_offset_s) * 1000)


class SimEntropy:
    def __init__(self, world: World) -> None:
        self._random = world.rng("entropy")

    def bytes(self, n: int) -> bytes:
        return self._random.randbytes(n)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._random.randbytes(16), version=4)


class SimThreads:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self.get_ident = process.world.ident

    def spawn(self, name: str, body: Any, on_crash: Callable[[BaseException], None]) -> Thread:
        self._process.check()
        return Thread(self._process, name, body, on_crash)

    def pause(self, seconds: float) -> None:
        self._world.block(self._process, "time", lambda: False, seconds)
