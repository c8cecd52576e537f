"""``/api/v1/events``: what happened lately, as the log has written it.

Tests: tests/http/api/test_events.py.
"""

from broker import recent_events
from broker.network.callers import Callers
from broker.network.pages import limit_of, number_of
from broker.network.routes import Answer, Call, Route, json_answer
from broker.recent_events import EVENTS_MAX
from broker.security.acl import Operation, ResourceType

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
            {"time_ms": each.time_ms, "level": each.level, "event": each.event, "fields": dict(each.fields)}
            for each in reversed(recent_events.recent())
            if each.time_ms >= (since or 0) and _LEVELS.index(each.level) >= least
        ]
        return json_answer({"events": events[:limit]})
