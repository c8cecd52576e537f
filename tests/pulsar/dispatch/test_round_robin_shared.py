"""Shared, event by event, and against a model. More is in ``test_known_bugs.py`` and ``faults/test_pulsar_dispatch.py``."""

from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, Deliver, Discard, DispatchSettings, Now, Read, WakeAt
from broker.pulsar.dispatch.rate_limit import DispatchRate, RateLimit
from broker.pulsar.dispatch.round_robin import Shared
from broker.pulsar.subscriptions.cursor import Cursor
from tests.pulsar.dispatch.world import Machine, World


def world_of(limit: RateLimit | None = None, delayed: DelayedTracker | None = None, **limits: Any) -> World:
    cursor = Cursor()
    tracker = DelayedTracker() if delayed is None else delayed
    return World(Shared(cursor, DispatchSettings(**limits), tracker, limit), cursor)


def offsets(world: World, consumer: Consumer) -> list[int]:
    return [delivery.entry.offset for receiver, delivery in world.delivered if receiver is consumer]


def receivers(world: World) -> list[str]:
    return [consumer.name for consumer, _ in world.delivered]


def test_read_goes_to_consumer_with_permits() -> None:
    shared, consumer, now = Shared(Cursor(), DispatchSettings()), Consumer(1, "a"), Now(1.0, 1_000)
    world = world_of()
    entries = [world.append(), world.append()]
    assert [] == shared.add(consumer, now)
    assert [Read(0, 2, 5 * 1024 * 1024, 1)] == shared.flow(consumer, 2, now)
    (deliver,) = shared.read_done(Read(0, 2, 5 * 1024 * 1024, 1), entries, now)
    assert isinstance(deliver, Deliver)
    assert [(entries[0], 0, None), (entries[1], 0, None)] == deliver.deliveries
    assert (0, 2) == (consumer.permits, consumer.unacked)


def test_consumers_are_served_by_priority_and_in_turns() -> None:
    """The order of Pulsar's documentation."""
    world = world_of(turn_messages=1)
    for name, permits, priority in (("C1", 2, 0), ("C2", 1, 0), ("C3", 1, 0), ("C4", 2, 1), ("C5", 1, 1)):
        world.join(name, permits, priority=priority)
    for _ in range(8):
        world.append()
    world.settle()
    sent = [(delivery.entry.offset, consumer.name) for consumer, delivery in world.delivered]
    assert "C1 C2 C3 C1 C4 C5 C4".split() == [name for _, name in sorted(sent)]


def test_a_turn_has_twenty_messages() -> None:
    world = world_of()
    first, second = world.join("a", permits=100), world.join("b", permits=100)
    for _ in range(50):
        world.append()
    for _ in range(2):
        world.append(messages=30)
    world.settle()
    assert [*range(20), *range(40, 50), 50] == offsets(world, first)
    assert [*range(20, 40), 80] == offsets(world, second)
    assert (100 - 60, 100 - 50) == (first.permits, second.permits)


def test_undeliverable_entries_are_reread_without_taking_memory() -> None:
    world = world_of()
    for _ in range(10):
        world.append()
    consumer = world.join("a", permits=8)
    assert world.read is not None
    world.pause(consumer)
    world.complete_read()
    assert [] == offsets(world, consumer)
    assert not world.dispatcher.in_flight.records
    world.resume(consumer)
    world.settle()
    assert list(range(8)) == offsets(world, consumer)
    assert 8 == world.cursor.read_offset


def test_redelivered_entries_precede_new_ones_and_are_counted() -> None:
    world = world_of()
    for _ in range(4):
        world.append()
    first, second = world.join("a", permits=2), world.join("b")
    world.settle()
    world.redeliver(first, [1])
    world.redeliver(second, [0])  # `second` does not hold this entry
    world.flow(second, 2)
    world.settle()
    assert [(1, 1), (2, 0)] == [
        (delivery.entry.offset, delivery.redelivery_count)
        for consumer, delivery in world.delivered
        if consumer is second
    ]


