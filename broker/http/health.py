"""Whether the broker lives and whether it serves: for whoever starts, restarts and balances it.

Tests: tests/http/test_assembly.py, tests/http/api/test_overview.py.
"""

from collections.abc import Sequence

from broker.network.figures import Figures
from broker.network.routes import TEXT, UNAVAILABLE, Answer, Call, Route
from broker.runtime.threads import Event

_OK = Answer(200, b"ok\n", TEXT)


def routes(stopping: Event, figures: Figures) -> list[Route]:
    """``/healthz``: a processor of the broker answers. ``/readyz``: and the broker serves, or why it does not.

    It does not serve while it is stopping, when no partition of its topics can be used, or when records are refused because the
    disk is full. If some partitions are offline, the
    others are served: the answer names them and is 200, or with ``?strict=true`` 503. Connections are accepted only when recovery
    is done and all services are open. What is known of partitions is up to 5 s old.
    """

    def healthy(call: Call) -> Answer:
        return _OK

    def ready(call: Call) -> Answer:
        if stopping.is_set():
            return _not_ready(["stopping"])
        reasons = figures.reasons
        offline, partitions = figures.values.get("offline_partitions", 0), figures.values.get("partitions", 0)
        is_full = figures.values.get("full_partitions", 0) > 0
        if reasons and (is_full or call.flag("strict") or 0 < partitions <= offline):
            return _not_ready(reasons)
        return Answer(200, _lines(["ok", *reasons]), TEXT) if reasons else _OK

    return [Route("GET", "/healthz", healthy, blocking=False), Route("GET", "/readyz", ready, blocking=False)]


def _not_ready(reasons: Sequence[str]) -> Answer:
    return Answer(UNAVAILABLE, _lines(reasons), TEXT)


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
