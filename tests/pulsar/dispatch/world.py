"""A subscription without anything real around it: a log in memory, a cursor, a dispatcher of several consumers, and the
checks that hold for every one of those.

``World`` carries out effects as the subscription does, but reads complete when the test says so, or fail, or complete
although nobody wants them any more. ``Machine`` is the rules that hypothesis draws from.
"""

from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.pulsar.dispatch.dispatcher import (
    CancelRead,
    Consumer,
    Deliver,
    Delivery,
    Discard,
    Effect,
    Now,
    Read,
    Replay,
    WakeAt,
)
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.entry import Chunk, Entry
from broker.pulsar.subscriptions.cursor import Cursor

# The number of keys, and the distance between their hashes.
KEYS, SPREAD = 10, 6007


class World:
    def __init__(self, dispatcher: ManyConsumers, cursor: Cursor, *, early_ms: int = 1000) -> None:
        self.dispatcher = dispatcher
        self.cursor = cursor
        self.early_ms = early_ms
        self.log: list[Entry] = []
        self.gone = 0  # entries at the start of the log that can no longer be read
        self.monotonic = 100.0
        self.wall_ms = 1_000_000
        self.consumers: list[Consumer] = []
        self.read: Read | None = None
        self.replay: Replay | None = None
        self.stale: list[Read | Replay] = []  # the dispatcher waits for none of these
        self.alarm: float | None = None
        # The expected state, kept in the simplest way.
        self.permits: dict[Consumer, int] = {}
        self.holder: dict[int, Consumer] = {}
        self.nacks: dict[int, int] = {}
        self.delivered: list[tuple[Consumer, Delivery]] = []
        self.unacked_max = self.unacked_max_together = 0  # as last changed; 0: no limit
        self.completing_read = False
        self.largest = 0  # number of effects of one event
        self.seen: list[Effect] = []

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return Now(self.monotonic, self.wall_ms)

    @property
    def end(self) -> int:
        return self.log[-1].last + 1 if self.log else 0

    def append(self, **fields: Any) -> Entry:
        fields = {"messages": 1, "size": 10, "data": b"", **fields}
        entry = Entry(offset=self.end, **fields)
        self.log.append(entry)
        return entry

    def remaining(self, entry: Entry) -> int:
        return self.cursor.remaining(entry.offset, entry.messages) if not self.acked(entry) else 0

    def acked(self, entry: Entry) -> bool:
        return self.cursor.is_acknowledged(entry.last)

    def at(self, offset: int) -> Entry:
        return next(entry for entry in self.log if entry.offset == offset)

    # -- events -------------------------------------------------------------------------------------------------------

    def join(self, name: str, permits: int = 0, **fields: Any) -> Consumer:
        consumer = Consumer(name, name, **fields)
        effects = self.dispatcher.add(consumer, self.now)
        self.consumers.append(consumer)
        self.permits[consumer] = 0
        self.carry_out(effects)
        if permits:
            self.flow(consumer, permits)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        del self.permits[consumer]
        self.holder = {offset: holder for offset, holder in self.holder.items() if holder is not consumer}
        if not self.consumers:
            self.nacks.clear()
            self.stale += [read for read in (self.read, self.replay) if read is not None]
            self.replay = None
        self.carry_out(self.dispatcher.remove(consumer, self.now))
        if not self.consumers:
            assert self.read is None
            self.alarm = None

    def flow(self, consumer: Consumer, permits: int) -> None:
        self.permits[consumer] += permits
        self.carry_out(self.dispatcher.flow(consumer, permits, self.now))

    def acknowledge(self, consumer: Consumer | None, entry: Entry, ack_set: Sequence[int] | None = None) -> None:
        newly = self.cursor.acknowledge(entry.offset, entry.messages, ack_set)
        if newly:
            whole = self.acked(entry)
            if whole:
                self.holder.pop(entry.offset, None)
                self.nacks.pop(entry.offset, None)
            if whole and entry.offset % 2:
                self.carry_out(self.dispatcher.acknowledged_whole([entry.offset], self.now))
            else:
                self.carry_out(self.dispatcher.acknowledged(consumer, entry.offset, newly, whole, self.now))

    def redeliver(self, consumer: Consumer, offsets: Sequence[int] | None) -> None:
        held = {offset for offset, holder in self.holder.items() if holder is consumer}
        for offset in held if offsets is None else held.intersection(offsets):
            del self.holder[offset]
            self.nacks[offset] = self.nacks.get(offset, 0) + 1
        self.carry_out(self.dispatcher.redeliver(consumer, offsets, self.now))

    def mark_delete(self, offset: int) -> None:
        if self.cursor.acknowledge_until(offset):
            for entry in self.log:
                if entry.offset < offset:
                    self.holder.pop(entry.offset, None)
                    self.nacks.pop(entry.offset, None)
            self.carry_out(self.dispatcher.marked_deleted(offset, self.now))

    def limit(self, per_consumer: int, together: int) -> None:
        """Other limits of what is not acknowledged; 0: none."""
        self.unacked_max, self.unacked_max_together = per_consumer, together
        settings = attrs.evolve(
            self.dispatcher._settings, unacked_max_per_consumer=per_consumer, unacked_max_per_subscription=together
        )
        self.carry_out(self.dispatcher.limit(settings, self.now))

    def pause(self, consumer: Consumer) -> None:
        consumer.writable = False

    def resume(self, consumer: Consumer) -> None:
        consumer.writable = True
        self.carry_out(self.dispatcher.writable(consumer, self.now))

    def advance(self, seconds: float) -> None:
        """Time passes; the timer goes off if it is due."""
        self.monotonic += seconds
        self.wall_ms += int(seconds * 1000)
        if self.alarm is not None and self.alarm <= self.monotonic:
            self.alarm = None
            self.carry_out(self.dispatcher.tick(self.now))

    # -- reads --------------------------------------------------------------------------------------------------------

    def readable(self, read: Read) -> list[Entry]:
        entries = []
        size = 0
        for entry in self.log[self.gone :]:
            if entry.last >= read.offset and len(entries) < read.max_entries:
                size += entry.size
                if entries and size > read.max_bytes:
                    break
                entries.append(entry)
        return entries

    def complete_read(self, *, failed: bool = False) -> bool:
        """False: it waits for an entry."""
        read = self.read
        if read is None:
            return False
        entries = self.readable(read)
        if not entries and not failed:
            return False
        self.read = None
        effects = self.dispatcher.read_done(read, [] if failed else entries, self.now, failed=failed)
        self.completing_read = True
        self.carry_out(effects)
        self.completing_read = False
        return True

    def complete_replay(self, *, failed: bool = False) -> bool:
        replay, self.replay = self.replay, None
        if replay is None:
            return False
        entries = [entry for entry in self.log[self.gone :] if entry.offset in replay.offsets]
        self.carry_out(self.dispatcher.replay_done(replay, [] if failed else entries, self.now, failed=failed))
        return True

    def complete_some(self) -> None:
        """What a cache would have answered by now."""
        for _ in range(10):
            if not (self.complete_replay() or self.complete_read()):
                break

    def complete_stale(self) -> None:
        stale = self.stale.pop(0)
        if isinstance(stale, Read):
            effects = self.dispatcher.read_done(stale, self.readable(stale), self.now)
        else:
            entries = [entry for entry in self.log if entry.offset in stale.offsets]
            effects = self.dispatcher.replay_done(stale, entries, self.now)
        assert effects == []

    # -- effects ------------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Sequence[Effect]) -> None:
        self.largest = max(self.largest, len(effects))
        self.seen += effects
        for effect in effects:
            if isinstance(effect, Deliver):
                self.deliver(effect.consumer, effect.deliveries)
            elif isinstance(effect, Read):
                assert self.read is None, "two reads are outstanding"
                assert effect.max_entries > 0 and effect.max_bytes > 0
                self.read = effect
            elif isinstance(effect, Replay):
                assert self.replay is None, "two replays are outstanding"
                assert list(effect.offsets) == sorted(set(effect.offsets)) != []
                self.replay = effect
            elif isinstance(effect, CancelRead):
                assert self.read is not None
                self.read = None
            elif isinstance(effect, WakeAt):
                assert effect.at >= self.monotonic
                self.alarm = effect.at
            else:
                assert isinstance(effect, Discard)
                for entry in effect.entries:
                    assert entry.marker
                    self.acknowledge(None, entry)

    def deliver(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        assert consumer in self.consumers, "delivered to who has left"
        assert deliveries
        for delivery in deliveries:
            entry = delivery.entry
            assert not self.acked(entry), "delivered although it is acknowledged"
            assert entry.offset not in self.holder, "delivered twice"
            assert not entry.marker
            assert entry.deliver_at_ms <= self.wall_ms + self.early_ms, "delivered too early"
            assert self.nacks.get(entry.offset, 0) == delivery.redelivery_count
            assert self.cursor.ack_set(entry.offset) == delivery.ack_set
            assert self.permits[consumer] > 0, "delivered without permits"
            self.check_order(consumer, entry)
            self.check_limits(consumer)
            self.holder[entry.offset] = consumer
            self.permits[consumer] -= self.remaining(entry)
            self.delivered.append((consumer, delivery))

    def check_order(self, consumer: Consumer, entry: Entry) -> None:
        """For subclasses."""

    def check_limits(self, consumer: Consumer) -> None:
        if not self.unacked_max and not self.unacked_max_together:
            return
        of_all = {offset: self.remaining(self.at(offset)) for offset in self.holder}
        own = sum(of_all[offset] for offset, holder in self.holder.items() if holder is consumer)
        assert not self.unacked_max or own < self.unacked_max, "more than a consumer may have"
        # As in Pulsar, entries that wait to be sent again may exceed this limit.
        if self.unacked_max_together and self.completing_read:
            assert sum(of_all.values()) < self.unacked_max_together, "something new, and more than all may have"

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        held: dict[Consumer, int] = dict.fromkeys(self.consumers, 0)
        for offset, consumer in self.holder.items():
            held[consumer] += self.remaining(self.at(offset))
        for consumer in self.consumers:
            assert self.permits[consumer] == consumer.permits, "permits leak"
        if not self.dispatcher._chores:
            for consumer in self.consumers:
                assert held[consumer] == consumer.unacked, "unacknowledged messages leak"
            assert sum(held.values()) == self.dispatcher.in_flight.unacked
        records = self.dispatcher.in_flight.records
        assert self.dispatcher.waiting == sum(record.owner is None for record in records.values())
        if not self.consumers:
            assert not records and not self.dispatcher.waiting and not self.dispatcher.delayed

    def settle(self, wait_s: float = 61.0) -> bool:
        """Complete what is outstanding and let time pass until nothing happens any more. False: nothing has happened."""
        before = len(self.delivered)
        for _ in range(3):
            turns = 0
            while self.complete_replay() or self.complete_read():
                turns += 1
                assert turns < 10 * len(self.log) + 100, "reads and sends nothing, for ever"
            self.advance(wait_s)
        return len(self.delivered) > before

    def drain(self) -> None:
        """With willing consumers everything is delivered and acknowledged: nothing is lost, and nothing stands still."""
        if not self.consumers:
            self.join("last")
        # From here on the consumers send only acknowledgements.
        for consumer in list(self.consumers):
            if not consumer.writable:
                self.resume(consumer)
            self.flow(consumer, 100_000)
        for _ in range(4 * len(self.log) + 10):
            self.settle()
            for offset in list(self.holder):
                if offset in self.holder:
                    self.acknowledge(self.holder[offset], self.at(offset))
            self.check()
            if all(self.acked(entry) for entry in self.log[self.gone :]):
                break
        left = [entry.offset for entry in self.log[self.gone :] if not self.acked(entry)]
        assert [] == left, "never delivered"


class Machine(RuleBasedStateMachine):
    """The subclass makes ``world`` before the first rule."""

    world: World
    # Reads complete at once, as from the cache, and do not wait for a rule.
    quick = True

    def begin(self, world: World, quick: bool, slice: int) -> None:
        self.world = world
        self.quick = quick
        world.dispatcher._chores.slice = slice
        for name, permits in (("a", 200), ("b", 40), ("c", 0)):
            world.join(name, permits)
        self.produce_many(30, 0)

    @property
    def consumers(self) -> list[Consumer]:
        return self.world.consumers

    def pick(self, number: int) -> Consumer:
        return self.consumers[number % len(self.consumers)]

    def some_entry(self, number: int) -> Entry:
        return self.world.log[number % len(self.world.log)]

    @rule(
        messages=st.sampled_from([1, 1, 1, 2, 5]),
        key=st.integers(0, KEYS - 1),
        delay_ms=st.sampled_from([0, 0, 0, 0, 1500, 4000]),
        marker=st.sampled_from([False] * 7 + [True]),
        chunk=st.sampled_from([None] * 5 + [0, 1, 2]),
    )
    def produce(self, messages: int, key: int, delay_ms: int, marker: bool, chunk: int | None) -> None:
        world = self.world
        world.append(
            messages=messages,
            sticky_hash=key * SPREAD,
            deliver_at_ms=world.wall_ms + delay_ms if delay_ms else 0,
            marker=marker,
            chunk=None if chunk is None else Chunk(bytes([key]), chunk, 3),
        )

    @rule(count=st.integers(1, 60), key=st.integers(0, 2))
    def produce_many(self, count: int, key: int) -> None:
        for number in range(count):
            self.world.append(sticky_hash=(key + number) % KEYS * SPREAD)

    @precondition(lambda self: len(self.consumers) < 5)
    @rule(name=st.sampled_from("abc"), priority=st.integers(0, 1), permits=st.sampled_from([0, 1, 7]))
    def join(self, name: str, priority: int, permits: int) -> None:
        self.world.join(name, permits, priority=priority)

    @precondition(lambda self: len(self.consumers) > 1)
    @rule(which=st.integers(0, 4))
    def leave(self, which: int) -> None:
        self.world.leave(self.pick(which))

    @precondition(lambda self: self.consumers)
    @rule(really=st.sampled_from([False] * 4 + [True]))
    def all_leave(self, really: bool) -> None:
        while really and self.consumers:
            self.world.leave(self.consumers[0])

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 4), permits=st.sampled_from([1, 2, 20, 1000, 2**32 - 1]))
    def flow(self, which: int, permits: int) -> None:
        self.world.flow(self.pick(which), permits)

    @rule(per_consumer=st.sampled_from([0, 1, 5, 40]), together=st.sampled_from([0, 1, 12, 100]))
    def limit(self, per_consumer: int, together: int) -> None:
        self.world.limit(per_consumer, together)

    @rule(failed=st.sampled_from([False, False, False, True]))
    def read_completes(self, failed: bool) -> None:
        self.world.complete_read(failed=failed)

    @rule(failed=st.sampled_from([False, False, False, True]))
    def replay_completes(self, failed: bool) -> None:
        self.world.complete_replay(failed=failed)

    @rule()
    def reads_complete(self) -> None:
        self.world.complete_some()

    @precondition(lambda self: self.world.stale)
    @rule()
    def stale_read_completes(self) -> None:
        self.world.complete_stale()

    @precondition(lambda self: self.world.holder)
    @rule(which=st.integers(0, 200), other=st.integers(0, 4), by_other=st.booleans())
    def acknowledge_held(self, which: int, other: int, by_other: bool) -> None:
        offset, holder = list(self.world.holder.items())[which % len(self.world.holder)]
        self.world.acknowledge(self.pick(other) if by_other else holder, self.world.at(offset))

    @precondition(lambda self: self.world.holder)
    @rule(which=st.integers(0, 4))
    def acknowledge_all(self, which: int) -> None:
        consumer = self.pick(which)
        for offset in [offset for offset, holder in self.world.holder.items() if holder is consumer]:
            if offset in self.world.holder:
                self.world.acknowledge(consumer, self.world.at(offset))

    @precondition(lambda self: self.world.log and self.consumers)
    @rule(which=st.integers(0, 500), other=st.integers(0, 4), bits=st.integers(0, 31))
    def acknowledge_anything(self, which: int, other: int, bits: int) -> None:
        """A part of a batch, or what was never delivered, or is acknowledged already."""
        self.world.acknowledge(self.pick(other), self.some_entry(which), [bits])

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 4), offsets=st.lists(st.integers(0, 300), max_size=10))
    def redeliver(self, which: int, offsets: list[int]) -> None:
        self.world.redeliver(self.pick(which), offsets)

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 4), first=st.booleans())
    def redeliver_held(self, which: int, first: bool) -> None:
        """The first that it holds, or everything."""
        consumer = self.pick(which)
        held = [offset for offset, holder in self.world.holder.items() if holder is consumer]
        self.world.redeliver(consumer, held[:1] if first else None)

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 4))
    def becomes_unwritable(self, which: int) -> None:
        self.world.pause(self.pick(which))

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 4))
    def becomes_writable(self, which: int) -> None:
        self.world.resume(self.pick(which))

    @precondition(lambda self: self.world.log)
    @rule(which=st.integers(0, 30))
    def skip(self, which: int) -> None:
        """The messages up to some entry have expired."""
        world = self.world
        first = next((at for at, entry in enumerate(world.log) if not world.acked(entry)), None)
        if first is not None:
            world.mark_delete(world.log[min(first + which, len(world.log) - 1)].offset)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 1.0, 5.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @invariant()
    def nothing_leaks(self) -> None:
        if self.quick:
            self.world.complete_some()
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()
            assert self.world.largest < 200
