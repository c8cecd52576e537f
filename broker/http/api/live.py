"""``/api/v1/live``, ``/api/v1/history`` and ``/api/v1/events``.

``live`` sends server-sent events: the overview after each sample and, if asked for, values of series and the state of
the reactor.

| event | when | data |
|---|---|---|
| overview | at once, and after each sample | as ``/api/v1/overview`` |
| samples | after each sample, with ``series`` | ``{"time_ms": ..., "values": {"name": 1.5}}`` |
| reactor | every second, with ``reactor=true`` | as ``reactor`` of ``/api/v1/connections`` |

The sampler's thread makes the events and checks the client's rights each time.

``history`` returns figures of the last hour as series. ``series`` names them, separated by commas; a comma within a
name is written ``%2C``, and a percent sign ``%25``. Without it, all series of the whole broker are returned. Series
that the client may not describe, and series without a history, are left out.

``events`` returns recent events of the log.

Tests: tests/http/api/test_history_calls.py.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from broker import log
from broker.log import EVENTS_MAX
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from broker.web.callers import Callers
from broker.web.history import WHOLE, Figures
from broker.web.routes import Answer, Call, EventStream, Route, json_answer, limit_of, number_of, stream_answer

# The number of series of one answer, and of one stream: 180 values each are 200 KB of JSON.
SERIES_MAX: Final = 100
# The default of `since`: ten minutes ago.
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
    """The names in the parameter ``series``, in which only commas and percent signs are escaped."""
    names = text.split(",", SERIES_MAX)[:SERIES_MAX]
    return [name.replace("%2C", ",").replace("%2c", ",").replace("%25", "%") for name in names]


def permitted(call: Call, callers: Callers, names: Sequence[str]) -> list[str]:
    """The series of things that the client may describe."""
    if callers.authorizer is None:
        return list(names)
    return [name for name in names if callers.may(call, Operation.DESCRIBE, *_resource(name))]


def _resource(series: str) -> tuple[ResourceType, str]:
    kind, _, rest = series.partition(":")
    if kind not in _KINDS or ":" not in rest:
        return ResourceType.CLUSTER, CLUSTER_NAME
    return _KINDS[kind], rest.rpartition(":")[0]


_LEVELS = ("debug", "info", "warning", "error")


class Events:
    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/events", self.page)]

    def page(self, call: Call) -> Answer:
        self._callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        limit = limit_of(call, EVENTS_MAX, EVENTS_MAX)
        since = number_of(call, "since", 0)
        level = call.query.get("level", "debug")
        least = _LEVELS.index(level) if level in _LEVELS else 0
        events = [
            {"time_ms": event.time_ms, "level": event.level, "event": event.event, "fields": dict(event.fields)}
            for event in reversed(log.recent())
            if event.time_ms >= (since or 0) and _LEVELS.index(event.level) >= least
        ]
        return json_answer({"events": events[:limit]})


@attrs.frozen(eq=False)
class _Listener:
    call: Call
    stream: EventStream
    series: Sequence[str]
    reactor: bool


class Live:
    def __init__(
        self,
        figures: Figures,
        callers: Callers,
        clock: Clock,
        overview: Callable[[], dict[str, Any]],
        reactor: Callable[[], dict[str, Any]],
    ) -> None:
        self._figures = figures
        self._callers = callers
        self._clock = clock
        self._overview = overview
        self._reactor = reactor
        self._lock = Lock()
        self._listeners: list[_Listener] = []

    def __len__(self) -> int:
        return len(self._listeners)

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/live", self.begin)]

    def begin(self, call: Call) -> Answer:
        self._callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        series = wanted(call, self._figures) if call.query.get("series") else []
        reactor = call.flag("reactor")
        overview = _json(self._overview())

        def start(stream: EventStream) -> None:
            stream.send("overview", overview)
            with self._lock:
                self._listeners.append(_Listener(call, stream, series, reactor))

        return stream_answer(start, call.principal, of_cluster=True)

    # -- on the sampler's thread --------------------------------------------------------------------------------------

    def sampled(self) -> None:
        """Called after each sample."""
        listeners = self._present()
        if not listeners:
            return
        overview, now_ms = _json(self._overview()), self._clock.time_ms()
        for listener in listeners:
            listener.stream.send("overview", overview)
            if listener.series:
                names = permitted(listener.call, self._callers, listener.series)
                listener.stream.send("samples", _json({"time_ms": now_ms, "values": self._figures.history.last(names)}))

    def tick(self) -> None:
        """Called about every second."""
        listeners = [listener for listener in self._present() if listener.reactor]
        if listeners:
            reactor = _json(self._reactor())
            for listener in listeners:
                listener.stream.send("reactor", reactor)

    def _present(self) -> list[_Listener]:
        """The listeners that still read and still have the right to."""
        with self._lock:
            self._listeners = [listener for listener in self._listeners if not listener.stream.closed]
            present = list(self._listeners)
        for listener in present:
            if not self._callers.may(listener.call, Operation.DESCRIBE, ResourceType.CLUSTER):
                listener.stream.close()
        return [listener for listener in present if not listener.stream.closed]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
