"""Events over HTTP: what the log has written."""

import json

from broker import log as recent_events
from broker.log import get_logger
from tests.http.api.harness import api_broker, differences, documented

log = get_logger("test")


def test_logged_events_come_newest_first() -> None:
    with api_broker() as api:
        log.warning("thing_happened", topic="orders", count=3)
        try:
            raise OSError("no space")
        except OSError as error:
            log.error("thing_failed", exc_info=error)
        answer = api.get("/events?limit=2")
        assert [] == differences(documented("/api/v1/events"), {"events": answer["events"][1:]})
        second, first = answer["events"]
        assert ("warning", "thing_happened") == (first["level"], first["event"])
        assert {"part": "test", "topic": "orders", "count": 3} == first["fields"]
        assert ("error", "OSError: no space") == (second["level"], second["fields"]["error"])
        assert ["thing_failed"] == [each["event"] for each in api.get("/events?limit=1&level=error")["events"]]
        assert [] == api.get(f"/events?since={second['time_ms'] + 1_000_000}")["events"]
        assert 400 == api.ask("/api/v1/events?limit=1001")[0]


def test_events_take_bounded_memory() -> None:
    for number in range(recent_events.EVENTS_MAX + 5):
        values = {f"field{n}" * 50: "x" * 10_000 for n in range(100)}
        recent_events.keep(
            None, "", {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": str(number), **values}
        )
    kept = recent_events.recent()
    assert recent_events.EVENTS_MAX == len(kept)
    assert str(recent_events.EVENTS_MAX + 4) == kept[-1].event
    assert len(json.dumps([dict(each.fields) for each in kept])) < 4_000_000


def test_values_of_any_kind_become_json() -> None:
    values = {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "e", "a": 2**100, "b": b"\0", "c": None}
    assert values is recent_events.keep(None, "", values)
    event = recent_events.recent()[-1]
    assert {"a": str(2**100), "b": "b'\\x00'", "c": None} == json.loads(json.dumps(dict(event.fields)))
    assert 1_767_225_600_000 == event.time_ms
