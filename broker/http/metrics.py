"""``GET /metrics``: all metrics in Prometheus's text format, or in OpenMetrics where the client asks for it.

It runs on a handler of the admin lane. With an authorizer, the client needs DESCRIBE on the CLUSTER.
"""

from broker.metrics.registry import Registry
from broker.metrics.text import negotiate, render
from broker.network.routes import FORBIDDEN, Answer, Call, HttpError, Route
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorizer import Authorizer


def routes(registry: Registry, authorizer: Authorizer | None) -> list[Route]:
    """``authorizer`` None: everybody may ask."""

    def scrape(call: Call) -> Answer:
        if authorizer is not None and not authorizer.allows(
            call.principal, call.peer.host, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        ):
            raise HttpError(FORBIDDEN, "Metrics need DESCRIBE on the cluster.")
        content_type = negotiate(call.headers.get("accept", ""))
        return Answer(200, render(registry, content_type, call.work.checkpoint), content_type)

    return [Route("GET", "/metrics", scrape)]