def test_departed_consumers_entries_are_reassigned_without_counting() -> None:
    world = world_of()
    for _ in range(3):
        world.append()
    first, second = world.join("a", permits=3), world.join("b")
    world.settle()
    world.acknowledge(first, world.at(1))
    world.flow(second, 10)
    world.leave(first)
    world.settle()
    assert [0, 2] == offsets(world, second)
    assert [0, 0] == [delivery.redelivery_count for consumer, delivery in world.delivered if consumer is second]


def test_acknowledged_part_of_batch_is_not_counted_again() -> None:
    world = world_of()
    world.append(messages=5)
    consumer = world.join("a", permits=10)
    world.settle()
    world.acknowledge(consumer, world.at(0), [0b10010])
    assert 2 == consumer.unacked
    world.redeliver(consumer, None)
    world.settle()
    assert [0b10010] == list(world.delivered[-1][1].ack_set or ())
    assert (10 - 5 - 2, 2) == (consumer.permits, consumer.unacked)


def test_what_is_acknowledged_is_passed_over() -> None:
    world = world_of()
    for _ in range(6):
        world.append()
    for offset in (1, 2, 4):
        world.cursor.acknowledge(offset, 1)
    consumer = world.join("a", permits=10)
    world.settle()
    assert [0, 3, 5] == offsets(world, consumer)


def test_markers_are_acknowledged_for_everybody() -> None:
    world = world_of()
    world.append(marker=True)
    world.append()
    consumer = world.join("a", permits=10)
    world.settle()
    assert [1] == offsets(world, consumer)
    assert 1 == world.cursor.acknowledged_before
    assert Discard in [type(effect) for effect in world.seen]


def test_failed_reads_back_off_and_shrink() -> None:
    world = world_of(read_retry_s=1.0, read_retry_max_s=3.0)
    for _ in range(10):
        world.append()
    consumer = world.join("a", permits=10)
    waits = []
    for _ in range(4):
        world.complete_read(failed=True)
        assert world.read is None
        assert world.alarm is not None
        waits.append(world.alarm - world.monotonic)
        world.advance(waits[-1])
    assert [1.0, 2.0, 3.0, 3.0] == waits
    sizes = []
    while world.read is not None and world.readable(world.read):
        sizes.append(world.read.max_entries)
        world.complete_read()
    assert [1, 2, 4, 3] == sizes
    assert list(range(10)) == offsets(world, consumer)


def test_a_replay_that_failed_is_repeated_later() -> None:
    world = world_of()
    world.append()
    consumer = world.join("a", permits=10)
    world.settle()
    world.redeliver(consumer, None)
    world.complete_replay(failed=True)
    assert world.replay is None
    world.advance(1.0)
    world.complete_replay()
    assert [0, 0] == offsets(world, consumer)


def test_what_the_log_no_longer_has_is_forgotten() -> None:
    world = world_of()
    for _ in range(2):
        world.append()
    consumer = world.join("a", permits=10)
    world.settle()
    world.redeliver(consumer, None)
    world.gone = 1
    world.complete_replay()
    assert [0, 1, 1] == offsets(world, consumer)
    assert [1] == list(world.dispatcher.in_flight.records)


@pytest.mark.parametrize("left", [[(0, 2), (4, 1)], [(1, 2), (4, 1)], [(3, 1)]], ids=str)
@pytest.mark.parametrize("acked", [0, 4])
def test_what_compaction_has_cut_otherwise_is_read_anew(left: list[tuple[int, int]], acked: int) -> None:
    """A batch of Kafka's is cut where records are missing, so its offset finds only the first piece, or nothing."""
    world = world_of()
    whole = world.append(messages=5)
    later = world.append()
    consumer = world.join("a", permits=100)
    world.settle()
    if acked:
        world.cursor.acknowledge(0, 5, [0b10000])
        world.dispatcher.acknowledged(consumer, 0, acked, False, world.now)
    world.delivered.clear()
    world.log[:] = [attrs.evolve(whole, offset=offset, messages=messages) for offset, messages in left] + [later]
    world.redeliver(consumer, [0])
    world.complete_some()
    assert [offset for offset, _ in left] == offsets(world, consumer)
    assert later.offset + 1 == world.cursor.read_offset


