"""``GET /metrics``: all metrics in Prometheus's text format, or in OpenMetrics where the client asks for it.

It runs on a handler of the admin lane. Who calls is told as for all other routes (`broker/network/callers.py`). With an
authorizer, the client needs DESCRIBE on the CLUSTER.
"""

from broker.metrics.registry import Registry
from broker.metrics.text import negotiate, render
from broker.network.callers import Callers
from broker.network.routes import Answer, Call, Route
from broker.security.acl import Operation, ResourceType


def routes(registry: Registry, callers: Callers) -> list[Route]:
    def scrape(call: Call) -> Answer:
        callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        content_type = negotiate(call.headers.get("accept", ""))
        return Answer(200, render(registry, content_type, call.work.checkpoint), content_type)

    return [Route("GET", "/metrics", scrape)]
