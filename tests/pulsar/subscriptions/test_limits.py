"""The bounds of subscriptions: of the broker, and where policies say otherwise."""

from broker.pulsar.policies.policies import Policies, Rate
from broker.pulsar.subscriptions.limits import Limits, limits_of


def test_policies_replace_what_they_name() -> None:
    broker = Limits(consumers_of_topic=5)
    assert broker == limits_of(broker, Policies())
    found = limits_of(
        broker,
        Policies(
            max_consumers=3,
            max_consumers_per_subscription=2,
            max_subscriptions=0,
            max_unacked_per_consumer=7,
            delayed_delivery=False,
            delayed_delivery_tick_ms=10,
            dispatch_rate=Rate(messages=5),
        ),
    )
    assert (3, 2, 0) == (found.consumers_of_topic, found.consumers_of_subscription, found.subscriptions_of_topic)
    assert (7, 200_000, 10) == (
        found.dispatch.unacked_max_per_consumer,
        found.dispatch.unacked_max_per_subscription,
        found.dispatch.delayed_tick_ms,
    )
    assert not found.delayed_delivery
    assert (5, -1) == (found.topic_rate.messages, found.subscription_rate.messages)
