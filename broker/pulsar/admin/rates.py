"""How fast counters grow: the rates in statistics, from samples that are taken while somebody asks for statistics.

A rate is that of the last 10 to 20 s, or, where there are no two samples yet, the average since the producer or consumer has
connected. The first question begins the sampling, and it ends when nobody has asked for a while; so what nobody looks at costs
nothing. Samples are taken on the waker's thread, one topic at a time.

Any thread. The lock guards the samples and is held for moments.

Tests: tests/pulsar/admin/test_rates.py.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from broker.pulsar.context import PulsarContext
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.producers.producer import Producer
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topics.topic import Topic
from broker.runtime.threads import Lock

_INTERVAL_S: Final = 10.0
# Nobody has asked for so long: no more samples.
_ASKED_S: Final = 300.0
# The counters of something that has just begun say little about a second.
_SHORTEST_S: Final = 1.0

Counted = Producer | ConnectedConsumer | NonPersistentSubscription
Counts = Sequence[int]


class _Sample(NamedTuple):
    at_ms: int  # wall clock
    counts: Counts


def counts_of(one: Counted) -> Counts:
    """Messages and bytes; of a consumer also messages that were delivered again, of a subscription those that were dropped."""
    if isinstance(one, Producer):
        return one.messages_in, one.bytes_in
    if isinstance(one, ConnectedConsumer):
        return one.messages_out, one.bytes_out, one.redelivered
    return one.messages_out, one.bytes_out, one.dropped


class Rates:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context
        self._line = context.subscriptions.waker.line()
        self._lock = Lock()
        # The last sample but one, if there is one, and the last.
        self._samples: WeakKeyDictionary[Counted, tuple[_Sample | None, _Sample]] = WeakKeyDictionary()
        self._asked_at = 0.0
        self._sampling = False

    def of(self, one: Counted, since_ms: int) -> Sequence[float]:
        """How much each of its counts grows in a second. ``since_ms``: since when it counts (wall clock)."""
        self._ask()
        counts = counts_of(one)
        with self._lock:
            samples = self._samples.get(one)
        before = (samples and samples[0]) or _Sample(since_ms, (0,) * len(counts))
        passed_s = max(_SHORTEST_S, (self._context.clock.time_ms() - before.at_ms) / 1000)
        return [(count - old) / passed_s for count, old in zip(counts, before.counts, strict=True)]

    def _ask(self) -> None:
        with self._lock:
            self._asked_at = self._context.clock.monotonic()
            if self._sampling:
                return
            self._sampling = True
        self._line.call(self._sample)

    def _sample_later(self) -> None:
        at = self._context.clock.monotonic() + _INTERVAL_S
        self._context.timer.at(at, partial(self._line.call, self._sample))

    def _sample(self) -> None:
        """On the waker's thread."""
        with self._lock:
            if self._context.clock.monotonic() - self._asked_at > _ASKED_S:
                self._sampling = False
                self._samples.clear()
                return
        topics: list[Topic | NonPersistentTopic] = [*self._context.topics.loaded()]
        topics += self._context.nonpersistent.loaded()
        for topic in topics:
            self._line.call(partial(self._sample_topic, topic))
        self._line.call(self._sample_later)

    def _sample_topic(self, topic: Topic | NonPersistentTopic) -> None:
        with topic.lock:
            producers, subscriptions = list(topic.producers), list(topic.subscriptions.values())
        now_ms = self._context.clock.time_ms()
        for producer in producers:
            if isinstance(producer, Producer):
                self._add(producer, now_ms)
        for subscription in subscriptions:
            if isinstance(subscription, NonPersistentSubscription):
                self._add(subscription, now_ms)
            if isinstance(subscription, Subscription | NonPersistentSubscription):
                with subscription.lock:
                    consumers: list[ConnectedConsumer] = list(subscription.connected)
                for consumer in consumers:
                    self._add(consumer, now_ms)

    def _add(self, one: Counted, now_ms: int) -> None:
        sample = _Sample(now_ms, counts_of(one))
        with self._lock:
            before = self._samples.get(one)
            self._samples[one] = (before and before[1], sample)
