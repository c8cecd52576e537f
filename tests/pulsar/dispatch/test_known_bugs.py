"""Bugs that brokers with these dispatchers have had, as events: the numbers are Pulsar's issues. Each test says how the
obvious implementation fails it.

Bugs of single-active subscriptions and of cursors are tested with those.
"""

from typing import Any

import pytest

from broker.pulsar.dispatch.by_key import KeyShared
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, DispatchSettings
from broker.pulsar.dispatch.round_robin import Shared
from broker.pulsar.entry import Chunk
from broker.pulsar.subscriptions.cursor import Cursor
from tests.pulsar.dispatch.world import SPREAD, World


def shared(**limits: Any) -> World:
    cursor = Cursor()
    return World(Shared(cursor, DispatchSettings(**limits), DelayedTracker()), cursor)


def key_shared(**limits: Any) -> World:
    cursor = Cursor()
    return World(KeyShared(cursor, DispatchSettings(**limits), DelayedTracker()), cursor)


def offsets(world: World, consumer: Consumer) -> list[int]:
    """What the consumer has been sent, in that order."""
    return [delivery.entry.offset for receiver, delivery in world.delivered if receiver is consumer]


# -- permits ----------------------------------------------------------------------------------------------------------


def test_permits_of_departed_consumers_are_discounted_26288() -> None:
    """With a total beside the consumers' own counts, to which permits are added in a queued task, a consumer that leaves
    between the two takes away what was never added. After some churn the total is negative, and nothing is read any more."""
    world = shared()
    for number in range(100):
        consumer = world.join(f"c{number}", permits=1000)
        if number % 2:
            world.flow(consumer, 500)
        world.leave(consumer)
    world.append()
    last = world.join("last", permits=1)
    world.settle()
    assert [0] == offsets(world, last)
    world.check()


def test_overdrawing_batch_does_not_starve_others_6054() -> None:
    """A batch is sent to a consumer with one permit, whose count becomes -999. Where the total decides, it is negative then,
    and the consumer with five permits gets nothing."""
    world = shared()
    first, second = world.join("a", permits=1), world.join("b", permits=5)
    world.append(messages=1000)
    for _ in range(5):
        world.append()
    world.settle()
    assert -999 == first.permits
    assert [1000, 1001, 1002, 1003, 1004] == offsets(world, second)
    world.flow(first, 1000)
    world.append()
    world.settle()
    assert [0, 1005] == offsets(world, first)


def test_permits_that_are_given_while_blocked_count_3131() -> None:
    """Put aside until the consumer is unblocked, they are lost if that happens by another way than the one that adds them."""
    world = shared(unacked_max_per_consumer=2)
    for _ in range(6):
        world.append()
    consumer = world.join("a", permits=2)
    world.settle()
    assert consumer.blocked
    world.flow(consumer, 2)
    assert 2 == consumer.permits
    world.redeliver(consumer, None)
    world.settle()
    assert [0, 1, 0, 1] == offsets(world, consumer)
    world.flow(consumer, 2)
    for offset in (0, 1):
        world.acknowledge(consumer, world.at(offset))
    world.settle()
    assert [2, 3] == offsets(world, consumer)[4:]


# -- limits of unacknowledged messages --------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["unacked_max_per_consumer", "unacked_max_per_subscription"])
def test_batch_over_limit_does_not_block_forever_22657(limit: str) -> None:
    """Where a consumer must be below the limit by the whole batch, the batch is never sent; where it is unblocked by
    comparing with the limit before the batch, never again."""
    world = shared(**{limit: 10})
    world.append(messages=100)
    world.append(messages=100)
    consumer = world.join("a", permits=1000)
    world.settle()
    assert [0] == offsets(world, consumer)
    world.acknowledge(consumer, world.at(0), [(1 << 6) - 1])  # six messages remain
    world.settle()
    assert [0] == offsets(world, consumer)
    world.acknowledge(consumer, world.at(0), [(1 << 5) - 1])
    world.settle()
    assert [0, 100] == offsets(world, consumer)


