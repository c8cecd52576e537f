"""Which dispatcher serves which type of subscription, and the rates at which it does.

Tests: tests/pulsar/subscriptions/test_subscriptions.py.
"""

import attrs

from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Dispatcher
from broker.pulsar.dispatch.exclusive import Exclusive
from broker.pulsar.dispatch.failover import Failover
from broker.pulsar.dispatch.key_shared import KeyShared
from broker.pulsar.dispatch.rate_limit import DispatchRate, RateLimit
from broker.pulsar.dispatch.shared import Shared
from broker.pulsar.policies.policies import Rate
from broker.pulsar.refusals import NotAllowed
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.limits import Limits
from broker.pulsar.topics.topic import Topic
from protocol.pulsar.pulsar_pb2 import CommandSubscribe

SubType = CommandSubscribe.SubType
SINGLE_ACTIVE = frozenset({SubType.Exclusive, SubType.Failover})
NAMES = {number: name for name, number in SubType.items()}


@attrs.frozen
class KeySharedPolicy:
    """What all consumers of a Key_Shared subscription have to agree on."""

    sticky: bool = False  # each consumer names its ranges of hashes
    out_of_order: bool = False


def make_dispatcher(
    kind: int,
    policy: KeySharedPolicy | None,
    topic: Topic,
    cursor: Cursor,
    limits: Limits,
    topic_rate: DispatchRate | None = None,
) -> Dispatcher:
    """``topic_rate`` is shared by the topic's subscriptions. Raises NotAllowed for a type that there is not."""
    settings = limits.dispatch
    rates = [topic_rate] if topic_rate is not None else []
    if is_limit(limits.subscription_rate):
        rates.append(DispatchRate())
        set_rate(rates[-1], limits.subscription_rate)
    rate_limit = RateLimit(rates)
    if kind == SubType.Exclusive:
        return Exclusive(cursor, settings, rate_limit)
    if kind == SubType.Failover:
        return Failover(cursor, str(topic.name.whole), topic.partition, settings, rate_limit)
    delayed = DelayedTracker(settings.delayed_tick_ms, settings.delayed_strict) if limits.delayed_delivery else None
    if kind == SubType.Shared:
        return Shared(cursor, settings, delayed, rate_limit if rates else None)
    if kind == SubType.Key_Shared:
        assert policy is not None
        return KeyShared(
            cursor,
            settings,
            delayed,
            rate_limit if rates else None,
            sticky=policy.sticky,
            out_of_order=policy.out_of_order,
        )
    raise NotAllowed(f"There are no subscriptions of the type {kind}.")


def is_limit(rate: Rate) -> bool:
    return rate.messages > 0 or rate.bytes > 0


def set_rate(rate: DispatchRate, policy: Rate) -> None:
    rate.set(max(0, policy.messages), max(0, policy.bytes), policy.period_s)
