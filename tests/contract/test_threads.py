"""The contract of Clock, Entropy, Threads, locks, queues and events: the machine's and the simulator's."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from broker.runtime import threads
from tests.contract.test_network import in_world
from tests.contract.worlds import WORLDS, SimulatedWorld, World
from tests.sim.primitives import SimEvent, SimLock, SimSimpleQueue


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with nullcontext(WORLDS[request.param]()) as world:
        yield world


def new_queue(world: World) -> "threads.SimpleQueue[int | None]":
    if isinstance(world, SimulatedWorld):
        return SimSimpleQueue(world.world)  # type: ignore[return-value]
    return threads.SimpleQueue()


def new_event(world: World) -> threads.Event:
    return SimEvent(world.world) if isinstance(world, SimulatedWorld) else threads.Event()  # type: ignore[return-value]


def new_lock(world: World) -> "threads.Lock":  # type: ignore[valid-type]
    return SimLock(world.world) if isinstance(world, SimulatedWorld) else threads.Lock()


class Worker:
    """Takes numbers from a queue; None wakes it."""

    def __init__(self, world: World) -> None:
        self.queue = new_queue(world)
        self.taken: list[int] = []
        self.steps = 0
        self.idents: set[int] = set()
        self._get_ident = world.runtime.threads.get_ident

    def step(self, timeout: float | None) -> bool:
        self.steps += 1
        self.idents.add(self._get_ident())
        try:
            item = self.queue.get(timeout != 0, timeout)
        except threads.QueueEmpty:
            return False
        if item is None:
            return False
        if item < 0:
            raise RuntimeError("asked for")
        self.taken.append(item)
        return True

    def wakeup(self) -> None:
        self.queue.put(None)


def no_crash(error: BaseException) -> None:
    raise AssertionError(f"a thread crashed: {error!r}")


@in_world
def test_a_body_is_stepped_until_it_is_stopped(world: World) -> None:
    worker = Worker(world)
    thread = world.runtime.threads.spawn("worker", worker, no_crash)
    for number in range(5):
        worker.queue.put(number)
    world.until(lambda: worker.taken == [0, 1, 2, 3, 4])
    assert thread.alive()
    assert thread.stop(5)
    assert not thread.alive()
    worker.queue.put(99)
    world.runtime.threads.pause(0.01)
    assert worker.taken == [0, 1, 2, 3, 4]


@in_world
def test_a_body_that_waits_is_not_stepped(world: World) -> None:
    worker = Worker(world)
    thread = world.runtime.threads.spawn("worker", worker, no_crash)
    world.until(lambda: worker.steps == 1)
    world.runtime.threads.pause(0.05)
    assert worker.steps == 1
    thread.stop(5)


@in_world
def test_every_thread_has_an_identity_of_its_own(world: World) -> None:
    workers = [Worker(world) for _ in range(3)]
    handles = [world.runtime.threads.spawn("worker", worker, no_crash) for worker in workers]
    world.until(lambda: all(worker.steps for worker in workers))
    idents = [worker.idents for worker in workers]
    assert len(set.union(*idents, {world.runtime.threads.get_ident()})) == 4
    for handle in handles:
        handle.ask_to_stop()
    assert all(handle.stop(5) for handle in handles)


@in_world
def test_an_exception_ends_the_thread_and_is_told(world: World) -> None:
    worker = Worker(world)
    crashes: list[BaseException] = []
    thread = world.runtime.threads.spawn("worker", worker, crashes.append)
    worker.queue.put(-1)
    world.until(lambda: crashes)
    world.until(lambda: not thread.alive())
    assert str(crashes[0]) == "asked for"
    assert thread.stop(5)


@in_world
def test_time_goes_on_and_never_back(world: World) -> None:
    clock = world.runtime.clock
    before, before_ms = clock.monotonic(), clock.time_ms()
    world.runtime.threads.pause(0.02)
    assert clock.monotonic() - before >= 0.019
    assert clock.time_ms() - before_ms >= 10
    assert before_ms > 1_600_000_000_000, "milliseconds since 1970"


@in_world
def test_chance_does_not_repeat(world: World) -> None:
    entropy = world.runtime.entropy
    assert len({entropy.bytes(16) for _ in range(50)}) == 50
    assert all(len(entropy.bytes(n)) == n for n in (0, 1, 7))
    uuids = {entropy.uuid() for _ in range(50)}
    assert len(uuids) == 50
    assert {uuid.version for uuid in uuids} == {4}


@in_world
def test_waits_for_events_and_queues_time_out(world: World) -> None:
    event, queue = new_event(world), new_queue(world)
    assert not event.wait(0)
    assert not event.wait(0.01)
    event.set()
    assert event.wait(None)
    event.clear()
    assert not event.is_set()
    with pytest.raises(threads.QueueEmpty):
        queue.get(True, 0.01)
    with pytest.raises(threads.QueueEmpty):
        queue.get_nowait()
    queue.put(1)
    assert (queue.empty(), queue.qsize()) == (False, 1)
    assert queue.get(True, None) == 1


class Counter:
    """Adds to a number in two steps that must not be interleaved."""

    def __init__(self, world: World, lock: "threads.Lock", shared: list[int]) -> None:  # type: ignore[valid-type]
        self._world = world
        self._lock = lock
        self._shared = shared
        self.left = 20

    def step(self, timeout: float | None) -> bool:
        if not self.left:
            self._world.runtime.threads.pause(0.001)
            return False
        with self._lock:  # type: ignore[attr-defined]
            seen = self._shared[0]
            self._world.runtime.threads.pause(0.0001)
            self._shared[0] = seen + 1
        self.left -= 1
        return True

    def wakeup(self) -> None: ...


@in_world
def test_a_lock_is_held_by_one(world: World) -> None:
    lock, shared = new_lock(world), [0]
    counters = [Counter(world, lock, shared) for _ in range(3)]
    handles = [world.runtime.threads.spawn("counter", counter, no_crash) for counter in counters]
    world.until(lambda: shared == [60])
    for handle in handles:
        assert handle.stop(5)
    with lock:  # type: ignore[attr-defined]
        assert lock.locked()  # type: ignore[attr-defined]
        assert not lock.acquire(False)  # type: ignore[attr-defined]
    assert not lock.locked()  # type: ignore[attr-defined]