def test_a_full_subscription_replays_and_reads_nothing_new() -> None:
    """Where the limit stops everything, what was handed back is never sent again: the limit is never left."""
    world = shared(unacked_max_per_subscription=4)
    for _ in range(10):
        world.append()
    first, second = world.join("a", permits=4), world.join("b")
    world.settle()
    assert world.dispatcher.in_flight.blocked
    world.flow(second, 100)
    assert world.read is None
    world.redeliver(first, [3])
    world.settle()
    assert [3] == offsets(world, second)
    for offset in (0, 1):
        world.acknowledge(first, world.at(offset))
    world.settle()
    assert [3, 4, 5] == offsets(world, second)


def test_unacknowledged_messages_are_counted_right_whoever_acknowledges_25581() -> None:
    """Counted by commands instead of by what is still held, the number leaks or becomes negative: by acknowledgements of the
    same batch in parts, after a negative acknowledgement, by another consumer, and when the cursor jumps."""
    world = shared()
    for _ in range(6):
        world.append(messages=10)
    first, second = world.join("a", permits=20), world.join("b", permits=40)
    world.settle()
    assert (20, 40) == (first.unacked, second.unacked)
    world.acknowledge(first, world.at(0), [0b1111100000])
    world.acknowledge(first, world.at(0), [0b1111100000])
    world.acknowledge(first, world.at(0), [0b1111000000])
    assert 14 == first.unacked
    world.redeliver(first, [0])  # it is acknowledged all the same afterwards
    assert 10 == first.unacked
    world.acknowledge(first, world.at(0))
    world.acknowledge(second, world.at(10))  # `first` holds this entry
    assert 0 == first.unacked
    world.acknowledge(second, world.at(20), [0b1])
    world.mark_delete(40)  # `second` holds two of these, one in part
    assert 20 == second.unacked == world.dispatcher.in_flight.unacked
    world.leave(second)
    world.check()
    assert 0 == world.dispatcher.in_flight.unacked


# -- the order of keys ------------------------------------------------------------------------------------------------


def owner_of(world: World, key: int) -> Consumer:
    """Who gets the next entry with this key."""
    ranges = world.dispatcher._assignment._ranges  # type: ignore[attr-defined]
    owner = ranges.owner(ranges.reduce(key * SPREAD))
    assert isinstance(owner, Consumer)
    return owner


def test_pending_read_waits_for_departed_consumers_entries_12885() -> None:
    """The consumer with m0 to m9 leaves while m10 is being read. Sent as it comes, m10 reaches the new owner before m0."""
    world = key_shared()
    for _ in range(10):
        world.append(sticky_hash=7)
    first, second = world.join("a"), world.join("b")
    if owner_of(world, 0) is not first and owner_of(world, 7) is not first:
        first, second = second, first
    for consumer in (first, second):
        world.flow(consumer, 100)
    world.settle()
    (holder,) = set(world.holder.values())
    other = second if holder is first else first
    assert world.read is not None  # the read waits for m10
    world.append(sticky_hash=7)
    world.leave(holder)
    world.complete_read()
    world.settle()
    assert list(range(11)) == offsets(world, other)


def test_key_is_never_at_two_consumers_23307() -> None:
    """New consumers take over keys of which an older consumer still has entries. Sent by the hash alone, later entries of the
    key reach the new one before the older one has handled the earlier ones."""
    world = key_shared()
    old = world.join("old", permits=1000)
    keys = 40
    for key in range(keys):
        world.append(sticky_hash=key * SPREAD)
    world.settle()
    new = world.join("new", permits=1000)
    moved = [key for key in range(keys) if owner_of(world, key) is new]
    assert moved and len(moved) < keys
    for key in range(keys):
        world.append(sticky_hash=key * SPREAD)
    world.settle()
    assert [keys + key for key in range(keys) if key not in moved] == offsets(world, old)[keys:]
    assert [] == offsets(world, new)
    world.acknowledge(old, world.at(moved[0]))
    world.settle()
    assert [keys + moved[0]] == offsets(world, new)
    world.leave(old)  # the older consumer crashes
    world.settle()
    for key in moved[1:]:
        assert [key, keys + key] == [offset for offset in offsets(world, new) if offset % keys == key]


