"""Dispatch rates, against the sum of what may have been sent: of the limits alone, and of all dispatchers."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.dispatch.by_key import KeyShared
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery, DispatchSettings
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.dispatch.rate_limit import LOOK_AGAIN_S, UNLIMITED, DispatchRate, RateLimit
from broker.pulsar.dispatch.round_robin import Shared
from broker.pulsar.dispatch.single_active import Exclusive
from broker.pulsar.subscriptions.cursor import Cursor
from tests.pulsar.dispatch.world import KEYS, SPREAD, World


def test_allowance_without_limit_exceeds_any_read() -> None:
    limit = RateLimit([DispatchRate(), DispatchRate()])
    assert not limit.limited
    assert (UNLIMITED, UNLIMITED) == limit.available(0)
    assert not RateLimit().limited


def test_the_lowest_of_all_limits_holds() -> None:
    limit = RateLimit([DispatchRate(100, 1000), DispatchRate(10), DispatchRate(0, 500)])
    assert limit.limited
    assert (10, 500) == limit.available(0)
    limit.consumed(4, 100, 0)
    assert (6, 400) == limit.available(0)


def test_a_debt_is_carried() -> None:
    limit = RateLimit([DispatchRate(10)])
    limit.consumed(35, 0, 0.0)  # a batch
    for now in (0.0, 1.0, 2.0, 2.5):
        assert 0 == limit.available(now)[0]
    assert 1 == limit.available(2.61)[0]
    assert 10 == limit.available(100)[0]


def test_what_is_shared_is_used_up_by_all() -> None:
    topic = DispatchRate(10)
    one, other = RateLimit([topic]), RateLimit([topic])
    one.consumed(7, 0, 0)
    assert 3 == other.available(0)[0]


def test_a_rate_may_be_changed_and_removed() -> None:
    rate = DispatchRate(1)
    limit = RateLimit([rate])
    limit.consumed(1000, 0, 0)
    rate.set(50)
    assert 50 == limit.available(0)[0]
    rate.set(0)
    assert not limit.limited


def test_rate_applies_to_its_period() -> None:
    limit = RateLimit([DispatchRate(60, 0, 60)])
    limit.consumed(60, 0, 0)
    assert 0 == limit.available(0.5)[0]
    assert 30 == limit.available(30)[0]


RATES = st.tuples(st.sampled_from([0, 1, 3, 50]), st.sampled_from([0, 100, 5000]), st.sampled_from([0.5, 1.0, 10.0]))


@given(
    st.lists(RATES, max_size=3),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200), st.integers(1, 10_000)), max_size=30),
)
def test_in_the_long_run_no_rate_is_exceeded(
    rates: list[tuple[int, int, float]], steps: list[tuple[float, int, int]]
) -> None:
    limits = [DispatchRate(*rate) for rate in rates]
    limit = RateLimit(limits)
    now = 1000.0
    start = now
    sent = size = last_messages = last_size = 0
    for pause_s, messages, of_bytes in steps:
        now += pause_s
        if 0 in limit.available(now):
            assert now < limit.next_at(now) <= now + LOOK_AGAIN_S
            continue
        limit.consumed(messages, of_bytes, now)
        sent, size, last_messages, last_size = sent + messages, size + of_bytes, messages, of_bytes
        for rate, (_, _, period_s) in zip(limits, rates, strict=True):
            # All messages but the last were within the rate and what one period allows at once.
            if rate.messages_per_s:
                assert sent - last_messages <= rate.messages_per_s * (now - start + period_s) + 1e-6
            if rate.bytes_per_s:
                assert size - last_size <= rate.bytes_per_s * (now - start + period_s) + 1e-6


@pytest.mark.parametrize("rate", [(1, 0, 0.5), (0.3, 0, 1), (0, 7, 1), (1000, 1, 1)])
def test_whoever_waits_until_next_at_finds_something(rate: tuple[float, float, float]) -> None:
    limit = RateLimit([DispatchRate(*rate)])
    limit.consumed(3, 3, 0.0)
    now = 0.0
    for _ in range(1000):
        if 0 not in limit.available(now):
            break
        now = limit.next_at(now)
    assert 0 not in limit.available(now)


class Metered(World):
    """It notes when each entry was delivered."""

    sent: list[tuple[float, int, int]]  # monotonic s, messages, bytes

    def deliver(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        super().deliver(consumer, deliveries)
        self.sent += [(self.monotonic, one.entry.messages, one.entry.size) for one in deliveries]


def exclusive(cursor: Cursor, limit: RateLimit) -> Exclusive:
    return Exclusive(cursor, DispatchSettings(), limit)


def shared(cursor: Cursor, limit: RateLimit) -> ManyConsumers:
    return Shared(cursor, DispatchSettings(), limit=limit)


def key_shared(cursor: Cursor, limit: RateLimit) -> KeyShared:
    return KeyShared(cursor, DispatchSettings(), limit=limit)


@pytest.mark.parametrize("make", [exclusive, shared, key_shared])
@given(
    rate=st.sampled_from([(50, 0), (3, 0), (0, 5000), (50, 5000)]),
    batches=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    waiting=st.booleans(),
    again=st.booleans(),
)
def test_only_the_last_entry_exceeds_the_rate(
    make: Callable[[Cursor, RateLimit], ManyConsumers],
    rate: tuple[int, int],
    batches: list[int],
    waiting: bool,
    again: bool,
) -> None:
    """However many messages the entries have, ``waiting``: if the read has waited for them, and ``again``: if they are
    delivered once more."""
    cursor = Cursor()
    world = Metered(make(cursor, RateLimit([DispatchRate(*rate)])), cursor)
    world.sent = []
    if waiting:
        world.join("a", permits=100_000)
        world.advance(10)
    for number, messages in enumerate(batches):
        world.append(messages=messages, size=100 * messages, sticky_hash=number % KEYS * SPREAD)
    if not waiting:
        world.join("a", permits=100_000)
    start, wanted = world.monotonic, len(batches) * (1 + again)
    nacked = not again
    while len(world.sent) < wanted:
        assert world.monotonic < start + 4000, "nothing comes any more"
        world.complete_some()
        if not nacked and len(world.sent) == len(batches):
            nacked = True
            world.redeliver(world.consumers[0], None)
            if make is exclusive:
                world.holder.clear()
                world.nacks.clear()
        world.advance(0.05)
    for per_second, of in zip(rate, (1, 2), strict=True):
        before = 0
        for each in world.sent:
            assert not per_second or before <= per_second * (each[0] - start + 1) + 1e-6
            before += each[of]