def test_rate_limit_holds_and_resumes_without_event() -> None:
    world = world_of(RateLimit([DispatchRate(messages=10)]))
    for _ in range(100):
        world.append()
    consumer = world.join("a", permits=1000)
    for seconds in range(1, 6):
        for _ in range(100):
            world.complete_some()
            world.advance(0.01)
        assert abs(len(offsets(world, consumer)) - 10 * (seconds + 1)) <= 2


def test_a_rate_limit_of_bytes_bounds_the_read() -> None:
    world = world_of(RateLimit([DispatchRate(size=1000)]))
    for _ in range(3):
        world.append(size=400)
    world.join("a", permits=1000)
    assert world.read is not None
    assert 1000 == world.read.max_bytes


def test_crowded_cursor_stops_reading_until_acknowledgement() -> None:
    cursor = Cursor(ranges_max=2)
    world = World(Shared(cursor, DispatchSettings()), cursor)
    for _ in range(10):
        world.append()
    consumer = world.join("a", permits=8)
    world.settle()
    for offset in (1, 3):
        world.acknowledge(consumer, world.at(offset))
    for offset in (5, 7):
        cursor.skip(offset, offset + 1)  # there is no entry at this offset
    world.flow(consumer, 1)
    assert cursor.crowded
    world.complete_read()  # it was requested before the cursor was crowded
    assert world.read is None
    world.acknowledge(consumer, world.at(0))
    assert world.read is not None


def test_equal_delays_of_all_messages_pause_reading() -> None:
    world = world_of(delayed=DelayedTracker(look_ahead=10))
    for _ in range(30):
        world.append(deliver_at_ms=world.wall_ms + 10_000)
    consumer = world.join("a", permits=10)
    while world.complete_read():
        pass
    assert world.read is None
    assert 10 <= world.dispatcher.delayed <= 20
    world.advance(11.0)
    world.settle()
    assert list(range(10)) == offsets(world, consumer)
    world.flow(consumer, 100)
    world.settle()
    assert list(range(30)) == offsets(world, consumer)


def test_alarm_is_reset_only_to_earlier_time() -> None:
    world = world_of()
    for delay_ms in (50_000, 20_000, 60_000):
        world.append(deliver_at_ms=world.wall_ms + delay_ms)
    world.join("a", permits=1)
    for _ in range(3):
        world.complete_read()
    assert 2 == [type(effect) for effect in world.seen].count(WakeAt)


@pytest.mark.parametrize("permits", [0, -3])
def test_without_permits_nothing_is_read(permits: int) -> None:
    world = world_of()
    consumer = world.join("a")
    consumer.permits = permits
    world.permits[consumer] = permits
    world.flow(consumer, 0)
    assert world.read is None


def test_a_consumer_that_is_not_there_is_nobody() -> None:
    world = world_of()
    world.join("a")
    assert [] == world.dispatcher.remove(Consumer("b", "b"), world.now)


class SharedMachine(Machine):
    @initialize(
        limits=st.sampled_from([(50_000, 200_000, 40_000), (5, 12, 40_000), (1, 1, 40_000), (30, 100, 3)]),
        batch=st.sampled_from([100, 7]),
        quick=st.booleans(),
        slice=st.sampled_from([2, 1000]),
    )
    def start(self, limits: tuple[int, int, int], batch: int, quick: bool, slice: int) -> None:
        cursor = Cursor()
        per_consumer, per_subscription, look_ahead = limits
        config = DispatchSettings(
            unacked_max_per_consumer=per_consumer,
            unacked_max_per_subscription=per_subscription,
            look_ahead_max=look_ahead,
            read_entries_max=batch,
        )
        self.begin(World(Shared(cursor, config, DelayedTracker()), cursor), quick, slice)


TestShared = SharedMachine.TestCase
TestShared.settings = settings(max_examples=70, stateful_step_count=60, deadline=None)
