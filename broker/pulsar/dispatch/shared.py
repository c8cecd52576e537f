"""Shared: consumers take turns. Pure; ``many_consumers.py`` and ``round_robin.py`` say how."""

from broker.delivery.in_flight import InFlight
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.dispatch.round_robin import RoundRobin
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.subscriptions.cursor import Cursor


class Shared(ManyConsumers):
    """The cursor is read from ``acknowledged_before`` on."""

    __slots__ = ()

    def __init__(
        self,
        cursor: Cursor,
        settings: DispatchSettings,
        delayed: DelayedTracker | None = None,
        limit: RateLimit | None = None,
    ) -> None:
        in_flight = InFlight(
            owner_max=settings.unacked_max_per_consumer, total_max=settings.unacked_max_per_subscription
        )
        super().__init__(cursor, settings, in_flight, RoundRobin(cursor, settings, in_flight), delayed, limit)
