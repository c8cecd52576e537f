"""Live figures as server-sent events."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.http.api.harness import Api, api_broker, differences, documented


@contextmanager
def streamed(api: Api, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of a stream."""
    host, port = api.broker.address("http").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
        lines = client.makefile("r", encoding="utf-8", newline="\n")
        status = lines.readline()
        assert " 200 " in status, status

        def found() -> Iterator[tuple[str, Any]]:
            event = ""
            for line in lines:
                if line.startswith("event: "):
                    event = line[7:].strip()
                elif line.startswith("data: "):
                    yield event, json.loads(line[6:])

        yield found()


def test_overview_comes_at_once_and_after_each_sample() -> None:
    with api_broker() as api, streamed(api, "/api/v1/live") as events:
        event, overview = next(events)
        assert "overview" == event
        assert [] == differences(documented("/api/v1/overview"), overview)
        assert "overview" == next(events)[0]


def test_series_and_reactor_come_if_requested() -> None:
    with api_broker() as api, streamed(api, "/api/v1/live?series=connections,nothing&reactor=true") as events:
        seen: dict[str, Any] = {}
        while len(seen) < 3:
            event, data = next(events)
            seen[event] = data
        assert {"connections"} == seen["samples"]["values"].keys()
        assert seen["reactor"].keys() == {"reactor", "control"}


def test_streams_end_with_the_broker() -> None:
    with api_broker() as api, streamed(api, "/api/v1/live") as events:
        next(events)
        api.broker.stop()
        assert all(event in ("overview", "samples") for event, _ in events)
