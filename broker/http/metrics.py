"""``GET /metrics``: all metrics in Prometheus's text format, or in OpenMetrics where the client asks for it.

It runs on a handler of the admin lane. Who calls is told as for all other routes (`broker/network/callers.py`). With an
authorizer, the client needs DESCRIBE on the CLUSTER.
"""

from broker.metrics.registry import Registry
from broker.metrics.text import negotiate, render
from broker.network.callers import Callers
from broker.network.routes import Answer, Call, Route
from broker.runtime.threads import Event
from broker.security.acl import Operation, ResourceType

# How long (s) other threads get the interpreter for themselves, every 500 samples.
_PAUSE_S = 0.0005


def routes(registry: Registry, callers: Callers) -> list[Route]:
    def scrape(call: Call) -> Answer:
        callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        content_type = negotiate(call.headers.get("accept", ""))

        def pause() -> None:
            call.work.checkpoint()
            Event().wait(_PAUSE_S)

        return Answer(200, render(registry, content_type, pause), content_type)

    return [Route("GET", "/metrics", scrape)]
