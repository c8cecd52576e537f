"""Events that a client can cause at will have a bounded cost each, and leave nothing behind.

Costs are counted in calls of functions, not in time.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from broker.pulsar.dispatch.by_key import ByKey
from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.many_consumers import SLICE
from broker.pulsar.dispatch.round_robin import RoundRobin
from broker.pulsar.entry import Chunk
from tests.pulsar.dispatch.test_known_bugs import key_shared, offsets, shared
from tests.pulsar.dispatch.world import SPREAD, World

BOTH = pytest.mark.parametrize("make", [shared, key_shared])
NO_LIMITS = {"unacked_max_per_consumer": 0, "unacked_max_per_subscription": 0}


def calls(work: Callable[[], object]) -> int:
    """The number of functions that it calls."""
    count = 0

    def count_calls(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def holding(make: Any, count: int, **limits: Any) -> tuple[World, Consumer]:
    """A consumer with so many entries, and another without permits."""
    world = make(**{**NO_LIMITS, **limits})
    for number in range(count):
        world.append(sticky_hash=number * SPREAD)
    consumer = world.join("a", permits=count)
    while world.complete_read():
        pass
    assert count == len(consumer.held)
    return world, consumer


@BOTH
@pytest.mark.parametrize("permits", [2**31, 2**32 - 1])
def test_any_number_of_permits_reads_batch_by_batch(make: Any, permits: int) -> None:
    world = make()
    for _ in range(250):
        world.append()
    consumer = world.join("a")
    for _ in range(5):
        world.flow(consumer, permits)
    assert world.read is not None
    assert 100 == world.read.max_entries
    world.complete_read()
    assert 100 == len(offsets(world, consumer))
    assert 5 * permits - 100 == consumer.permits


@BOTH
def test_entry_cost_is_independent_of_consumer_count(make: Any) -> None:
    costs = []
    for count in (10, 2_000):
        world = make()
        for number in range(count):
            world.join(f"c{number}", permits=1000)
        for number in range(100):
            world.append(sticky_hash=number * SPREAD)
        costs.append(calls(world.complete_read))
        assert 100 == len(world.delivered)
    # Key_Shared: 100 keys go to more consumers, each with its own message.
    assert costs[1] < 2 * costs[0]


@BOTH
def test_acknowledgement_cost_is_independent_of_messages_in_flight(make: Any) -> None:
    costs = []
    for count in (10, 5_000):
        world, consumer = holding(make, count)
        world.cursor.acknowledge(3, 1)
        costs.append(calls(lambda: world.dispatcher.acknowledged(consumer, 3, 1, True, world.now)))  # noqa: B023
    assert costs[0] == costs[1]


@BOTH
def test_messages_in_flight_are_bounded_without_limits(make: Any) -> None:
    """The consumer of a non-durable subscription gives permits and acknowledges nothing."""
    world = make(**NO_LIMITS, in_flight_max=150)
    for _ in range(1_000):
        world.append()
    consumer = world.join("a", permits=100_000)
    world.settle()
    assert 200 == len(world.dispatcher.in_flight.records)
    for offset in range(60):
        world.acknowledge(consumer, world.at(offset))
    world.settle()
    assert 240 == len(world.dispatcher.in_flight.records)


@BOTH
def test_redelivering_everything_takes_a_slice_at_a_time(make: Any) -> None:
    count = 2 * SLICE + 10
    world, consumer = holding(make, count)
    world.flow(consumer, 2 * count)
    world.redeliver(consumer, None)
    waiting = [world.dispatcher.waiting]
    while world.dispatcher._chores:
        assert world.replay is None, "a later entry overtakes what is still to be handed back"
        assert world.alarm == world.monotonic
        world.advance(0.0)
        waiting.append(world.dispatcher.waiting)
    assert [SLICE, 2 * SLICE, count] == waiting
    while world.complete_replay():
        pass
    assert sorted(offsets(world, consumer)[count:]) == list(range(count))


@BOTH
def test_new_entry_does_not_overtake_pending_redeliveries(make: Any) -> None:
    world, consumer = holding(make, SLICE + 1)
    world.flow(consumer, 2 * SLICE)
    assert world.read is not None
    world.redeliver(consumer, None)
    world.append()
    world.complete_read()
    assert SLICE + 1 == len(world.delivered)
    world.settle()
    assert 2 * (SLICE + 1) + 1 == len(world.delivered)


@BOTH
def test_leaving_consumer_is_released_in_slices(make: Any) -> None:
    count = SLICE + 10
    world, consumer = holding(make, count)
    other = world.join("b", permits=2 * count)
    world.leave(consumer)
    assert SLICE == world.dispatcher.waiting
    for offset in (0, count - 1):  # acknowledged meanwhile, before and after it was released
        world.acknowledge(None, world.at(offset))
    world.settle()
    assert list(range(1, count - 1)) == sorted(offsets(world, other))
    world.check()


@BOTH
def test_expiring_entries_are_forgotten_in_slices(make: Any) -> None:
    count = SLICE + 10
    world, _ = holding(make, count)
    world.mark_delete(count)
    assert 10 == len(world.dispatcher.in_flight.records)
    world.advance(0.0)
    assert 0 == len(world.dispatcher.in_flight.records)
    world.check()


@BOTH
def test_redelivering_what_one_does_not_have_does_nothing(make: Any) -> None:
    world, consumer = holding(make, 10)
    other = world.join("b", permits=10)
    ids = [*range(100_000), *range(10)]
    assert [] == world.dispatcher.redeliver(other, ids, world.now)
    assert [] == world.dispatcher.redeliver(consumer, range(10**6, 10**6 + 100_000), world.now)
    assert not world.dispatcher._chores
    world.check()


@BOTH
def test_repeatedly_given_id_fails_once(make: Any) -> None:
    world, consumer = holding(make, 10)
    world.redeliver(consumer, [5] * 3 * SLICE)
    assert not world.dispatcher._chores
    world.flow(consumer, 1)
    world.settle()
    assert (5, 1) == (world.delivered[-1][1].entry.offset, world.delivered[-1][1].redelivery_count)


@BOTH
def test_a_storm_of_consumers_leaves_nothing_behind(make: Any) -> None:
    world = make()
    for _ in range(50):
        world.append()
    # It stays, cannot be written to, and is first in every queue.
    stays = world.join("stays", permits=1000)
    world.pause(stays)
    for number in range(1_000):
        consumer = world.join("same name" if number % 2 else f"c{number}", priority=number)
        world.flow(consumer, number % 3)
        world.complete_some()
        world.leave(consumer)
        world.complete_some()
    world.check()
    assignment = world.dispatcher._assignment
    if isinstance(assignment, RoundRobin):
        assert len(assignment._turns._levels or ()) <= 1
        assert not assignment._parked
    else:
        assert isinstance(assignment, ByKey)
        assert len(assignment._turns._levels or ()) <= 1
        assert len(assignment._runnable) <= 1
        assert sum(map(len, assignment._homes.values())) <= len(assignment._lanes) <= 50
        assert 100 >= len(assignment._ranges._sorted)  # type: ignore[attr-defined]
        assert 1 == len(assignment._ranges._names)  # type: ignore[attr-defined]
    world.drain()


def test_joining_cost_is_independent_of_waiting_messages() -> None:
    """Of ten thousand lanes only those with a new owner are touched."""
    costs = []
    for count in (100, 5_000):
        world = key_shared(look_ahead_per_consumer=count)
        for number in range(200):
            world.join(f"c{number}")
        first = world.consumers[0]
        for number in range(count):
            world.append(sticky_hash=number * SPREAD)
        world.flow(first, 1_000_000)
        while world.complete_read():
            pass
        assert world.dispatcher.waiting > count * 0.9
        newcomer = Consumer("new", "new")
        costs.append(calls(lambda: world.dispatcher.add(newcomer, world.now)))  # noqa: B023
    assert costs[1] < costs[0] + 5_000 / 200 * 20


def test_unfinished_chunked_messages_have_a_bound() -> None:
    world = shared(look_ahead_max=50, turn_messages=1)
    first, second = world.join("a", permits=1), world.join("b", permits=1_000_000)
    world.append(chunk=Chunk(b"first", 0, 2))
    for number in range(400):
        world.append(chunk=Chunk(b"first" if number % 2 else b"%d" % number, 1 if number % 2 else 0, 2))
        # The last chunk of the first message is resent over and over: it waits for the consumer with the first chunk.
    world.settle()
    assert [0] == offsets(world, first)
    assert 50 <= world.dispatcher.waiting <= 150
    assert world.read is None
    world.flow(first, 1_000_000)
    world.settle()
    assert 401 == len(offsets(world, first)) + len(offsets(world, second))


def test_entries_acknowledged_while_waiting_leave_the_lanes() -> None:
    """One consumer takes nothing, and the other acknowledges every message."""
    world = key_shared()
    names = iter("abcdefgh")
    stuck = world.join(next(names))
    other = world.join(next(names), permits=1_000_000)
    assignment = world.dispatcher._assignment
    assert isinstance(assignment, ByKey)
    keys = [key for key in range(100) if assignment._ranges.owner(assignment._ranges.reduce(key * SPREAD)) is stuck]
    kept = world.append(sticky_hash=keys[0] * SPREAD)
    for _ in range(500):
        entry = world.append(sticky_hash=keys[0] * SPREAD)
        world.complete_read()
        world.acknowledge(other, entry)
    assert 1 == world.dispatcher.waiting
    (lane,) = assignment._lanes.values()
    assert len(lane.offsets) < 50
    world.flow(stuck, 10)
    world.settle()
    assert [kept.offset] == offsets(world, stuck)
