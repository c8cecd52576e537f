"""Locks, queues and events of the simulated world, and how they get into the broker.

The broker takes them by name from ``broker.runtime.threads``. For the time of a simulation, every module of the broker that
has one of those names gets the simulated thing instead; so do locks that a module or an attrs class made at import.
"""

import importlib
import pkgutil
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import attrs

import broker.http
import broker.kafka
import broker.network
import broker.pulsar
import broker.server
import broker.shuffle
import broker.storage
import broker.storage.journal.shipped_disk
from broker.runtime import threads as real
from broker.runtime.poller import Alarm
from tests.sim.world import Process, Thread, Violation, World

_REAL_LOCK_TYPE = type(threading.Lock())


def _site(depth: int = 2) -> str:
    frame = sys._getframe(depth)
    while "attrs generated" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_lineno}"


class SimLock:
    """``Lock``. Threads that wait for each other in a circle are found the moment the circle closes."""

    reentrant = False

    def __init__(self, world: World, site: str | None = None) -> None:
        self._world = world
        self._process: Process | None = world.running
        self._owner: Thread | None = None
        self._count = 0
        self.site = site or _site()
        self.number = world.next_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        process, thread, running = self._process, world.current, world.running
        if process is not running and (process is None or running is not None):
            process = self._process = running  # made at import: it belongs to whoever runs
            self._owner, self._count = None, 0
        if process is None or thread is None:
            assert not self._count, f"the scheduler itself would wait for the lock {self.site}"
            return True
        world.yield_point(process)
        if self._count and not (self.reentrant and self._owner is thread):
            if not blocking:
                return False
            self._check_circle(thread)
            thread.waits_for = self
            free = world.block(process, "a lock", lambda: not self._count, None if timeout < 0 else timeout)
            thread.waits_for = None
            if not free:
                return False
        if not self._count:
            if thread.locks and blocking:  # who does not wait for it closes no circle
                world.lock_taken(thread, self)
            thread.locks.append(self)
            self._owner = thread
        self._count += 1
        return True

    def _check_circle(self, thread: Thread) -> None:
        chain: list[str] = []
        lock: SimLock | None = self
        while lock is not None and lock._owner is not None:
            chain.append(f"{lock.site}, held by {lock._owner.name}")
            if lock._owner is thread:
                raise Violation(f"deadlock: {thread.name} waits for {' which waits for '.join(chain)}")
            lock = lock._owner.waits_for

    def release(self) -> None:
        if not self._count:
            assert self._process is None or not self._process.alive or self._world.current is None, "nobody holds it"
            return
        self._count -= 1
        if not self._count:
            owner, self._owner = self._owner, None
            if owner is not None:
                owner.locks.remove(self)

    def locked(self) -> bool:
        return self._count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimRLock(SimLock):
    reentrant = True


class SimCondition:
    """``Condition``. Those who wait wake in no particular order: the seed says who gets the lock first."""

    def __init__(self, world: World, lock: SimLock) -> None:
        self._world = world
        self._process = world.running
        self._lock = lock
        self._waiting: list[list[bool]] = []  # each a box: whether it has been notified

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        notified = [False]
        self._waiting.append(notified)
        self._lock.release()
        if self._process is not None:
            self._world.block(self._process, "a condition", lambda: notified[0], timeout)
        self._lock.acquire()
        if not notified[0]:
            self._waiting.remove(notified)
        return notified[0]

    def notify(self, n: int = 1) -> None:
        for notified in self._waiting[:n]:
            notified[0] = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimEvent:
    def __init__(self, world: World) -> None:
        self._world = world
        self._process = world.running
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        if self._process is not None and self._process.alive:
            self._world.yield_point(self._process)
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set and self._process is not None:
            self._world.block(self._process, "an event", self.is_set, timeout)
        return self._set


class SimSimpleQueue:
    def __init__(self, world: World) -> None:
        self._world = world
        self._process = world.running
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self._process is not None:
            self._world.yield_point(self._process)
        self._items.append(item)

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block and self._process is not None:
            self._world.block(self._process, "a queue", lambda: bool(self._items), timeout)
        if not self._items:
            raise real.QueueEmpty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class SimAlarm:
    """``Alarm``. ``SimPoller`` finds it by its descriptor."""

    writable = False

    def __init__(self, world: World) -> None:
        process = world.running
        assert process is not None
        self._world = world
        self._process = process
        self._fd = world.next_descriptor()
        self.readable = False
        process.alarms[self._fd] = self

    def fileno(self) -> int:
        return self._fd

    def ring(self) -> None:
        if self._process.alive:
            self._world.yield_point(self._process)
        self.readable = True

    def silence(self) -> None:
        self.readable = False

    def close(self) -> None:
        self._process.alarms.pop(self._fd, None)


def _replacements(world: World) -> dict[Any, Any]:
    return {
        real.Lock: lambda: SimLock(world, _site()),
        real.RLock: lambda: SimRLock(world, _site()),
        real.Condition: lambda: SimCondition(world, SimLock(world, _site())),
        real.SimpleQueue: lambda: SimSimpleQueue(world),
        real.Event: lambda: SimEvent(world),
        Alarm: lambda: SimAlarm(world),
    }


@cache
def _broker_modules() -> list[Any]:
    """All modules that run in a broker; a module that is imported later would have real locks.

    Found once a process: a simulation must not see what somebody adds to the source while it runs.
    """
    for package in (broker.http, broker.kafka, broker.network, broker.pulsar, broker.shuffle, broker.storage):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("broker.") and name != "broker.runtime.threads" and module is not None
    ]


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Simulated primitives in every module of the broker that is imported by now."""
    replacements = _replacements(world)
    undo: list[tuple[dict[str, Any], str, Any]] = []

    def put(namespace: dict[str, Any], name: str, value: Any) -> None:
        undo.append((namespace, name, namespace[name]))
        namespace[name] = value

    for module in _broker_modules():
        namespace = vars(module)
        for name, value in list(namespace.items()):
            if isinstance(value, _REAL_LOCK_TYPE):
                put(namespace, name, SimLock(world, f"{module.__name__}.{name}"))
            elif callable(value) and _hashable(value) and value in replacements:
                put(namespace, name, replacements[value])
            elif isinstance(value, type) and attrs.has(value) and value.__module__ == module.__name__:
                _replace_factories(value, replacements, put)
    try:
        yield
    finally:
        for namespace, name, value in reversed(undo):
            namespace[name] = value


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _replace_factories(cls: type, replacements: dict[Any, Any], put: Any) -> None:
    """``attrs.Factory(Lock)``: attrs keeps the factory among the globals of the ``__init__`` that it has written."""
    for field in attrs.fields(cls):
        factory = getattr(field.default, "factory", None)
        if factory is not None and _hashable(factory) and factory in replacements:
            put(cls.__init__.__globals__, f"__attr_factory_{field.name}", replacements[factory])  # type: ignore[misc]