def test_returning_key_stays_with_current_holder_23307() -> None:
    """A hash that drains from `old` goes back to it when `new` leaves. Kept in a list of draining hashes, it waits for
    ever."""
    world = key_shared()
    old = world.join("old", permits=1000)
    for key in range(40):
        world.append(sticky_hash=key * SPREAD)
    world.settle()
    new = world.join("new", permits=1000)
    for key in range(40):
        world.append(sticky_hash=key * SPREAD)
    world.settle()
    assert len(offsets(world, old)) < 80
    world.leave(new)
    world.settle()
    assert sorted(offsets(world, old)) == list(range(80))


def test_order_holds_when_an_entry_is_handed_back() -> None:
    """Pulsar forgets the key of an entry that is handed back by its id, so entries after it are sent before it."""
    world = key_shared()
    for _ in range(3):
        world.append(sticky_hash=7)
    consumer = world.join("a", permits=3)
    world.settle()
    world.redeliver(consumer, [1])
    world.append(sticky_hash=7)
    world.flow(consumer, 1)
    world.settle()
    assert [0, 1, 2, 1] == offsets(world, consumer)
    world.flow(consumer, 1)
    world.settle()
    assert [0, 1, 2, 1, 3] == offsets(world, consumer)


def test_a_hot_key_does_not_block_the_others() -> None:
    """Read in order and sent in order, everything waits for the consumer with the hot key (PIP-474)."""
    world = key_shared()
    consumers = [world.join(name) for name in "abc"]
    hot = owner_of(world, 1)
    others = [consumer for consumer in consumers if consumer is not hot]
    for number in range(2000):
        world.append(sticky_hash=SPREAD if number % 2 else number * SPREAD)
    world.flow(hot, 1)
    for other in others:
        world.flow(other, 100_000)
    world.settle()
    expected = [entry.offset for entry in world.log if owner_of_entry(world, entry.sticky_hash) in others]
    assert expected == sorted(offset for other in others for offset in offsets(world, other))
    assert 1 == len(offsets(world, hot))


def owner_of_entry(world: World, sticky_hash: int) -> object:
    ranges = world.dispatcher._assignment._ranges  # type: ignore[attr-defined]
    return ranges.owner(ranges.reduce(sticky_hash))


def test_look_ahead_is_bounded_and_resumes_with_room() -> None:
    """Reading on for other consumers, a broker keeps everything that a consumer without permits does not take."""
    world = key_shared(look_ahead_per_consumer=10, look_ahead_max=40)
    first, second = world.join("a"), world.join("b")
    stuck = owner_of(world, 1)
    free = second if stuck is first else first
    for _ in range(100):
        world.append(sticky_hash=SPREAD)
    world.flow(free, 1000)
    world.settle()
    assert 20 == world.dispatcher.waiting
    assert world.read is None
    world.flow(stuck, 1000)
    world.settle()
    assert list(range(100)) == offsets(world, stuck)


# -- what stands still ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [shared, key_shared])
def test_due_entry_does_not_wait_for_produce_21554(make: Any) -> None:
    """A read waits at the end of the log. Where only one read may be outstanding, what becomes due waits for it."""
    world = make()
    consumer = world.join("a", permits=10)
    world.append(deliver_at_ms=world.wall_ms + 5_000)
    world.complete_read()
    assert world.read is not None
    assert world.alarm is not None
    world.advance(6.0)
    world.complete_replay()
    assert [0] == offsets(world, consumer)


