"""Readiness in the simulated world: level-triggered, in any order, with a bell."""

from typing import Any, NamedTuple

from broker.runtime.poller import READ, WRITE
from tests.sim.network import Fabric
from tests.sim.world import Process


class Key(NamedTuple):
    fileobj: Any
    fd: int
    events: int
    data: Any


class SimPoller:
    """Errors are selectors2's: ValueError for an object that cannot be registered, KeyError for a registered or unknown one."""

    def __init__(self, process: Process, fabric: Fabric) -> None:
        self._process = process
        self._fabric = fabric
        self._world = process.world
        self._keys: dict[int, Key] = {}
        self._armed = False
        self._woken = False
        self._bell = False
        self._closed = False
        process.pollers.append(self)

    def register(self, source: Any, events: int, data: Any) -> None:
        fd = source.fileno()
        if fd < 0 or not events or events & ~(READ | WRITE):
            raise ValueError(f"descriptor {fd}, events {events}")
        if fd in self._keys:
            raise KeyError(f"{fd} is registered already")
        self._keys[fd] = Key(source, fd, events, data)

    def modify(self, source: Any, events: int, data: Any) -> None:
        assert events, "no interest is spelled unregister"
        fd = self._find(source)
        self._keys[fd] = Key(source, fd, events, data)

    def unregister(self, source: Any) -> None:
        del self._keys[self._find(source)]

    def _find(self, source: Any) -> int:
        fd = source.fileno()
        if fd < 0:  # closed before it was unregistered: selectors look it up by identity then
            fd = next((key.fd for key in self._keys.values() if key.fileobj is source), fd)
        if fd not in self._keys:
            raise KeyError(f"{source!r} is not registered")
        return fd

    def closed_descriptor(self, fd: int) -> None:
        """The kernel forgets a closed descriptor, the selector does not: its number may come again."""
        assert fd not in self._keys, f"descriptor {fd} was closed while it was registered"

    def arm(self) -> None:
        self._armed = True
        self._world.yield_point(self._process)

    def poll(self, timeout: float | None) -> list[tuple[Key, int]]:
        self._world.yield_point(self._process)
        ready = self._ready()
        if not ready and not self._bell and not self._woken:
            self._world.block(self._process, "sockets", self._something, timeout)
            ready = self._ready()
        heard = self._bell
        self._world.yield_point(self._process)
        self._armed = False
        self._woken = False
        if heard:
            self._bell = False
        rng = self._fabric.rng
        if self._fabric.faults.spurious and self._keys and rng.random() < self._fabric.faults.spurious:
            key = rng.choice(list(self._keys.values()))
            if all(key.fd != other.fd for other, _ in ready):
                ready.append((key, key.events))
        if len(ready) > 1:
            rng.shuffle(ready)
        return ready

    def _ready(self) -> list[tuple[Key, int]]:
        ready = []
        for key in self._keys.values():
            source = self._source(key)
            events = (READ if key.events & READ and source.readable else 0) | (
                WRITE if key.events & WRITE and source.writable else 0
            )
            if events:
                ready.append((key, events))
        return ready

    def _source(self, key: Key) -> Any:
        return self._process.alarms.get(key.fd, key.fileobj)

    def _something(self) -> bool:
        if self._bell or self._woken:
            return True
        for key in self._keys.values():
            source = self._source(key)
            if (key.events & READ and source.readable) or (key.events & WRITE and source.writable):
                return True
        return False

    @property
    def rung(self) -> bool:
        """The next wait ends at once."""
        return self._bell or self._woken

    def wakeup(self) -> None:
        if self._process.alive:
            self._world.yield_point(self._process)
        self._woken = True
        if self._armed:
            self._armed = False
            if not self._closed:
                self._bell = True

    def close(self) -> None:
        self._closed = True
        self._keys.clear()
        if self in self._process.pollers:
            self._process.pollers.remove(self)

    def forked(self) -> None:
        raise AssertionError("nobody forks here")
