"""Shared, event by event, and against a model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, Deliver, Now, Read, Replay
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.dispatch.shared import Shared
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor
from tests.pulsar.dispatch.world import Machine, World

NOW = Now(1.0, 1_000)


def entry(offset: int, messages: int = 1) -> Entry:
    return Entry(offset=offset, messages=messages, size=10, data=b"x" * 10, publish_ms=0)


def test_a_read_goes_to_the_consumer_that_gave_permits() -> None:
    shared = Shared(Cursor(), DispatchSettings())
    consumer = Consumer(1, "a")
    assert [] == shared.add(consumer, NOW)
    (read,) = shared.flow(consumer, 2, NOW)
    assert read == Read(0, 2, 5 * 1024 * 1024, 1)
    deliver, *rest = shared.read_done(read, [entry(0), entry(1)], NOW)
    assert isinstance(deliver, Deliver)
    assert [0, 1] == [delivery.entry.offset for delivery in deliver.deliveries]
    assert [] == rest
    assert (0, 2) == (consumer.permits, consumer.unacked)
    assert [] == shared.acknowledged(consumer, 0, 1, True, NOW)
    assert [] == shared.redeliver(consumer, [1], NOW)
    (replay,) = shared.flow(consumer, 1, NOW)
    assert isinstance(replay, Replay)
    (deliver,) = shared.replay_done(replay, [entry(1)], NOW)
    assert isinstance(deliver, Deliver)
    assert [(1, 1)] == [(delivery.entry.offset, delivery.redelivery_count) for delivery in deliver.deliveries]


class SharedMachine(Machine):
    @initialize(
        limits=st.sampled_from([(50_000, 200_000, 40_000), (5, 12, 40_000), (1, 1, 40_000), (30, 100, 3)]),
        batch=st.sampled_from([100, 7]),
        quick=st.booleans(),
    )
    def start(self, limits: tuple[int, int, int], batch: int, quick: bool) -> None:
        cursor = Cursor()
        per_consumer, per_subscription, look_ahead = limits
        config = DispatchSettings(
            unacked_max_per_consumer=per_consumer,
            unacked_max_per_subscription=per_subscription,
            look_ahead_max=look_ahead,
            read_entries_max=batch,
        )
        self.begin(World(Shared(cursor, config, DelayedTracker()), cursor), quick)


TestShared = SharedMachine.TestCase
TestShared.settings = settings(stateful_step_count=60, deadline=None)