@pytest.mark.parametrize("make", [shared, key_shared])
def test_redelivery_does_not_wait_for_produce_26236(make: Any) -> None:
    """The same with an entry that is handed back."""
    world = make()
    world.append()
    consumer = world.join("a", permits=10)
    world.complete_read()
    assert world.read is not None
    world.redeliver(consumer, [0])
    world.complete_replay()
    assert [0, 0] == offsets(world, consumer)


def test_strict_delays_need_no_second_event_26012() -> None:
    """With the timer set a little before the bucket is due, nothing is due when it goes off, and nobody sets it again."""
    cursor = Cursor()
    world = World(Shared(cursor, DispatchSettings(), DelayedTracker(strict=True)), cursor, early_ms=0)
    consumer = world.join("a", permits=10)
    world.append(deliver_at_ms=world.wall_ms + 1_300)
    world.complete_read()
    for _ in range(300):
        world.advance(0.01)
        world.complete_replay()
    assert [0] == offsets(world, consumer)


def test_a_read_without_entries_is_repeated_5877() -> None:
    """Where the next read begins with the entries of this one, none begins after a read that found none."""
    world = shared()
    consumer = world.join("a", permits=10)
    read, world.read = world.read, None
    assert read is not None
    world.carry_out(world.dispatcher.read_done(read, [], world.now))
    world.append()
    assert world.read is None  # a read at once would spin
    world.advance(1.0)
    world.complete_read()
    assert [0] == offsets(world, consumer)


def test_consumer_churn_leaves_no_read_outstanding_6966() -> None:
    """The flag that a read is outstanding survives its cancellation, and no further read is ever begun."""
    world = shared()
    for number in range(10):
        consumer = world.join(f"c{number}", permits=1)
        assert world.read is not None
        world.leave(consumer)
        assert world.read is None
    world.append()
    assert [0] == offsets(world, settled(world, world.join("last", permits=1)))


def settled(world: World, consumer: Consumer) -> Consumer:
    world.settle()
    return consumer


def test_read_completed_without_consumers_changes_nothing_26174() -> None:
    """The read of consumers that have left completes after a new one has begun to read. It delivers what is delivered again
    by the new read, and it clears the flag of a read that is still outstanding."""
    world = shared()
    world.append()
    world.append()
    world.leave(world.join("a", permits=10))
    consumer = world.join("b", permits=10)
    world.complete_stale()
    assert [] == offsets(world, consumer)
    assert world.read is not None
    world.settle()
    assert [0, 1] == offsets(world, consumer)


def test_partly_acknowledged_batch_is_not_repeated_after_resubscribing() -> None:
    """A rewind that keeps what was to be replayed delivers it once for the replay and once for the read."""
    world = shared()
    world.append(messages=3)
    first = world.join("a", permits=10)
    world.settle()
    world.acknowledge(first, world.at(0), [0b110])
    world.redeliver(first, None)
    world.leave(first)
    second = world.join("b", permits=10)
    world.settle()
    assert [0] == offsets(world, second)
    assert (8, 2) == (second.permits, second.unacked)


def test_chunks_wait_for_consumer_of_earlier_chunks() -> None:
    """Replayed at once, they are read again and again while that consumer has no permits; sent to another one, nobody can put
    the message together."""
    world = shared(turn_messages=1)
    for number in range(3):
        world.append(chunk=Chunk(b"uuid", number, 3))
    first, second = world.join("a", permits=1), world.join("b", permits=10)
    world.append()
    reads = 0
    while world.complete_read() or world.complete_replay():
        reads += 1
    assert reads < 5
    assert [0] == offsets(world, first)
    assert [3] == offsets(world, second)
    world.flow(first, 10)
    world.settle()
    assert [0, 1, 2] == offsets(world, first)


