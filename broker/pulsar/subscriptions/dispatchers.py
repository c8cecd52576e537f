"""Makes the dispatcher for a type of subscription.

Tests: tests/pulsar/subscriptions/test_subscriptions.py.
"""

import attrs

from broker.pulsar.dispatch.by_key import KeyShared
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Dispatcher, DispatchSettings
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.dispatch.round_robin import Shared
from broker.pulsar.dispatch.single_active import Exclusive, Failover
from broker.pulsar.refusals import NotAllowed
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.topics.topic import Topic
from protocol.pulsar.pulsar_pb2 import CommandSubscribe

SubType = CommandSubscribe.SubType
SINGLE_ACTIVE = frozenset({SubType.Exclusive, SubType.Failover})
NAMES = {number: name for name, number in SubType.items()}


@attrs.frozen
class KeySharedPolicy:
    """The policy that all consumers of a Key_Shared subscription must have in common."""

    sticky: bool = False  # each consumer names its ranges of hashes
    out_of_order: bool = False


def make_dispatcher(
    kind: int,
    policy: KeySharedPolicy | None,
    topic: Topic,
    cursor: Cursor,
    settings: DispatchSettings,
    limit: RateLimit | None = None,
    delayed: DelayedTracker | None = None,
) -> Dispatcher:
    """Raises NotAllowed for an unknown type."""
    if kind == SubType.Exclusive:
        return Exclusive(cursor, settings, limit)
    if kind == SubType.Failover:
        return Failover(cursor, str(topic.name.whole), topic.partition, settings, limit)
    if kind == SubType.Shared:
        return Shared(cursor, settings, delayed, limit)
    if kind == SubType.Key_Shared:
        assert policy is not None
        return KeyShared(cursor, settings, delayed, limit, sticky=policy.sticky, out_of_order=policy.out_of_order)
    raise NotAllowed(f"There are no subscriptions of the type {kind}.")
