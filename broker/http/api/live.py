"""``/api/v1/live``: the overview after each sample and, if asked for, the values of series and the state of the reactor, as
server-sent events.

| event | when | data |
|---|---|---|
| overview | at once, and after each sample | as ``/api/v1/overview`` |
| samples | after each sample, with ``series`` | ``{"time_ms": ..., "values": {"name": 1.5}}`` |
| reactor | every second, with ``reactor=true`` | as ``reactor`` of ``/api/v1/connections`` |

The sampler's thread makes the events. What the client may see is asked again each time.

Tests: tests/http/api/test_live.py.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from broker.http.api.history import permitted, wanted
from broker.network.callers import Callers
from broker.network.figures import Figures
from broker.network.routes import Answer, Call, EventStream, Route, stream_answer
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.security.acl import Operation, ResourceType


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
        """There is a new sample."""
        listeners = self._present()
        if not listeners:
            return
        overview, now_ms = _json(self._overview()), self._clock.time_ms()
        for each in listeners:
            each.stream.send("overview", overview)
            if each.series:
                names = permitted(each.call, self._callers, each.series)
                each.stream.send("samples", _json({"time_ms": now_ms, "values": self._figures.history.last(names)}))

    def tick(self) -> None:
        """About every second."""
        listeners = [each for each in self._present() if each.reactor]
        if listeners:
            reactor = _json(self._reactor())
            for each in listeners:
                each.stream.send("reactor", reactor)

    def _present(self) -> list[_Listener]:
        """Those that still read and may."""
        with self._lock:
            self._listeners = [each for each in self._listeners if not each.stream.closed]
            present = list(self._listeners)
        for each in present:
            if not self._callers.may(each.call, Operation.DESCRIBE, ResourceType.CLUSTER):
                each.stream.close()
        return [each for each in present if not each.stream.closed]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
