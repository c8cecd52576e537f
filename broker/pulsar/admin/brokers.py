"""Admin calls about the cluster and its brokers, the settings and statistics of this one, and the lookup of topics over HTTP.

``Lookup`` tells clients the address for a topic: of this broker, or of the node that has the topic. ``brokerUrl`` and
``brokerUrlTls`` are the addresses of the listeners without and with TLS; clients need both keys, and use the address that matches
their own URL.

``Brokers``: settings have their names in Kafka if Kafka has them. Dynamic settings are changed for all brokers, as by Kafka's
clients, except for the TLS settings of listeners. Secrets are not shown.

``BrokerStats`` shows the metrics, and the statistics of all loaded topics.
"""

from math import isfinite
from typing import Any, Final

from broker.cluster.nodes import Node
from broker.config import Setting
from broker.config.dynamic_settings import BROKER_SETTINGS, Way, way_of
from broker.errors import ConfigError
from broker.live_config import ALL_BROKERS
from broker.metrics.registry import Histogram, ReadHistogram
from broker.network.work import REQUEST_ENTRIES_MAX
from broker.other_nodes import url_of
from broker.pulsar.admin import non_persistent, stats
from broker.pulsar.admin.calls import require_cluster, require_topic, route, topic_name, web_urls
from broker.pulsar.admin.policy_values import CLUSTER
from broker.pulsar.admin.stats import Rates
from broker.pulsar.admin.tenants import BUNDLE
from broker.pulsar.context import PulsarContext
from broker.pulsar.handlers.lookup import owner_of, service_urls
from broker.security.acl import Operation
from broker.web.routes import NO_CONTENT, TEXT, Answer, Call, HttpError, Route, json_answer

_OK = Answer(200, b"ok", TEXT)
# The newest version of Pulsar with clients that were tested with this broker.
_VERSION = Answer(200, b"4.2.0", TEXT)


