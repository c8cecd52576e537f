"""The text of a registry: read back with Prometheus's own parsers."""

from collections.abc import Mapping
from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from broker.metrics import Registry
from broker.metrics.metric import Kind, Metric
from broker.metrics.registry import OPENMETRICS, PROMETHEUS, negotiate, render
from broker.network.work import Abandoned

REQUESTS = Metric("broker_requests", Kind.COUNTER, 'Requests, "all"\nof \\ them.', ("api", "code"))
CONNECTIONS = Metric("broker_connections", Kind.GAUGE, "Open connections.", ("listener",))
SECONDS = Metric("broker_seconds", Kind.HISTOGRAM, "Time.", ("part",), bounds=(0.1, 1.0))

# What a text may contain. Surrogates are no Unicode text, and are sent as "?".
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def read_back(text: bytes, content_type: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    parse = (
        openmetrics.text_string_to_metric_families if content_type == OPENMETRICS else text_string_to_metric_families
    )
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def test_all_kinds_are_written_as_prometheus_reads_them() -> None:
    registry = Registry()
    registry.counter(REQUESTS).cell('pro"duce', "0").value += 2
    registry.gauge(CONNECTIONS, lambda: {("kafka",): 3})
    registry.histogram(SECONDS).cell("local").observe(0.5)
    lines = render(registry).decode().splitlines()
    for line in (
        '# HELP broker_requests_total Requests, "all"\\nof \\\\ them.',
        "# TYPE broker_requests_total counter",
        r'broker_requests_total{api="pro\"duce",code="0"} 2.0',
        "# HELP broker_connections Open connections.",
        'broker_connections{listener="kafka"} 3.0',
        'broker_seconds_bucket{part="local",le="0.1"} 0.0',
        'broker_seconds_bucket{part="local",le="1.0"} 1.0',
        'broker_seconds_bucket{part="local",le="+Inf"} 1.0',
        'broker_seconds_count{part="local"} 1.0',
        'broker_seconds_sum{part="local"} 0.5',
    ):
        assert line in lines


def test_openmetrics_family_has_no_total_suffix() -> None:
    registry = Registry()
    registry.counter(REQUESTS).cell("produce", "0").value += 2
    lines = render(registry, OPENMETRICS).decode().splitlines()
    assert "# TYPE broker_requests counter" in lines
    assert 'broker_requests_total{api="produce",code="0"} 2.0' in lines
    assert "# EOF" == lines[-1]


@pytest.mark.parametrize("content_type", [PROMETHEUS, OPENMETRICS])
@given(
    counts=st.dictionaries(st.tuples(TEXTS, TEXTS), st.floats(0, allow_nan=False), max_size=5),
    gauges=st.dictionaries(st.tuples(TEXTS), st.floats(allow_nan=False), max_size=5),
    observed=st.lists(st.floats(0, 10), min_size=1),
)
def test_prometheus_reads_back_what_was_written(
    content_type: str,
    counts: Mapping[tuple[str, ...], float],
    gauges: Mapping[tuple[str, ...], float],
    observed: list[float],
) -> None:
    registry = Registry()
    registry.read_counter(REQUESTS, lambda: counts)
    registry.gauge(CONNECTIONS, lambda: gauges)
    cell = registry.histogram(SECONDS).cell("send")
    for value in observed:
        cell.observe(value)
    found = read_back(render(registry, content_type), content_type)
    for (api, code), count in counts.items():
        assert found["broker_requests_total", frozenset({("api", api), ("code", code)})] == count
    for (listener,), value in gauges.items():
        assert found["broker_connections", frozenset({("listener", listener)})] == value
    part = ("part", "send")
    assert len(observed) == found["broker_seconds_bucket", frozenset({part, ("le", "+Inf")})]
    assert len(observed) == found["broker_seconds_count", frozenset({part})]
    assert sum(value <= 0.1 for value in observed) == found["broker_seconds_bucket", frozenset({part, ("le", "0.1")})]


def test_special_numbers_use_prometheus_spelling() -> None:
    registry = Registry()
    registry.gauge(CONNECTIONS, lambda: {("a",): inf, ("b",): -inf, ("c",): float("nan")})
    text = render(registry)
    assert b'{listener="a"} +Inf' in text
    assert b'{listener="b"} -Inf' in text
    assert isnan(read_back(text, PROMETHEUS)["broker_connections", frozenset({("listener", "c")})])


def test_text_that_is_no_unicode_is_sent() -> None:
    registry = Registry()
    registry.gauge(CONNECTIONS, lambda: {("\udcff",): 1})
    assert b'broker_connections{listener="?"} 1.0' in render(registry)


def test_a_metric_without_a_value_is_left_out() -> None:
    registry = Registry()
    registry.gauge(CONNECTIONS, dict)
    assert b"" == render(registry)


def test_rendering_pauses_between_pieces_and_can_be_abandoned() -> None:
    registry = Registry()
    registry.gauge(CONNECTIONS, lambda: {(str(number),): number for number in range(2_000)})
    pauses: list[None] = []
    render(registry, pause=lambda: pauses.append(None))
    assert len(pauses) >= 4

    def give_up() -> None:
        raise Abandoned

    with pytest.raises(Abandoned):
        render(registry, pause=give_up)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", PROMETHEUS),
        ("*/*", PROMETHEUS),
        ("text/plain", PROMETHEUS),
        # What Prometheus 2 and 3 send.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1",
            OPENMETRICS,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2",
            OPENMETRICS,
        ),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=2.0.0, text/plain", PROMETHEUS),
        ("application/openmetrics-text;q=0, text/plain", PROMETHEUS),
        ("application/json", PROMETHEUS),
        (";;,=;,", PROMETHEUS),
    ],
)
def test_openmetrics_is_sent_to_whoever_asks_for_it(accept: str, content_type: str) -> None:
    assert content_type == negotiate(accept)
