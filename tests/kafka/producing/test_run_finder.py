"""What a client can make it cost to look for runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from broker.kafka.producing import run_finder
from broker.kafka.producing.run_finder import RunFinder
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control


def request(topic: str) -> bytes:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": b"records"}]}]
    return control.encode_request(ApiKey.PRODUCE, 9, 1, "client", {"acks": 1, "timeout": 30_000, "topic_data": data})


class Counted:
    """A function and how often it was called."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(run_finder.template_of)
    monkeypatch.setattr(run_finder, "template_of", counted)
    return counted


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(run_finder.follow)
    monkeypatch.setattr(run_finder, "follow", counted)
    return counted


def look(requests: list[bytes], compacted: str = "") -> int:
    """Look for runs as a session does that has received all of these. How many requests are in one."""
    config = SimpleNamespace(compact=True, compression_codec=None)
    context: Any = SimpleNamespace(
        metering=None,
        traces=None,
        appends_slow_until=0.0,
        config=SimpleNamespace(socket_request_max_bytes=1 << 20),
        logs=SimpleNamespace(partitions={(compacted, 0): SimpleNamespace(config=config)}),
    )
    finder = RunFinder(context)
    in_runs = 0
    data = memoryview(b"".join(requests))
    while len(data) > 4 + (length := int.from_bytes(data[:4], "big")):
        size = finder.find(data, 4 + length)
        if finder.size:
            in_runs += len(finder.run)
        data = data[size:]
    return in_runs


def test_few_requests_are_parsed_twice_where_no_two_neighbours_are_alike(parsed: Counted) -> None:
    assert look([request("topic"), request("another-topic")] * 500) == 0
    assert parsed.calls < 100


def test_few_requests_are_parsed_twice_where_there_are_more_partitions_than_templates(parsed: Counted) -> None:
    assert look([request(f"topic-{number:03}") for number in range(100)] * 50) == 0
    assert parsed.calls < 500


def test_a_client_of_several_topics_has_its_runs_found(parsed: Counted) -> None:
    requests = ([request("topic")] * 5 + [request("another-topic")] * 5) * 50
    assert look(requests) > len(requests) * 0.9


def test_what_is_not_handled_as_a_run_is_followed_once(followed: Counted) -> None:
    assert look([request("topic")] * 1000, compacted="topic") == 0
    assert followed.calls < 30
