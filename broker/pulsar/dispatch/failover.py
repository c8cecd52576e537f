"""Failover: a subscription with several consumers, of which one is served until it leaves, or until a better one comes.

Consumers are sorted by priority (0 first) and name. Of a partition, the consumer is chosen by the number of the partition,
among those of the best priority, so that the partitions of a topic are spread evenly over them. Of a topic without partitions,
it is chosen by a ring of hashes: each of these consumers has 100 points on it, and the consumer of the first point from the
topic's hash on is served. So different topics choose different consumers, and every broker chooses the same ones (Pulsar's
AbstractDispatcherSingleActiveConsumer).

Only the consumers of the best priority have points. Those of a consumer are computed once, which takes 100 us.
"""

from collections.abc import Sequence
from operator import attrgetter

from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.dispatch.single_active import SingleActive
from broker.pulsar.subscriptions.cursor import Cursor
from protocol.pulsar.murmur3 import murmur3_32

_POINTS = 100
_NO_SIGN = 0x7FFFFFFF


class OneOfMany:
    announced = True

    def __init__(self, topic: str, partition: int, delay_s: float) -> None:
        self.delay_s = delay_s
        self._partition = partition
        self._hash = murmur3_32(topic.encode()) & _NO_SIGN
        # For each name, the distance from the topic's hash to the next of its points: the ring, as far as this topic sees it.
        self._distances: dict[str, int] = {}

    def admit(self, consumers: Sequence[Consumer]) -> None:
        """As many as there are: their number is a policy of the topic."""

    def active(self, consumers: list[Consumer]) -> Consumer:
        consumers.sort(key=attrgetter("priority", "name"))
        first = consumers[0].priority
        best = [consumer for consumer in consumers if consumer.priority == first]
        if self._partition >= 0:
            return best[self._partition % len(best)]
        names = {consumer.name for consumer in consumers}
        for gone in self._distances.keys() - names:
            del self._distances[gone]
        # Where two have the same point, it belongs to the last one, as in Pulsar, where each puts its points over the others'.
        return min(reversed(best), key=self._distance)

    def _distance(self, consumer: Consumer) -> int:
        distance = self._distances.get(consumer.name)
        if distance is None:
            points = (murmur3_32(f"{consumer.name}{number}".encode()) & _NO_SIGN for number in range(_POINTS))
            distance = min((point - self._hash) % (_NO_SIGN + 1) for point in points)
            self._distances[consumer.name] = distance
        return distance


class Failover(SingleActive):
    """``topic``: its whole name, as clients write it. ``partition``: the number of the partition, -1 if it has none."""

    def __init__(
        self, cursor: Cursor, topic: str, partition: int, settings: DispatchSettings, limit: RateLimit | None = None
    ) -> None:
        super().__init__(cursor, OneOfMany(topic, partition, settings.failover_delay_s), settings, limit or RateLimit())
