"""Whether the broker lives and whether it serves: for whoever starts, restarts and balances it.

Tests: tests/http/test_assembly.py.
"""

from broker.network.routes import TEXT, UNAVAILABLE, Answer, Call, Route
from broker.runtime.threads import Event

_OK = Answer(200, b"ok\n", TEXT)
_STOPPING = Answer(UNAVAILABLE, b"stopping\n", TEXT)


def routes(stopping: Event) -> list[Route]:
    """``/healthz``: a processor of the broker answers. ``/readyz``: and the broker is not about to stop. Connections are accepted
    only when all services are open."""

    def healthy(call: Call) -> Answer:
        return _OK

    def ready(call: Call) -> Answer:
        return _STOPPING if stopping.is_set() else _OK

    return [Route("GET", "/healthz", healthy, blocking=False), Route("GET", "/readyz", ready, blocking=False)]
