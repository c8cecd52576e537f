"""How long requests take: what a processor measures of them, and the sums."""

from collections.abc import Callable

import pytest

from broker.metrics import names
from broker.metrics.request_times import PARTS, RequestTimes, ranges, requests
from broker.network.mute import RESPONSE_UNSENT, THROTTLED
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, serving


def test_late_answer_is_measured_in_all_its_parts() -> None:
    table = RequestTimes()
    table.answered_later("Fetch", 10.0, 10.002, 10.003, 11.0)
    found = ranges([table])
    assert {("Fetch",): 1} == requests([table])
    assert {part: pytest.approx(found["Fetch", part][1]) for part in ("queue", "local", "wait")} == {
        "queue": 0.002,
        "local": 0.001,
        "wait": 0.997,
    }
    bounds = names.REQUEST_SECONDS.bounds
    assert 1 == found["Fetch", "wait"][0][bounds.index(1.0)]


def test_measured_request_stands_for_those_since_the_last() -> None:
    table = RequestTimes()
    table.at_once["Produce"] += 6
    table.at_once["Fetch"] += 4
    table.answered_at_once(["Produce", 0.0, 0.01, "Fetch", 0.01, 0.02], 0.0, 0.03)
    found = ranges([table])
    # Ten were answered and two were measured: each stands for five.
    assert 5 == sum(found["Produce", "local"][0])
    assert 5 == sum(found["Fetch", "local"][0])
    assert pytest.approx(0.05) == found["Fetch", "queue"][1]
    assert pytest.approx(0.10) == found["Produce", "send"][1]
    # None of the ten has waited.
    assert (6, 0.0) == (found["Produce", "wait"][0][0], found["Produce", "wait"][1])
    table.at_once["Fetch"] += 3
    table.answered_at_once(["Fetch", 0.0, 0.01, "Fetch", 0.01, 0.02], 0.0, 0.03)
    # What is left over by the division is carried on.
    table.at_once["Fetch"] += 1
    table.answered_at_once(["Fetch", 0.0, 0.01], 0.0, 0.03)
    assert 9 == sum(ranges([table])["Fetch", "local"][0])


def test_tables_are_added_up() -> None:
    one, other = RequestTimes(), RequestTimes()
    one.at_once["Fetch"] += 2
    other.answered_later("Fetch", 0.0, 0.0, 0.0, 0.0)
    other.at_once["Metadata"] += 1
    assert {("Fetch",): 3, ("Metadata",): 1} == requests([one, other])
    assert set(ranges([one, other])) == {("Fetch", part) for part in PARTS}


def test_crossing_threads_give_no_negative_times() -> None:
    table = RequestTimes()
    table.answered_later("Fetch", 0.0, 2.0, 1.0, 3.0)
    assert 0.0 == ranges([table])["Fetch", "local"][1]


# -- on a processor -------------------------------------------------------------------------------------------------------

NewBench = Callable[..., Bench]


def sums(table: RequestTimes) -> dict[str, float]:
    """By part, in ms."""
    return {part: round(1000 * ranges([table])["other", part][1]) for part in PARTS}


def counts(table: RequestTimes) -> dict[str, float]:
    return {part: sum(ranges([table])["other", part][0]) for part in PARTS}


def test_immediate_answer_is_counted_and_measured(bench: NewBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"e", b"x"))
    b.until(lambda: client.frames)
    table = b.processor.times
    assert {("other",): 1} == requests([table])
    assert dict.fromkeys(PARTS, 1) == counts(table)


def test_request_counts_include_unmeasured_steps(bench: NewBench) -> None:
    b = bench()
    client = b.connect()
    for number in range(1, 11):
        client.send(frame(b"e", b"x"))
        b.until(lambda n=number: len(client.frames) == n)
    table = b.processor.times
    assert ({("other",): 10}, 1) == (requests([table]), counts(table)["local"])
    b.clock.now += 1
    client.send(frame(b"e", b"x"))
    b.until(lambda: len(client.frames) == 11)
    assert ({("other",): 11}, 11) == (requests([table]), counts(table)["local"])


def test_handler_request_waits_in_queue(bench: NewBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"p", b"x"))
    b.until(lambda: len(b.channel), handling=False)
    b.clock.now += 0.25
    b.until(lambda: client.frames)
    table = b.processor.times
    assert ({"other": 1}, {}) == (dict(table.later), dict(table.at_once))
    assert {"queue": 250, "local": 0, "wait": 0, "throttle": 0, "send": 0} == sums(table)


@pytest.mark.parametrize("command", [b"h", b"H"])
def test_parked_request_counts_wait_when_answered(bench: NewBench, command: bytes) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(command, b"x"))
    b.until(lambda: b.service.parked)
    b.settle()
    table = b.processor.times
    assert {} == requests([table])
    b.clock.now += 2
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(command, b"x")])
    b.until(lambda: client.frames)
    assert {("other",): 1} == requests([table])
    assert {"queue": 0, "local": 0, "wait": 2000, "throttle": 0, "send": 0} == sums(table)


def test_unread_answer_takes_long_to_send(bench: NewBench) -> None:
    b = bench(high=1024, low=512, send_buffer=4096)
    client = b.connect(receive_buffer=4096)
    client.reads = False
    client.send(frame(b"z", b"xxxxxxxx"))
    b.until(lambda: b.processor.stats.mutes[RESPONSE_UNSENT])
    b.settle()
    b.clock.now += 3
    client.reads = True
    b.until(lambda: client.frames)
    b.settle()
    assert 3000 == sums(b.processor.times)["send"]
    assert {("other",): 1} == requests([b.processor.times])


def test_throttle_time_of_client_is_measured(bench: NewBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"t", b"x"))
    b.until(lambda: client.frames and b.service.throttled)
    b.clock.now += 5
    connection, outbox = b.service.throttled.pop()
    outbox.end_throttling(connection)
    b.settle()
    assert 5000 == sums(b.processor.times)["throttle"]
    assert 1 == b.processor.stats.mutes[THROTTLED]


def test_throttled_stream_without_name_is_no_api(bench: NewBench) -> None:
    b = bench(EchoService(in_flight_max=0))
    client = b.connect()
    client.send(frame(b"t", b"x"))
    b.until(lambda: client.frames and b.service.throttled)
    b.clock.now += 5
    connection, outbox = b.service.throttled.pop()
    outbox.end_throttling(connection)
    b.settle()
    assert {} == ranges([b.processor.times])
    assert 1 == b.processor.stats.mutes[THROTTLED]


def test_new_processor_continues_table_of_its_predecessor() -> None:
    with serving(network_threads=2) as served:
        client = served.connect()
        served.ask(client, frame(b"e", b"x"))
        plane = served.server.planes[0]
        for _ in range(5):
            served.server.resize_processors(1)
            served.server.resize_processors(2)
        assert 2 == len(plane.times)
        assert {("other",): 1} == requests(plane.times)
