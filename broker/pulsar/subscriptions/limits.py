"""What a subscription and its dispatcher are allowed: the broker's settings, and the policies of the topic or its namespace where
these say otherwise.

Asked when a dispatcher is made and when a consumer joins. Any thread.

Tests: tests/pulsar/subscriptions/test_limits.py.
"""

import attrs

from broker.config import BrokerConfig
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.policies.policies import Policies, Rate
from broker.pulsar.policies.store import PolicyStore
from broker.pulsar.topics.topic import Topic


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of 0 are none."""

    subscriptions_of_topic: int = 10_000
    consumers_of_topic: int = 0
    consumers_of_subscription: int = 0
    dispatch: DispatchSettings = attrs.field(factory=DispatchSettings)
    topic_rate: Rate = attrs.field(factory=Rate)
    subscription_rate: Rate = attrs.field(factory=Rate)
    delayed_delivery: bool = True


class LimitsOfTopics:
    def __init__(self, config: BrokerConfig, policies: PolicyStore) -> None:
        self._policies = policies
        self._broker = Limits(
            subscriptions_of_topic=config.pulsar_max_subscriptions_per_topic,
            consumers_of_topic=config.pulsar_max_consumers_per_topic,
            consumers_of_subscription=config.pulsar_max_consumers_per_subscription,
            dispatch=DispatchSettings(
                unacked_max_per_consumer=config.pulsar_max_unacked_per_consumer,
                unacked_max_per_subscription=config.pulsar_max_unacked_per_subscription,
                consistent_hashing=config.pulsar_key_shared_consistent_hashing,
                failover_delay_s=config.pulsar_failover_delay_ms / 1000,
                delayed_tick_ms=config.pulsar_delayed_delivery_tick_ms,
                delayed_strict=config.pulsar_delayed_delivery_strict,
            ),
        )

    def of(self, topic: Topic) -> Limits:
        return limits_of(self._broker, self._policies.of(topic.name.namespace, topic.log.topic_id))


def limits_of(broker: Limits, policies: Policies) -> Limits:
    dispatch = attrs.evolve(
        broker.dispatch,
        unacked_max_per_consumer=_or(policies.max_unacked_per_consumer, broker.dispatch.unacked_max_per_consumer),
        unacked_max_per_subscription=_or(
            policies.max_unacked_per_subscription, broker.dispatch.unacked_max_per_subscription
        ),
        delayed_tick_ms=_or(policies.delayed_delivery_tick_ms, broker.dispatch.delayed_tick_ms),
    )
    return attrs.evolve(
        broker,
        subscriptions_of_topic=_or(policies.max_subscriptions, broker.subscriptions_of_topic),
        consumers_of_topic=_or(policies.max_consumers, broker.consumers_of_topic),
        consumers_of_subscription=_or(policies.max_consumers_per_subscription, broker.consumers_of_subscription),
        dispatch=dispatch,
        topic_rate=policies.dispatch_rate or broker.topic_rate,
        subscription_rate=policies.subscription_dispatch_rate or broker.subscription_rate,
        delayed_delivery=policies.delayed_delivery is not False,
    )


def _or(value: int | None, other: int) -> int:
    return other if value is None else value
