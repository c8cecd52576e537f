"""The metrics of the Pulsar service, by the names that Pulsar's brokers use.

All of them are computed when metrics are read, by a walk over the topics in use. It holds a topic's lock while it copies its
producers and subscriptions, and a subscription's lock for about a microsecond per consumer. There is at most one walk every few
seconds, and it pauses now and then. Rates are the growth between two walks. The busiest topics, and the subscriptions with the
largest backlogs, have their own series; the rest is summed.

The label ``topic`` is the whole name, as in Pulsar: ``persistent://tenant/namespace/topic``.

Tests: tests/metrics/test_moving.py.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from math import inf

import attrs

from broker.metrics import Labels, Registry, names
from broker.metrics.metric import Cached, Metric
from broker.metrics.names import OTHER
from broker.metrics.registry import BoundedCounter, Chosen, summed
from broker.pulsar.context import PulsarContext
from broker.pulsar.entries.cache import EntryCache
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.subscriptions.operations import SubscriptionFigures, figures
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topics.topic import AnySubscription, Topic
from broker.runtime.threads import Event

_TOPICS_MAX = 200
_SUBSCRIPTIONS_MAX = 1_000
# Subscriptions that a walk reads; further subscriptions are not counted.
_LOOKED_MAX = 20_000
# The maximum age (s) of the figures.
_AGE_S = 5.0
# The shortest time (s) over which a rate is measured.
_RATE_LEAST_S = 1.0
# Topics or subscriptions between two pauses, some 0.2 ms, and the length (s) of a pause.
_PIECE = 20
_PAUSE_S = 0.0005


@attrs.define
class _Topic:
    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    size: float = 0.0
    backlog: float = 0.0
    producers: float = 0.0
    consumers: float = 0.0
    subscriptions: float = 0.0


_COUNTERS = {
    names.PULSAR_IN_MESSAGES: "messages_in",
    names.PULSAR_IN_BYTES: "bytes_in",
    names.PULSAR_OUT_MESSAGES: "messages_out",
    names.PULSAR_OUT_BYTES: "bytes_out",
}
_GAUGES = {
    names.PULSAR_STORAGE_SIZE: "size",
    names.PULSAR_MSG_BACKLOG: "backlog",
    names.PULSAR_PRODUCERS: "producers",
    names.PULSAR_CONSUMERS: "consumers",
    names.PULSAR_SUBSCRIPTIONS: "subscriptions",
}
_RATES = {
    names.PULSAR_RATE_IN: 0,
    names.PULSAR_THROUGHPUT_IN: 1,
    names.PULSAR_RATE_OUT: 2,
    names.PULSAR_THROUGHPUT_OUT: 3,
}
_RATES_OF_SUBSCRIPTION = {names.PULSAR_SUBSCRIPTION_RATE_OUT: 0, names.PULSAR_SUBSCRIPTION_THROUGHPUT_OUT: 1}
_OF_SUBSCRIPTION: Mapping[Metric, Callable[[SubscriptionFigures], float]] = {
    names.PULSAR_SUBSCRIPTION_BACK_LOG: lambda each: each.backlog,
    names.PULSAR_SUBSCRIPTION_UNACKED: lambda each: each.unacked,
    names.PULSAR_SUBSCRIPTION_CONSUMERS: lambda each: len(each.consumers),
    names.PULSAR_SUBSCRIPTION_PERMITS: lambda each: sum(max(0, consumer.permits) for consumer in each.consumers),
    names.PULSAR_SUBSCRIPTION_BLOCKED: lambda each: any(consumer.blocked for consumer in each.consumers),
}

Values = Mapping[Metric, Mapping[Labels, float]]


Counts = tuple[float, ...]


class _Growth:
    """The growth of counters between walks. A counter that is seen for the first time has no rate yet, because it may have been
    counting for a long time."""

    def __init__(self) -> None:
        self._rates: dict[Labels, Counts] = {}
        self._before: Mapping[Labels, Counts] = {}
        self._measured_at = -inf

    def of(self, counts: Mapping[Labels, Counts], now: float) -> Mapping[Labels, Counts]:
        """Rates per second. Shortly after a walk, its rates are returned again."""
        elapsed_s = now - self._measured_at
        if elapsed_s >= _RATE_LEAST_S:
            self._rates = {
                labels: tuple(max(0.0, count - old) / elapsed_s for count, old in zip(present, before, strict=True))
                for labels, present in counts.items()
                if (before := self._before.get(labels)) is not None
            }
            self._before, self._measured_at = counts, now
        return {labels: self._rates.get(labels) or (0.0,) * len(present) for labels, present in counts.items()}


class PulsarMetrics:
    def __init__(self, context: PulsarContext, cache: EntryCache) -> None:
        self._context = context
        self._cache = cache
        self._chosen = Chosen(_TOPICS_MAX)
        self._counters = {metric: BoundedCounter() for metric in _COUNTERS}
        self._growth, self._growth_of_subscriptions = _Growth(), _Growth()
        self._found = Cached(self._walk, context.clock.monotonic, _AGE_S)

    def register(self, registry: Registry) -> None:
        for metric in _COUNTERS:
            registry.read_counter(metric, partial(self._read, metric))
        for metric in (*_GAUGES, *_RATES, *_OF_SUBSCRIPTION, *_RATES_OF_SUBSCRIPTION, names.PULSAR_TOPICS):
            registry.gauge(metric, partial(self._read, metric))
        registry.gauge(names.PULSAR_CACHE_BYTES, lambda: {(): self._cache.bytes})

    def _read(self, metric: Metric) -> Mapping[Labels, float]:
        return self._found.get()[metric]

    def _walk(self) -> Values:
        topics: dict[str, _Topic] = {}
        subscriptions: list[tuple[Labels, SubscriptionFigures]] = []
        sent: dict[Labels, Counts] = {}
        loaded: list[Topic | NonPersistentTopic] = [
            *self._context.topics.loaded(),
            *self._context.nonpersistent.loaded(),
        ]
        for number, topic in enumerate(loaded):
            if not number % _PIECE:
                _pause()
            name = str(topic.name)
            with topic.lock:
                counts = topics[name] = _Topic(producers=len(topic.producers))
                attached: list[AnySubscription] = [*topic.subscriptions.values()]
            if isinstance(topic, Topic):
                state = topic.log.state
                counts.messages_in = state.log_end_offset - state.first_offset
                counts.bytes_in = state.appended_bytes
                counts.size = topic.log.size_bytes()
            else:
                counts.messages_in, counts.bytes_in = topic.messages_in, topic.bytes_in
            counts.subscriptions = len(attached)
            for subscription in attached:
                counts.consumers += subscription.consumer_count
                if isinstance(subscription, NonPersistentSubscription):
                    counts.messages_out += subscription.messages_out
                    counts.bytes_out += subscription.bytes_out
                if not isinstance(subscription, Subscription) or len(subscriptions) >= _LOOKED_MAX:
                    continue
                if not len(subscriptions) % _PIECE:
                    _pause()
                seen = figures(subscription)
                messages = subscription.messages_out_before + sum(each.messages_out for each in seen.consumers)
                size = subscription.bytes_out_before + sum(each.bytes_out for each in seen.consumers)
                subscriptions.append(((name, seen.name), seen))
                sent[name, seen.name] = messages, size
                counts.messages_out += messages
                counts.bytes_out += size
                counts.backlog += seen.backlog
        return self._values(topics, subscriptions, sent)

    def _values(
        self,
        topics: Mapping[str, _Topic],
        subscriptions: list[tuple[Labels, SubscriptionFigures]],
        sent: Mapping[Labels, Counts],
    ) -> Values:
        """``sent``: messages and bytes to the consumers of each subscription."""
        activity = {name: each.bytes_in + each.bytes_out for name, each in topics.items()}
        now = self._context.clock.monotonic()
        chosen = self._chosen.choose(activity, now)
        values: dict[Metric, Mapping[Labels, float]] = {names.PULSAR_TOPICS: {(): len(topics)}}
        for metric, field in _COUNTERS.items():
            totals = {name: getattr(each, field) for name, each in topics.items()}
            values[metric] = _labelled(self._counters[metric].split(totals, chosen))
        for metric, field in _GAUGES.items():
            values[metric] = _labelled(summed({name: getattr(each, field) for name, each in topics.items()}, chosen))
        counted: dict[Labels, Counts] = {
            (name,): (each.messages_in, each.bytes_in, each.messages_out, each.bytes_out)
            for name, each in topics.items()
        }
        rates = self._growth.of(counted, now)
        for metric, number in _RATES.items():
            values[metric] = _labelled(summed({name: rates[name,][number] for name in topics}, chosen))
        # The subscriptions with the largest backlogs come first.
        subscriptions.sort(key=lambda each: -each[1].backlog)
        for metric, read in _OF_SUBSCRIPTION.items():
            values[metric] = _first({labels: float(read(seen)) for labels, seen in subscriptions})
        rates_out = self._growth_of_subscriptions.of(sent, now)
        for metric, number in _RATES_OF_SUBSCRIPTION.items():
            values[metric] = _first({labels: rates_out[labels][number] for labels, _ in subscriptions})
        return values


def _first(values: Mapping[Labels, float]) -> Mapping[Labels, float]:
    """The first values, and the sum of the rest."""
    if len(values) <= _SUBSCRIPTIONS_MAX:
        return values
    shown = dict(islice(values.items(), _SUBSCRIPTIONS_MAX))
    shown[OTHER, OTHER] = sum(islice(values.values(), _SUBSCRIPTIONS_MAX, None))
    return shown


def _pause() -> None:
    Event().wait(_PAUSE_S)


def _labelled(values: Mapping[str, float]) -> dict[Labels, float]:
    return {(name,): value for name, value in values.items()}
