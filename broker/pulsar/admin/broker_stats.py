"""Admin calls about the broker's figures: its metrics, and the statistics of all topics that are in use.

Tests: tests/pulsar/admin/test_brokers.py.
"""

from math import isfinite
from typing import Any, Final

from broker.metrics.registry import Histogram, ReadHistogram
from broker.network.routes import Answer, Call, HttpError, Route, json_answer
from broker.network.work import REQUEST_ENTRIES_MAX
from broker.pulsar.admin import non_persistent, stats
from broker.pulsar.admin.calls import require_cluster, route
from broker.pulsar.admin.rates import Rates
from broker.pulsar.admin.tenants import BUNDLE
from broker.pulsar.context import PulsarContext
from broker.security.acl import Operation

# Topics, producers, subscriptions and consumers of one answer: some 500 bytes each.
_FIGURES_MAX: Final = REQUEST_ENTRIES_MAX


class BrokerStats:
    def __init__(self, context: PulsarContext, rates: Rates) -> None:
        self._context = context
        self._rates = rates

    def routes(self) -> list[Route]:
        return [
            route("GET", "/admin/v2/broker-stats/metrics", self.metrics),
            route("GET", "/admin/v2/broker-stats/mbeans", self.mbeans),
            route("GET", "/admin/v2/broker-stats/topics", self.topics),
            route("GET", "/admin/v2/broker-stats/destinations", self.topics),
        ]

    def metrics(self, call: Call) -> Answer:
        """Those of /metrics, by their labels; of a histogram the count and the sum."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for family in self._context.metrics:
            call.work.checkpoint()
            name, labels = family.metric.sample_name, family.metric.labels
            samples: list[tuple[str, tuple[str, ...], float]] = []
            if isinstance(family, Histogram | ReadHistogram):
                for values, (counts, total) in family.read().items():
                    samples += [(f"{name}_count", values, sum(counts)), (f"{name}_sum", values, total)]
            else:
                samples += [(name, values, value) for values, value in family.read().items()]
            for sample, values, value in samples:
                if isfinite(value):
                    found.setdefault(tuple(zip(labels, values, strict=True)), {})[sample] = value
        return json_answer([{"metrics": each, "dimensions": dict(labels)} for labels, each in found.items()])

    def mbeans(self, call: Call) -> Answer:
        """There is no JVM."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        return json_answer([])

    def topics(self, call: Call) -> Answer:
        """By namespace, bundle and domain. Topics that nobody has used for a minute are not in use."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        kept, passing = self._context.topics.loaded(), self._context.nonpersistent.loaded()
        figures = len(kept) + len(passing)
        for each in call.work.each(kept):
            figures += len(each.producers) + sum(1 + one.consumer_count for one in list(each.subscriptions.values()))
        for other in call.work.each(passing):
            figures += len(other.producers) + sum(1 + one.consumer_count for one in list(other.subscriptions.values()))
        if figures > _FIGURES_MAX:
            raise HttpError(413, f"These would be more than {_FIGURES_MAX} figures: ask for single topics.")
        found: dict[str, Any] = {}
        for each in kept:
            place = found.setdefault(each.name.namespace, {}).setdefault(BUNDLE, {}).setdefault("persistent", {})
            place[str(each.name)] = stats.topic_stats(call, each, self._rates)
            call.work.checkpoint()
        for other in passing:
            place = found.setdefault(other.name.namespace, {}).setdefault(BUNDLE, {}).setdefault("non-persistent", {})
            place[str(other.name)] = non_persistent.topic_stats(call, other, self._rates)
            call.work.checkpoint()
        return json_answer(found)
