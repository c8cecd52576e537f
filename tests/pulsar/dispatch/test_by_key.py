"""Key_Shared, event by event, and against models. More is in ``test_known_bugs.py`` and ``faults/test_pulsar_dispatch.py``."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from broker.pulsar.dispatch.assignment import UNKNOWN
from broker.pulsar.dispatch.by_key import ByKey, KeyShared
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, DispatchSettings
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import ConsumerAssignError
from broker.pulsar.subscriptions.cursor import Cursor
from tests.pulsar.dispatch.world import SPREAD, Machine, World


def check_lanes(world: World) -> None:
    """Every lane is where its state says."""
    keys = world.dispatcher._assignment
    assert isinstance(keys, ByKey)
    records = world.dispatcher.in_flight.records.values()
    waiting = Counter(record.tag for record in records if record.owner is None and record.tag != UNKNOWN)
    assert waiting == {lane.hash: lane.count for lane in keys._lanes.values()}
    for home, lanes in keys._homes.items():
        assert lanes
        assert all(lane.home is home for lane in lanes)
        assert not home.available or home in keys._runnable
    for hash, lane in keys._lanes.items():
        assert lane.taken == sum(other is lane for other in keys._taken.values())
        if lane.home is not None:
            assert lane in keys._homes[lane.home]
            assert lane.home is keys._ranges.owner(hash)
        elif not lane.taken:
            owner = keys._ranges.owner(hash)
            assert owner is None or keys._busy[hash][0] is not owner
    out = Counter((record.tag, record.owner) for record in records if record.owner is not None)
    if not keys._out_of_order:
        assert out == {(hash, consumer): count for hash, (consumer, count) in keys._busy.items()}


class KeyedWorld(World):
    def check(self) -> None:
        super().check()
        check_lanes(self)

    def check_order(self, consumer: Consumer, entry: Entry) -> None:
        """Nobody else has an entry of the key, and nothing before it is still to be delivered."""
        for other in self.log[self.gone :]:
            if other.sticky_hash == entry.sticky_hash and not other.marker and not other.deliver_at_ms:
                holder = self.holder.get(other.offset)
                assert holder in (None, consumer), "the key is out at two consumers"
                if other.offset < entry.offset and not self.acked(other):
                    assert holder is consumer or entry.deliver_at_ms, "an older entry of the key waits"


def world_of(*, sticky: bool = False, out_of_order: bool = False, **limits: Any) -> World:
    cursor = Cursor()
    dispatcher = KeyShared(
        cursor, DispatchSettings(**limits), DelayedTracker(), sticky=sticky, out_of_order=out_of_order
    )
    return (World if out_of_order else KeyedWorld)(dispatcher, cursor)


def offsets(world: World, consumer: Consumer) -> list[int]:
    return [delivery.entry.offset for receiver, delivery in world.delivered if receiver is consumer]


@pytest.mark.parametrize("consistent", [True, False])
def test_keys_are_divided_among_all_consumers(consistent: bool) -> None:
    world = world_of(consistent_hashing=consistent)
    consumers = [world.join(name, permits=1000) for name in "abc"]
    for number in range(300):
        world.append(sticky_hash=number % 100 * 321_123_457)
    world.settle()
    keys = [{offset % 100 for offset in offsets(world, consumer)} for consumer in consumers]
    assert all(keys)
    assert set(range(100)) == set.union(*keys)
    assert 100 == sum(map(len, keys))


def test_sticky_ranges_decide_and_what_nobody_owns_waits() -> None:
    world = world_of(sticky=True)
    low = world.join("low", permits=10, ranges=((0, 99),))
    for key in (5, 150, 99, 100):
        world.append(sticky_hash=key)
    world.settle()
    assert [0, 2] == offsets(world, low)
    high = world.join("high", permits=10, ranges=((100, 65_535),))
    world.settle()
    assert [1, 3] == offsets(world, high)


def test_overlapping_sticky_ranges_are_refused_without_change() -> None:
    world = world_of(sticky=True)
    first = world.join("a", permits=10, ranges=((0, 99),))
    with pytest.raises(ConsumerAssignError):
        world.dispatcher.add(Consumer("b", "b", ranges=((99, 200),)), world.now)
    assert [first] == world.dispatcher.consumers
    world.append(sticky_hash=99)
    world.settle()
    assert [0] == offsets(world, first)


def test_unordered_key_moves_to_new_consumer_immediately() -> None:
    world = world_of(out_of_order=True)
    old = world.join("old", permits=1000)
    for key in range(40):
        world.append(sticky_hash=key * SPREAD)
    world.settle()
    new = world.join("new", permits=1000)
    for key in range(40):
        world.append(sticky_hash=key * SPREAD)
    world.settle()
    assert 80 == len(offsets(world, old)) + len(offsets(world, new))
    assert offsets(world, new)
    assert 0 == world.dispatcher.waiting


def test_waiting_entries_are_reread_only_when_sendable() -> None:
    world = world_of()
    first, second = world.join("a"), world.join("b")
    ranges = world.dispatcher._assignment._ranges  # type: ignore[attr-defined]
    stuck = ranges.owner(ranges.reduce(SPREAD))
    free = second if stuck is first else first
    for _ in range(50):
        world.append(sticky_hash=SPREAD)
    world.flow(free, 1000)
    while world.complete_read():
        assert world.replay is None
    assert 50 == world.dispatcher.waiting
    world.flow(stuck, 7)
    assert world.replay is not None
    assert list(range(7)) == list(world.replay.offsets)
    world.settle()
    assert list(range(7)) == offsets(world, stuck)
    assert 43 == world.dispatcher.waiting


def test_delayed_entries_go_to_consumer_of_key() -> None:
    world = world_of()
    consumers = [world.join(name, permits=1000) for name in "ab"]
    for key in range(40):
        world.append(sticky_hash=key * SPREAD, deliver_at_ms=world.wall_ms + 5_000)
    world.complete_read()
    world.advance(6.0)
    world.settle()
    ranges = world.dispatcher._assignment._ranges  # type: ignore[attr-defined]
    for consumer in consumers:
        mine = [entry.offset for entry in world.log if ranges.owner(ranges.reduce(entry.sticky_hash)) is consumer]
        assert mine == offsets(world, consumer)


class KeySharedMachine(Machine):
    @initialize(
        limits=st.sampled_from([(50_000, 200_000, 40_000), (5, 12, 40_000), (1, 1, 40_000), (30, 100, 10)]),
        consistent=st.booleans(),
        batch=st.sampled_from([100, 7]),
        quick=st.booleans(),
        slice=st.sampled_from([2, 1000]),
    )
    def start(self, limits: tuple[int, int, int], consistent: bool, batch: int, quick: bool, slice: int) -> None:
        cursor = Cursor()
        per_consumer, per_subscription, look_ahead = limits
        config = DispatchSettings(
            unacked_max_per_consumer=per_consumer,
            unacked_max_per_subscription=per_subscription,
            look_ahead_max=look_ahead,
            consistent_hashing=consistent,
            read_entries_max=batch,
        )
        self.begin(KeyedWorld(KeyShared(cursor, config, DelayedTracker()), cursor), quick, slice)


TestKeyShared = KeySharedMachine.TestCase
TestKeyShared.settings = settings(max_examples=70, stateful_step_count=60, deadline=None)


class StickyMachine(KeySharedMachine):
    """Every consumer has one of eight ranges, some of which belong to nobody until the end."""

    @initialize(quick=st.booleans(), slice=st.sampled_from([2, 1000]))
    def start(self, quick: bool, slice: int) -> None:  # type: ignore[override]
        world = world_of(sticky=True)
        self.begin(world, quick, slice)

    def begin(self, world: World, quick: bool, slice: int) -> None:
        self.world, self.quick = world, quick
        world.dispatcher._chores.slice = slice
        self.join_range(0, 100)
        self.produce_many(30, 0)

    join = None  # type: ignore[assignment]

    @rule(number=st.integers(0, 7), permits=st.sampled_from([0, 1, 7]))
    def join_range(self, number: int, permits: int) -> None:
        if any(consumer.name == str(number) for consumer in self.consumers):
            with pytest.raises(ConsumerAssignError):
                self.world.join(str(number), ranges=((number * 8192 + 8191, number * 8192 + 8191),))
        else:
            self.world.join(str(number), permits, ranges=((number * 8192, number * 8192 + 8191),))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for number in range(8):
                self.join_range(number, 0)
        super().teardown()


TestSticky = StickyMachine.TestCase
TestSticky.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


class OutOfOrderMachine(KeySharedMachine):
    @initialize(quick=st.booleans(), slice=st.sampled_from([2, 1000]))
    def start(self, quick: bool, slice: int) -> None:  # type: ignore[override]
        self.begin(world_of(out_of_order=True, unacked_max_per_consumer=30), quick, slice)


TestOutOfOrder = OutOfOrderMachine.TestCase
TestOutOfOrder.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
