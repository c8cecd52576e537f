"""Admin calls about the cluster and its broker: there is one of each.

Tests: tests/pulsar/admin/test_brokers.py.
"""

from broker.network.routes import TEXT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import require_cluster, route, web_urls
from broker.pulsar.admin.lookup import Lookup
from broker.pulsar.admin.policy_names import CLUSTER
from broker.pulsar.context import PulsarContext
from broker.security.acl import Operation

_OK = Answer(200, b"ok", TEXT)
# The newest version of Pulsar whose clients this broker was tried with.
_VERSION = Answer(200, b"4.2.0", TEXT)


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
        """What sets up a cluster, such as the scripts of client suites, takes 409 for success."""
        require_cluster(self._context, call, Operation.CREATE)
        if call.names["cluster"] == CLUSTER:
            raise HttpError(409, f"The cluster {CLUSTER} exists already.")
        raise HttpError(412, f"There is one cluster: {CLUSTER}.")

    def brokers(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._check(call)
        return json_answer([call.headers.get("host", "")])

    def leader(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        http, https = web_urls(self._context, call)
        return json_answer({"brokerId": call.headers.get("host", ""), "serviceUrl": http or https})

    def _check(self, call: Call) -> None:
        if call.names.get("cluster", CLUSTER) != CLUSTER:
            raise HttpError(404, f"There is one cluster: {CLUSTER}.")
