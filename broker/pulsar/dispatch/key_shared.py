"""Key_Shared: entries with the same key go to one consumer, in order. Pure; ``many_consumers.py`` and ``by_key.py`` say
how."""

from broker.delivery.in_flight import InFlight
from broker.pulsar.dispatch.by_key import ByKey
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.key_ranges import Halves, KeyRanges, Points, Sticky
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.subscriptions.cursor import Cursor


class KeyShared(ManyConsumers):
    """``sticky``: consumers name the ranges of their hashes. ``out_of_order``: no entry waits for another one of its key."""

    __slots__ = ()

    def __init__(
        self,
        cursor: Cursor,
        settings: DispatchSettings,
        delayed: DelayedTracker | None = None,
        limit: RateLimit | None = None,
        *,
        sticky: bool = False,
        out_of_order: bool = False,
    ) -> None:
        in_flight = InFlight(
            owner_max=settings.unacked_max_per_consumer, total_max=settings.unacked_max_per_subscription
        )
        ranges: KeyRanges
        if sticky:
            ranges = Sticky()
        elif settings.consistent_hashing:
            ranges = Points(settings.hash_points)
        else:
            ranges = Halves()
        assignment = ByKey(cursor, settings, in_flight, ranges, out_of_order=out_of_order)
        super().__init__(cursor, settings, in_flight, assignment, delayed, limit)
