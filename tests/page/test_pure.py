"""Functions of the page that need no broker, called in the browser as its modules call them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.embedded import Broker
from broker.http.api.live import series_names
from broker.http.targets import parse_query
from tests.page.chromium import Chromium, Tab


@pytest.fixture(scope="module")
def tab(chromium: Chromium) -> Iterator[Tab]:
    with Broker(listeners=["http://127.0.0.1:0"]) as broker:
        made = chromium.open(f"http://{broker.address('http')}/page/favicon.svg")
        yield made
        made.close()


def call(tab: Tab, module: str, function: str, *arguments: Any) -> Any:
    words = ", ".join(map(json.dumps, arguments))
    return tab.run(f"import('/page/{module}.js').then((module) => module.{function}({words}))", awaits=True)


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        ("count", 1234567, "1,234,567"),
        ("count", None, "–"),
        ("compact", 0, "0"),
        ("compact", 999, "999"),
        ("compact", 999.6, "1 k"),
        ("compact", 0.25, "0.25"),
        ("compact", 12345, "12.3 k"),
        ("compact", -1500, "−1.5 k"),
        ("bytes", 0, "0 B"),
        ("bytes", 1023, "1023 B"),
        ("bytes", 1536, "1.5 KiB"),
        ("bytes", 1024**2 - 1, "1 MiB"),
        ("bytes", 5 * 1024**5, "5 PiB"),
        ("rate", 0.5, "0.5/s"),
        ("duration", 0, "0"),
        ("duration", 0.00035, "350 µs"),
        ("duration", 0.012, "12 ms"),
        ("duration", 4.21, "4.2 s"),
        ("duration", 185, "3 min 5 s"),
        ("duration", 7200, "2 h"),
        ("duration", 266400, "3 d 2 h"),
        ("duration", -1, "0 s"),
        ("duration", "x", "–"),
        ("share", 0.123, "12 %"),
        ("text", {"a": 1}, '{"a":1}'),
        ("text", "", "–"),
        ("text", False, "false"),
        ("time", -1, "–"),
        ("time", 9e15, "9000000000000000"),
    ],
)
def test_figures_are_written_as_people_read_them(tab: Tab, function: str, value: Any, expected: str) -> None:
    assert expected == call(tab, "format", function, value)


@pytest.mark.parametrize("names", [["requests", "group:billing:lag"], ["topic:a,b%2C:lag", "group:50 % ü中:lag"]])
def test_broker_reads_series_names_written_by_page(tab: Tab, names: list[str]) -> None:
    written = f"new URLSearchParams({{series: module.seriesList({json.dumps(names)})}}).toString()"
    text = tab.run(f"import('/page/chart.js').then((module) => {written})", awaits=True)
    assert names == series_names(parse_query(text)["series"])


@pytest.mark.parametrize(
    "value", [{}, [], [[]], {"a": {}}, {"a": [1, {"b": None}], "c": 'x"}{,:\\'}, [True, -1.5e300, "", " "], "text", 12]
)
def test_json_is_indented_and_stays_the_same(tab: Tab, value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=3), json.dumps(value, separators=(",", ":"))):
        pieces = call(tab, "json", "pieces", text)
        shown = "".join(piece for _, piece in pieces)
        assert value == json.loads(shown)
        assert json.dumps(value, indent=2) == shown


def test_long_or_deep_json_takes_bounded_time(tab: Tab) -> None:
    for text in ("[" + "1," * 200_000 + "1]", "[" * 50_000 + "]" * 50_000, '"' + "\\\\" * 200_000 + '"', '{"' * 50_000):
        pieces = call(tab, "json", "pieces", text)
        assert len(pieces) <= 20_001
        assert len("".join(piece for _, piece in pieces)) < 4_000_000


@pytest.mark.parametrize("segments", [[], ["topics"], ["groups", "a/b?c#d%e f"], ["topics", "ä", "messages"]])
@pytest.mark.parametrize("query", [{}, {"filter": "a&b=c d#?%"}])
def test_address_round_trips(tab: Tab, segments: list[str], query: dict[str, str]) -> None:
    address = call(tab, "router", "to", segments, query)
    assert {"segments": segments, "query": query} == call(tab, "router", "parse", address)


def reactor(**changes: Any) -> dict[str, Any]:
    usual = {
        "acceptor": {"accepted": 1, "refused": 0},
        "processors": [{"id": "processor-0", "connections": 5, "idle": 0.9, "muted": {"response_pending": 3}}],
        "channel": {"depth": 1, "capacity": 20},
        "handlers": {"threads": 8, "busy": 1, "idle": 0.9},
        "memory": {"used": 1, "capacity": 100},
    }
    return usual | changes


def processor(idle: float | None = 0.9, **muted: int) -> dict[str, Any]:
    return {"processors": [{"id": "processor-0", "connections": 5, "idle": idle, "muted": muted}]}


@pytest.mark.parametrize(
    ("state", "where", "kind", "words"),
    [
        (reactor(), None, "good", "Nothing backs up"),
        ({}, None, "good", "Nothing backs up"),
        (reactor(**processor(None)), None, "good", "Nothing backs up"),
        (reactor(**processor(channel_full=2)), "channel", "bad", "2 connections wait for a place"),
        (
            reactor(channel={"depth": 19, "capacity": 20}, handlers={"threads": 8, "busy": 8, "idle": 0}),
            "handlers",
            "bad",
            "19 of 20 places of the request channel are taken, all handlers are busy",
        ),
        (reactor(**processor(memory_short=1)), "channel", "bad", "1 connection waits for it"),
        (reactor(memory={"used": 95, "capacity": 100}), "channel", "bad", "95 % used"),
        (reactor(**processor(0.05)), "processors", "warn", "1 processor has hardly any idle time"),
        (reactor(handlers={"threads": 8, "busy": 8, "idle": 0.1}), "handlers", "warn", "All handlers are busy"),
        (reactor(**processor(unwritable=1)), "processors", "warn", "1 client does not read"),
        (reactor(**processor(throttled=3)), "processors", "warn", "3 clients are throttled"),
    ],
)
def test_the_drawing_says_where_the_reactor_backs_up(
    tab: Tab, state: dict[str, Any], where: str | None, kind: str, words: str
) -> None:
    found = call(tab, "reactor_state", "backlog", state)
    assert (where, kind) == (found["where"], found["kind"])
    assert words in found["text"]


def test_rows_without_a_figure_sort_last(tab: Tab) -> None:
    sort = """import('/page/parts.js').then(({sortedRows}) => [false, true].map((down) =>
        sortedRows([{v: 2}, {v: null}, {v: 10}, {}, {v: 1}], [{name: "v", sort: (row) => row.v}], {by: "v", down})
            .map((row) => row.v ?? null)))"""
    assert [[1, 2, 10, None, None], [10, 2, 1, None, None]] == tab.run(sort, awaits=True)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ('event: a\ndata: {"b": 1}', {"event": "a", "data": {"b": 1}}),
        ("data: [1,\ndata: 2]", {"event": "message", "data": [1, 2]}),
        (":", None),
        ("event: a", None),
        ("data: no JSON", None),
    ],
)
def test_an_event_of_a_stream_is_read(tab: Tab, block: str, expected: Any) -> None:
    assert expected == call(tab, "stream", "parsed", block)
