"""What a client can make it cost to look for runs."""

from functools import partialmethod
from types import SimpleNamespace
from typing import Any

import pytest

from broker.kafka.handlers.produce import API
from broker.kafka.kafka_session import RunFinder
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.produce import Templates
from protocol.kafka.schema import control


def request(topic: str, client: str = "client") -> bytes:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": b"records"}]}]
    return control.encode_request(ApiKey.PRODUCE, 9, 1, client, {"acks": 1, "timeout": 30_000, "topic_data": data})


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
    counted = Counted(Templates.learn)
    monkeypatch.setattr(Templates, "learn", partialmethod(counted))
    return counted


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(Templates.follow)
    monkeypatch.setattr(Templates, "follow", partialmethod(counted))
    return counted


def look(requests: list[bytes], compacted: str = "", *, alone: bool = False) -> int:
    """Look for runs as a session does that has received all of these, or one after the other. How many requests are in one."""
    context: Any = SimpleNamespace(
        metering=None,
        traces=None,
        faults=None,
        appends_slow_until=0.0,
        config=SimpleNamespace(socket_request_max_bytes=1 << 20),
        logs=SimpleNamespace(partitions={(compacted, 0): SimpleNamespace(decompresses=True)}),
    )
    finder = RunFinder(context, API)
    in_runs = 0
    data = memoryview(b"".join(requests))
    while data:
        part = data[: 4 + int.from_bytes(data[:4], "big")] if alone else data
        size = finder.find(part, 4 + int.from_bytes(data[:4], "big"))
        if finder.found is not None:
            in_runs += finder.found.count
        data = data[size:]
    return in_runs


@pytest.mark.parametrize("alone", [False, True])
def test_alternating_topics_are_parsed_once(parsed: Counted, alone: bool) -> None:
    requests = [request("topic"), request("another-topic")] * 500
    assert look(requests, alone=alone) == len(requests)
    assert parsed.calls == 2


@pytest.mark.parametrize("alone", [False, True])
def test_changing_client_id_causes_few_double_parses(parsed: Counted, alone: bool) -> None:
    requests = [request("topic", "client"), request("topic", "another-client")] * 500
    look(requests, alone=alone)
    assert parsed.calls < 100


@pytest.mark.parametrize("alone", [False, True])
def test_excess_partitions_cause_few_double_parses(parsed: Counted, alone: bool) -> None:
    look([request(f"topic-{number:03}") for number in range(100)] * 50, alone=alone)
    assert parsed.calls < 500


def test_client_of_several_topics_has_runs(parsed: Counted) -> None:
    requests = ([request("topic")] * 5 + [request("another-topic")] * 5) * 50
    assert look(requests) > len(requests) * 0.9


def test_client_of_few_busy_partitions_has_runs() -> None:
    requests = [
        one for number in range(300) for one in [*[request("topic-one")] * 8, request(f"topic-{number % 100:03}")]
    ]
    assert look(requests) > len(requests) * 0.8


def test_request_that_is_no_run_is_matched_once(followed: Counted) -> None:
    assert look([request("topic")] * 1000, compacted="topic") == 0
    assert followed.calls < 30


def test_single_request_without_run_is_seldom_matched(followed: Counted) -> None:
    assert look([request("topic")] * 1000, compacted="topic", alone=True) == 0
    assert followed.calls < 100