class Lookup:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        base = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
        return [route("GET", base, self.look_up), route("GET", f"{base}/bundle", self.bundle)]

    def look_up(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        self._context.topics.check_namespace(name)
        named = call.query.get("listenerName") or call.headers.get("x-pulsar-listenername", "")
        owner = owner_of(self._context, name)
        plain, tls = self.urls(call, named, owner)
        http, https = web_urls(self._context, call)
        if owner is not None:
            url = url_of(owner, self._context.config.listeners, call) or ""
            http, https = (url, "") if http else ("", url)
        return json_answer(
            {"brokerUrl": plain, "brokerUrlTls": tls, "httpUrl": http, "httpUrlTls": https, "nativeUrl": plain or tls}
        )

    def urls(self, call: Call, named: str = "", node: Node | None = None) -> tuple[str, str]:
        """The addresses without and with TLS; empty if there is no such listener. ``node``: whose; None: this one's. Raises
        ServiceNotReady."""
        plain, tls = service_urls(self._context, call.peer, named, node)
        return plain or "", tls or ""

    def bundle(self, call: Call) -> Answer:
        require_topic(self._context, call, Operation.DESCRIBE, topic_name(call))
        return Answer(200, b"0x00000000_0xffffffff", TEXT)


class Brokers:
    def __init__(self, context: PulsarContext, lookup: Lookup) -> None:
        self._context = context
        self._lookup = lookup

    def routes(self) -> list[Route]:
        return [
            route("GET", "/admin/v2/clusters", self.clusters),
            route("GET", "/admin/v2/clusters/{cluster}", self.cluster),
            route("PUT", "/admin/v2/clusters/{cluster}", self.create_cluster),
            route("GET", "/admin/v2/brokers", self.brokers),
            route("GET", "/admin/v2/brokers/{cluster}", self.brokers),
            route("GET", "/admin/v2/brokers/leaderBroker", self.leader),
            route("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", self.namespaces),
            route("GET", "/admin/v2/brokers/configuration", self.dynamic_settings),
            route("GET", "/admin/v2/brokers/configuration/values", self.changed_settings),
            route("GET", "/admin/v2/brokers/configuration/runtime", self.settings),
            route("POST", "/admin/v2/brokers/configuration/{setting}/{value}", self.set),
            route("DELETE", "/admin/v2/brokers/configuration/{setting}", self.set),
            Route("GET", "/admin/v2/brokers/health", lambda call: _OK, blocking=False),
            Route("GET", "/admin/v2/brokers/ready", lambda call: _OK, blocking=False),
            Route("GET", "/admin/v2/brokers/version", lambda call: _VERSION, blocking=False),
        ]

    def clusters(self, call: Call) -> Answer:
        return json_answer([CLUSTER])

    def cluster(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._check(call)
        plain, tls = self._lookup.urls(call)
        http, https = web_urls(self._context, call)
        return json_answer(
            {
                "serviceUrl": http,
                "serviceUrlTls": https,
                "brokerServiceUrl": plain,
                "brokerServiceUrlTls": tls,
                "brokerClientTlsEnabled": False,
            }
        )

    def create_cluster(self, call: Call) -> Answer:
        """Programs that set up a cluster, such as the scripts of client suites, take 409 for success."""
        require_cluster(self._context, call, Operation.CREATE)
        if call.names["cluster"] == CLUSTER:
            raise HttpError(409, f"The cluster {CLUSTER} exists already.")
        raise HttpError(412, f"There is one cluster: {CLUSTER}.")

    def brokers(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._check(call)
        return json_answer(self._names(call))

    def _names(self, call: Call) -> list[str]:
        """The brokers, as the client reaches them."""
        own, nodes = call.headers.get("host", ""), self._context.logs.nodes
        if nodes is None:
            return [own]
        urls = {
            node.node_id: url_of(node, self._context.config.listeners, call) for _, node in sorted(nodes.living.items())
        }
        names = {node_id: url.partition("://")[2] for node_id, url in urls.items() if url is not None}
        return [*(names | {nodes.node_id: own}).values()]

    def leader(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        http, https = web_urls(self._context, call)
        return json_answer({"brokerId": call.headers.get("host", ""), "serviceUrl": http or https})

    def namespaces(self, call: Call) -> Answer:
        """The namespaces that the broker owns: all, as each broker may have topics of each."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._check(call)
        if call.names["broker"] not in self._names(call):
            raise HttpError(404, "Name a broker as you reach it.")
        names = [
            name
            for tenant in self._context.namespaces.tenants()
            for name in self._context.namespaces.namespaces(tenant)
        ]
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return json_answer({f"{name}/{BUNDLE}": status for name in names})

    # -- settings -----------------------------------------------------------------------------------------------------

    def dynamic_settings(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE_CONFIGS)
        return json_answer([name for name in BROKER_SETTINGS if self._can_change(name)])

    def changed_settings(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE_CONFIGS)
        changed = self._context.live.changes[ALL_BROKERS]
        return json_answer({name: text for name, text in changed.items() if self._can_change(name)})

    def settings(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE_CONFIGS)
        config = self._context.live.in_force
        return json_answer(
            {
                name: Setting.text(getattr(config, info.name))
                for name, info in BROKER_SETTINGS.items()
                if not info.secret
            }
        )

    def set(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.ALTER_CONFIGS)
        name, value = call.names["setting"], call.names.get("value")  # without a value, the change is undone
        if not self._can_change(name):
            raise HttpError(412, "Cannot update non-dynamic configuration")
        try:
            self._context.live.alter(ALL_BROKERS, lambda _: {name: value})
        except ConfigError as error:
            raise HttpError(412, f"Invalid dynamic-config value: {error}") from None
        return NO_CONTENT

    def _can_change(self, name: str) -> bool:
        return name in BROKER_SETTINGS and self._context.live.can_change(name) and way_of(name) is not Way.TLS

    def _check(self, call: Call) -> None:
        if call.names.get("cluster", CLUSTER) != CLUSTER:
            raise HttpError(404, f"There is one cluster: {CLUSTER}.")


# Topics, producers, subscriptions and consumers in an answer: some 500 bytes each.
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
        """The metrics of /metrics, by labels; of a histogram only the count and the sum."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        by_labels: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
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
                    by_labels.setdefault(tuple(zip(labels, values, strict=True)), {})[sample] = value
        return json_answer([{"metrics": each, "dimensions": dict(labels)} for labels, each in by_labels.items()])

    def mbeans(self, call: Call) -> Answer:
        """Always empty: there is no JVM."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        return json_answer([])

    def topics(self, call: Call) -> Answer:
        """Loaded topics by namespace, bundle and domain. A topic that is unused for a minute is unloaded."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        kept, passing = self._context.topics.loaded(), self._context.nonpersistent.loaded()
        figures = len(kept) + len(passing)
        for each in call.work.each(kept):
            figures += len(each.producers) + sum(
                1 + subscription.consumer_count for subscription in list(each.subscriptions.values())
            )
        for other in call.work.each(passing):
            figures += len(other.producers) + sum(
                1 + subscription.consumer_count for subscription in list(other.subscriptions.values())
            )
        if figures > _FIGURES_MAX:
            raise HttpError(413, f"These would be more than {_FIGURES_MAX} figures: ask for single topics.")
        answer: dict[str, Any] = {}
        for each in kept:
            place = answer.setdefault(each.name.namespace, {}).setdefault(BUNDLE, {}).setdefault("persistent", {})
            place[str(each.name)] = stats.topic_stats(call, each, self._rates)
            call.work.checkpoint()
        for other in passing:
            place = answer.setdefault(other.name.namespace, {}).setdefault(BUNDLE, {}).setdefault("non-persistent", {})
            place[str(other.name)] = non_persistent.topic_stats(call, other, self._rates)
            call.work.checkpoint()
        return json_answer(answer)
