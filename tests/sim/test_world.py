"""The scheduler: threads that meet, wait, die, and wait for each other."""

from typing import Any

import pytest

from tests.sim.primitives import SimEvent, SimLock, SimRLock, SimSimpleQueue
from tests.sim.world import Chaos, Process, Thread, Violation, World


def run(world: World, *, most: int = 1000) -> None:
    for _ in range(most):
        if not world.step_once() and not world.sleep_until_something():
            return
    raise AssertionError("it goes on for ever")


def spawn(process: Process, name: str, work: Any, crashes: list[BaseException] | None = None) -> Thread:
    def crashed(error: BaseException) -> None:
        if crashes is None:
            raise Violation(f"{name}: {error!r}")
        crashes.append(error)

    return Thread(process, name, None, crashed, once=work)


def test_threads_are_interrupted_in_the_seeds_order() -> None:
    orders = set()
    for seed in range(20):
        world = World(seed)
        world.chaos = Chaos(preempt=0.5)
        process = world.boot()
        order: list[str] = []

        def work(name: str, world: World = world, process: Process = process, order: list[str] = order) -> None:
            for _ in range(3):
                order.append(name)
                world.yield_point(process)

        for name in "ab":
            spawn(process, name, lambda name=name, work=work: work(name))
        run(world)
        assert sorted(order) == ["a"] * 3 + ["b"] * 3
        orders.add("".join(order))
    assert len(orders) > 5


def test_lost_update_is_found_and_prevented_by_lock() -> None:
    def count(world: World, lock: Any) -> int:
        process = world.process
        assert process is not None
        shared = [0]

        def work() -> None:
            for _ in range(5):
                with lock:
                    seen = shared[0]
                    world.yield_point(process)
                    shared[0] = seen + 1

        for name in "abc":
            spawn(process, name, work)
        run(world)
        return shared[0]

    class NoLock:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    counts = {True: set(), False: set()}
    for seed in range(10):
        for locked in (True, False):
            world = World(seed)
            world.chaos = Chaos(preempt=0.5)
            world.boot()
            counts[locked].add(count(world, SimLock(world) if locked else NoLock()))
    assert counts[True] == {15}
    assert min(counts[False]) < 15


def test_deadlock_is_a_violation() -> None:
    def meet(seed: int) -> None:
        world = World(seed)
        world.chaos = Chaos(preempt=0.5)
        process = world.boot()
        first, second = SimLock(world, "first"), SimLock(world, "second")

        def one() -> None:
            with first, second:
                pass

        def other() -> None:
            with second, first:
                pass

        spawn(process, "one", one)
        spawn(process, "other", other)
        run(world)
        assert len(world.lock_cycles()) == 2, "taken in both orders, even if they never met"

    met = 0
    for seed in range(20):
        try:
            meet(seed)
        except Violation as violation:
            met += "deadlock" in str(violation)
    assert 0 < met < 20


def test_equal_lock_sites_are_distinguished_when_two_held() -> None:
    def cycles(*orders: tuple[int, int]) -> int:
        world = World(1)
        process = world.boot()
        locks = [SimLock(world, "the same place") for _ in range(3)]

        def take(first: int, second: int) -> None:
            with locks[first], locks[second]:
                pass

        for order in orders:
            spawn(process, "thread", lambda order=order: take(*order))
        run(world)
        return len(world.lock_cycles())

    assert 0 == cycles((0, 1), (1, 2), (0, 2))
    assert 2 == cycles((0, 1), (1, 0))
    assert 3 == cycles((0, 1), (1, 2), (2, 0))


def test_only_a_reentrant_lock_is_taken_twice() -> None:
    world = World(1)
    process = world.boot()
    done = []

    def twice(lock: SimLock) -> None:
        with lock, lock:
            done.append(lock)

    spawn(process, "reentrant", lambda: twice(SimRLock(world)))
    run(world)
    assert len(done) == 1
    spawn(process, "plain", lambda: twice(SimLock(world)))
    with pytest.raises(Violation, match="deadlock"):
        run(world)


def test_waiting_takes_time_and_no_steps() -> None:
    world = World(1)
    process = world.boot()
    event = SimEvent(world)
    woken: list[tuple[bool, float]] = []

    def wait() -> None:
        woken.append((event.wait(5.0), world.now))
        woken.append((event.wait(50.0), world.now))

    def ring() -> None:
        world.block(process, "time", lambda: False, 20.0)
        event.set()

    start = world.now
    spawn(process, "waiter", wait)
    spawn(process, "ringer", ring)
    run(world, most=20)
    assert [so for so, _ in woken] == [False, True]
    assert [round(at - start) for _, at in woken] == [5, 20]


def test_kill_unwinds_every_thread_without_effects() -> None:
    world = World(1)
    process = world.boot()
    queue = SimSimpleQueue(world)
    seen: list[str] = []

    def work(name: str) -> None:
        try:
            with SimLock(world):
                queue.get()
        finally:
            seen.append(name)
            world.yield_point(process)
            seen.append("a ghost")

    crashes: list[BaseException] = []
    for name in "abc":
        spawn(process, name, lambda name=name: work(name), crashes)
    unborn = spawn(process, "unborn", lambda: seen.append("unborn"), crashes)
    unborn.frozen_until = 1e9
    for _ in range(6):
        world.step_once()
    world.end_process()
    assert sorted(seen) == ["a", "b", "c"]
    assert not crashes
    assert unborn.ended


def test_the_broker_can_be_killed_at_any_point() -> None:
    reached = set()
    for countdown in range(5):
        world = World(1)
        process = world.boot()
        process.countdown = countdown
        process.on_countdown = world.end_process
        steps: list[int] = []

        def work(world: World = world, process: Process = process, steps: list[int] = steps) -> None:
            for step in range(10):
                world.yield_point(process)
                steps.append(step)

        spawn(process, "worker", work)
        run(world)
        assert world.process is None
        reached.add(len(steps))
    assert reached == {0, 1, 2, 3, 4}