def test_chunks_move_together_when_their_consumer_leaves() -> None:
    """Where the table of messages keeps a consumer that has left, their chunks wait for ever."""
    world = shared(turn_messages=1)
    for number in range(3):
        world.append(chunk=Chunk(b"uuid", number, 3))
    first, second, third = world.join("a", permits=1), world.join("b", permits=10), world.join("c", permits=10)
    world.settle()
    world.leave(first)
    world.settle()
    assert [0, 1, 2] in (offsets(world, second), offsets(world, third))


def test_chunks_that_are_replayed_wait_as_well() -> None:
    """Put back into the queue, a chunk for a consumer without permits is replayed for ever."""
    world = shared()
    for number in range(3):
        world.append(chunk=Chunk(b"uuid", number, 3))
    first, second = world.join("a", permits=3), world.join("b")
    world.settle()
    world.redeliver(first, None)
    world.flow(first, 1)
    world.flow(second, 10)
    turns = 0
    while world.complete_replay():
        turns += 1
        assert turns < 5
    assert [0, 1, 2, 0] == offsets(world, first)
    assert [] == offsets(world, second)
    world.flow(first, 10)
    world.settle()
    assert [0, 1, 2, 0, 1, 2] == offsets(world, first)


def test_pending_replay_does_not_overtake_redelivery_12885() -> None:
    """m1 is being read again when m0 is handed back. Sent as it comes, m1 is sent before m0."""
    world = key_shared()
    consumers = world.join("a"), world.join("b")
    mine = owner_of(world, 1)
    (other,) = set(consumers) - {mine}
    for _ in range(2):
        world.append(sticky_hash=SPREAD)
    world.flow(mine, 1)
    world.settle()
    world.flow(other, 10)
    world.settle()
    world.flow(mine, 10)
    assert world.replay is not None
    assert [1] == list(world.replay.offsets)
    world.redeliver(mine, [0])
    world.settle()
    assert [0, 0, 1] == offsets(world, mine)


def test_new_consumer_gets_entries_of_stalled_consumer_8115() -> None:
    """What waits for a consumer without permits stays there when its keys get another owner, until it gives permits."""
    world = key_shared()
    stuck, free = world.join("a"), world.join("b", permits=1000)
    for key in range(100):
        world.append(sticky_hash=key * SPREAD)
    world.settle()
    waiting = [entry for entry in world.log if entry.offset not in offsets(world, free)]
    new = world.join("new", permits=1000)
    world.settle()
    moved = [entry.offset for entry in waiting if owner_of_entry(world, entry.sticky_hash) is new]
    assert moved
    assert moved == offsets(world, new)
    assert [] == offsets(world, stuck)


def test_blocked_consumer_does_not_block_subscription() -> None:
    """Looking only at the consumer that has acknowledged, one misses that the subscription is below its limit again."""
    world = shared(unacked_max_per_consumer=4, unacked_max_per_subscription=20)
    world.append(messages=20)
    for _ in range(3):
        world.append()
    first = world.join("a", permits=100)
    world.settle()
    second = world.join("b", permits=100)
    assert world.dispatcher.in_flight.blocked
    world.acknowledge(first, world.at(0), [(1 << 10) - 1])
    assert first.blocked
    world.settle()
    assert [20, 21, 22] == offsets(world, second)


@pytest.mark.parametrize("make", [shared, key_shared])
def test_timer_is_set_again_for_returning_consumers(make: Any) -> None:
    """The subscription forgets the timer with its last consumer. A dispatcher that thinks it is still set does not ask for
    it."""
    world = make()
    world.append(deliver_at_ms=world.wall_ms + 10_000)
    consumer = world.join("a", permits=10)
    world.settle(0.0)
    world.leave(consumer)
    assert world.alarm is None
    consumer = world.join("b", permits=10)
    world.settle(0.0)
    world.advance(11.0)
    world.settle(0.0)
    assert [0] == offsets(world, consumer)
