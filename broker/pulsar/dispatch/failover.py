"""Failover: a subscription with several consumers, of which one is served until it leaves, or until a better one comes.

Consumers are sorted by priority (0 first) and name. Of a partition, the consumer is chosen by the number of the partition,
among those of the best priority, so that the partitions of a topic are spread evenly over them. Of a topic without partitions,
it is chosen by a ring of hashes: each of these consumers has 100 points on it, and the consumer of the first point from the
topic's hash on is served. So different topics choose different consumers, and every broker chooses the same ones (Pulsar's
AbstractDispatcherSingleActiveConsumer).

Only the points of consumers of the best priority count. Those of a consumer are computed when it joins, which takes 100 us.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import NamedTuple

from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.dispatch.single_active import SingleActive
from broker.pulsar.subscriptions.cursor import Cursor
from protocol.pulsar.murmur3 import murmur3_32

_POINTS = 100
_NO_SIGN = 0x7FFFFFFF


class OneOfMany:
    """The consumers are kept in the order in which they are chosen, so that one that joins or leaves costs the same however
    many there are: by priority, on the ring then by the distance from the topic's hash to the consumer's next point, by name."""

    announced = True

    def __init__(self, topic: str, partition: int, delay_s: float) -> None:
        self.delay_s = delay_s
        self._partition = partition
        self._hash = murmur3_32(topic.encode()) & _NO_SIGN
        self._joined = 0  # the number of the last that has joined
        self._places: list[_Place] = []  # ascending
        self._place_of: dict[Consumer, _Place] = {}

    def admit(self, consumers: Collection[Consumer]) -> None:
        """As many as there are: their number is a policy of the topic."""

    def join(self, consumer: Consumer) -> None:
        self._joined += 1
        distance = 0 if self._partition >= 0 else self._distance(consumer.name)
        place = _Place(consumer.priority, distance, consumer.name, self._joined, consumer)
        self._place_of[consumer] = place
        insort(self._places, place)

    def leave(self, consumer: Consumer) -> None:
        del self._places[bisect_left(self._places, self._place_of.pop(consumer))]

    def active(self) -> Consumer:
        places = self._places
        first = places[0]
        if self._partition >= 0:
            best = bisect_left(places, (first.priority + 1,))
            return places[self._partition % best].consumer
        # Where two have the same point, it belongs to the last one, as in Pulsar, where each puts its points over the others'.
        return places[bisect_left(places, (first.priority, first.distance + 1)) - 1].consumer

    def _distance(self, name: str) -> int:
        points = (murmur3_32(f"{name}{number}".encode()) & _NO_SIGN for number in range(_POINTS))
        return min((point - self._hash) % (_NO_SIGN + 1) for point in points)


class _Place(NamedTuple):
    """No two have the same number, so consumers are not compared."""

    priority: int
    distance: int  # 0 where there is no ring
    name: str
    number: int
    consumer: Consumer


class Failover(SingleActive):
    """``topic``: its whole name, as clients write it. ``partition``: the number of the partition, -1 if it has none."""

    def __init__(
        self, cursor: Cursor, topic: str, partition: int, settings: DispatchSettings, limit: RateLimit | None = None
    ) -> None:
        super().__init__(cursor, OneOfMany(topic, partition, settings.failover_delay_s), settings, limit or RateLimit())
