"""What the policies say of one topic, in the terms of its subscriptions and producers.

Any thread. Bounds, rates and the limits of what is not acknowledged follow a change of policies at once. The tick of delayed
delivery holds for dispatchers that are made later, that is, when the first consumer of a subscription comes. Which types of
subscriptions there may be, and whether consumers make them, is asked when somebody subscribes.

Tests: tests/pulsar/policies/test_upkeep.py.
"""

from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

import attrs

from broker.pulsar.dispatch.rate_limit import DispatchRate, RateLimit
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.policies.policies import Policies, Rate
from broker.pulsar.policies.store import PolicyStore
from broker.pulsar.refusals import NotAllowed, SubscriptionNotFound
from broker.pulsar.subscriptions.subscriptions import Bounds
from broker.pulsar.topic_names import TopicName
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.runtime.threads import Lock

_UNLIMITED: Final = Rate()
# Consumers whose latest SUBSCRIBE is remembered for the rate of their topic, some 500 bytes each; the oldest are forgotten.
_SUBSCRIBERS_MAX: Final = 10_000
# Namespace, topic, partition, and the subscription; None: all of the topic together.
_Key = tuple[str, UUID, int, str | None]


class PolicyLimits:
    def __init__(self, policies: PolicyStore, bounds: Bounds, settings: DispatchSettings) -> None:
        """``bounds`` and ``settings`` hold where no policy says otherwise."""
        self.broker_rate = DispatchRate()
        self._policies = policies
        self._bounds = bounds
        self._settings = settings
        self._lock = Lock()
        self._rates: WeakValueDictionary[_Key, DispatchRate] = WeakValueDictionary()
        self._publish_rates: WeakValueDictionary[tuple[TopicName, UUID], DispatchRate] = WeakValueDictionary()
        self._subscribers: dict[object, DispatchRate] = {}
        policies.on_change.append(self._changed)

    def bounds(self, topic: AnyTopic) -> Bounds:
        policies, bounds = self._of(topic), self._bounds
        return Bounds(
            subscriptions_of_topic=_first(policies.max_subscriptions, bounds.subscriptions_of_topic),
            consumers_of_topic=_first(policies.max_consumers, bounds.consumers_of_topic),
            consumers_of_subscription=_first(policies.max_consumers_per_subscription, bounds.consumers_of_subscription),
        )

    def producers_max(self, topic: AnyTopic, otherwise: int) -> int:
        return _first(self._of(topic).max_producers, otherwise)

    def check_subscribing(self, topic: AnyTopic, kind: str, consumer: object, now: float) -> None:
        """Whether this type of subscription may be used, and whether the consumer (its address, name and number) may subscribe
        again at this time (monotonic, s). Raises NotAllowed."""
        policies = self._of(topic)
        if policies.subscription_types and kind not in policies.subscription_types:
            raise NotAllowed(f"Topic {topic.name} doesn't support {kind} subscriptions.")
        wanted = policies.subscribe_rate
        if wanted is None or wanted.messages <= 0:
            return
        key = topic.name, consumer
        with self._lock:
            rate = self._subscribers.pop(key, None) or DispatchRate()
            self._subscribers[key] = rate
            if len(self._subscribers) > _SUBSCRIBERS_MAX:
                del self._subscribers[next(iter(self._subscribers))]
            if not rate.is_set_to(wanted.messages, 0, wanted.period_s):
                rate.set(wanted.messages, 0, wanted.period_s)
            if rate.available(now)[0] < 1:
                raise NotAllowed("The consumer has subscribed as often as the topic's subscribe rate allows.")
            rate.consumed(1, 0, now)

    def check_new_subscription(self, topic: AnyTopic) -> None:
        """Whether a client may make one by using it. Raises SubscriptionNotFound."""
        if self._of(topic).auto_subscription_creation is False:
            raise SubscriptionNotFound(
                "Subscription does not exist, and consumers do not make subscriptions of this topic."
            )

    def settings(self, topic: AnyTopic) -> DispatchSettings:
        policies, settings = self._of(topic), self._settings
        if (
            policies.max_unacked_per_consumer is None
            and policies.max_unacked_per_subscription is None
            and policies.delayed_delivery_tick_ms is None
        ):
            return settings
        return attrs.evolve(
            settings,
            unacked_max_per_consumer=_first(policies.max_unacked_per_consumer, settings.unacked_max_per_consumer),
            unacked_max_per_subscription=_first(
                policies.max_unacked_per_subscription, settings.unacked_max_per_subscription
            ),
            delayed_tick_ms=_first(policies.delayed_delivery_tick_ms, settings.delayed_tick_ms),
        )

    def delays(self, topic: Topic) -> bool:
        """Whether messages may be delivered later than they are sent."""
        return self._of(topic).delayed_delivery is not False

    def rate_limit(self, topic: Topic, subscription: str) -> RateLimit:
        """For one dispatcher."""
        of_topic = (topic.name.namespace, topic.log.topic_id, topic.log.partition)
        return RateLimit([self.broker_rate, self._rate((*of_topic, None)), self._rate((*of_topic, subscription))])

    def publish_rate(self, topic: AnyTopic) -> DispatchRate:
        """For all producers of the topic. It follows the policies."""
        key = topic.name, topic.topic_id
        with self._lock:
            rate = self._publish_rates.get(key)
            if rate is None:
                rate = self._publish_rates[key] = DispatchRate()
                _set_publish(rate, self._of(topic))
            return rate

    def _rate(self, key: _Key) -> DispatchRate:
        with self._lock:
            rate = self._rates.get(key)
            if rate is None:
                rate = self._rates[key] = DispatchRate()
                _set(rate, self._policies.of(key[0], key[1]), key[3])
            return rate

    def _changed(self) -> None:
        with self._lock:
            rates = list(self._rates.items())
            publish_rates = list(self._publish_rates.items())
        for key, rate in rates:
            _set(rate, self._policies.of(key[0], key[1]), key[3])
        for (name, topic_id), rate in publish_rates:
            _set_publish(rate, self._policies.of(name.namespace, topic_id))

    def _of(self, topic: AnyTopic) -> Policies:
        return self._policies.of(topic.name.namespace, topic.topic_id)


def _set_publish(rate: DispatchRate, policies: Policies) -> None:
    wanted = policies.publish_rate or _UNLIMITED
    if not rate.is_set_to(wanted.messages, wanted.bytes, wanted.period_s):
        rate.set(wanted.messages, wanted.bytes, wanted.period_s)


def _set(rate: DispatchRate, policies: Policies, subscription: str | None) -> None:
    wanted = policies.dispatch_rate
    if subscription is not None:
        wanted = (policies.subscription_dispatch_rates or {}).get(subscription) or policies.subscription_dispatch_rate
    wanted = wanted or _UNLIMITED
    if not rate.is_set_to(wanted.messages, wanted.bytes, wanted.period_s):  # its debt stays
        rate.set(wanted.messages, wanted.bytes, wanted.period_s)


def _first(policy: int | None, otherwise: int) -> int:
    return otherwise if policy is None else policy
