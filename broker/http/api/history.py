"""``/api/v1/history``: figures of the last hour, as series.

``series`` names them, with commas between; a comma within a name is written ``%2C`` there, and a percent sign ``%25``. Without
it, all series of the whole broker are given. What the client may not describe, and what has no history, is left out.

Tests: tests/http/api/test_history_calls.py.
"""

from collections.abc import Sequence
from typing import Final

from broker.network.callers import Callers
from broker.network.figures import Figures
from broker.network.history import WHOLE
from broker.network.pages import number_of
from broker.network.routes import Answer, Call, Route, json_answer
from broker.runtime.clock import Clock
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType

# Of one answer, and of one stream: 180 values each are 200 KB of JSON.
SERIES_MAX: Final = 100
# How far back without `since`: ten minutes.
_USUAL_MS = 600_000
_KINDS = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP}


class HistoryCalls:
    def __init__(self, figures: Figures, callers: Callers, clock: Clock) -> None:
        self._figures = figures
        self._callers = callers
        self._clock = clock

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/history", self.extract)]

    def extract(self, call: Call) -> Answer:
        since = number_of(call, "since", self._clock.time_ms() - _USUAL_MS)
        assert since is not None
        names = permitted(call, self._callers, wanted(call, self._figures))
        extract = self._figures.history.read(names, since)
        return json_answer({"step_s": extract.step_s, "start_ms": extract.start_ms, "series": dict(extract.series)})


def wanted(call: Call, figures: Figures) -> list[str]:
    """The series that the query names. Raises HttpError."""
    text = call.query.get("series", "")
    if not text:
        return figures.history.names(WHOLE)
    return series_names(text)


def series_names(text: str) -> list[str]:
    """The names in the parameter ``series``, of which commas and percent signs are escaped, and nothing else is."""
    names = text.split(",", SERIES_MAX)[:SERIES_MAX]
    return [name.replace("%2C", ",").replace("%2c", ",").replace("%25", "%") for name in names]


def permitted(call: Call, callers: Callers, names: Sequence[str]) -> list[str]:
    """Those whose things the client may describe."""
    if callers.authorizer is None:
        return list(names)
    return [name for name in names if callers.may(call, Operation.DESCRIBE, *_resource(name))]


def _resource(series: str) -> tuple[ResourceType, str]:
    kind, _, rest = series.partition(":")
    if kind not in _KINDS or ":" not in rest:
        return ResourceType.CLUSTER, CLUSTER_NAME
    return _KINDS[kind], rest.rpartition(":")[0]
