"""Whether the broker lives and whether it serves: for whoever starts, restarts and balances it.

Tests: tests/http/test_assembly.py.
"""

from collections.abc import Callable, Sequence

from broker.network.routes import TEXT, UNAVAILABLE, Answer, Call, Route
from broker.runtime.threads import Event

_OK = Answer(200, b"ok\n", TEXT)
_STOPPING = Answer(UNAVAILABLE, b"stopping\n", TEXT)


def routes(stopping: Event, health: Sequence[Callable[[], list[str]]] = ()) -> list[Route]:
    """``/healthz``: a processor of the broker answers. ``/readyz``: and the broker is not about to stop. Connections are accepted
    only when all services are open.

    ``health`` tells what is wrong with a broker that serves, such as partitions that are offline. That does not make it unready:
    it is the only one that has the other partitions. The text of the answer names it.
    """

    def healthy(call: Call) -> Answer:
        return _OK

    def ready(call: Call) -> Answer:
        if stopping.is_set():
            return _STOPPING
        reasons = [reason for source in health for reason in source()]
        return Answer(200, f"ok, but {' '.join(reasons)}\n".encode(), TEXT) if reasons else _OK

    return [Route("GET", "/healthz", healthy, blocking=False), Route("GET", "/readyz", ready, blocking=False)]
