"""Spans as a collector would get them: of real requests, with an exporter into memory."""

import errno
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from broker import server
from broker.client import Broker
from broker.errors import ConfigError
from broker.network.trace_export import TraceExporter, open_exporter
from broker.network.traces import LogCall, Note, Traces
from broker.runtime.clock import SystemClock
from tests.compat.clients.librdkafka import settings
from tests.network.harness import wait_for


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()

    def opened(traces: Traces, clock: Any, endpoint: str, broker_id: int, version: str) -> TraceExporter:
        return TraceExporter(traces, clock, exporter, broker_id, version)

    monkeypatch.setattr(server, "open_exporter", opened)
    return exporter


@pytest.fixture
def broker(memory: InMemorySpanExporter) -> Iterator[Broker]:
    with Broker(tracing_sample_ratio=1.0) as broker:
        yield broker


def test_the_way_of_a_record_is_seen(broker: Broker, memory: InMemorySpanExporter) -> None:
    producer = Producer(settings(broker.bootstrap_servers, acks=-1, client_id="me"))
    producer.produce("orders", b"a secret", key=b"another")
    assert 0 == producer.flush(30)

    def spans() -> dict[str, Any]:
        return {span.name: span for span in memory.get_finished_spans()}

    wait_for(lambda: "log append" in spans())
    found = spans()
    produced = found["Produce orders"]
    assert SpanKind.SERVER == produced.kind
    expected = {
        "messaging.system": "kafka",
        "messaging.operation.name": "produce",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.client.id": "me",
        "network.peer.address": "127.0.0.1",
        "broker.listener": "kafka",
    }
    assert expected.items() <= dict(produced.attributes).items()
    of_request = [span for span in memory.get_finished_spans() if span.context.trace_id == produced.context.trace_id]
    # An fsync was waited for.
    assert {"Produce orders", "handle", "log append", "wait"} <= {span.name for span in of_request}
    append = next(span for span in of_request if span.name == "log append")
    handle = next(span for span in of_request if span.name == "handle")
    assert append.parent.span_id == handle.context.span_id
    assert handle.parent.span_id == produced.context.span_id
    for span in of_request:
        assert produced.start_time <= span.start_time <= span.end_time <= produced.end_time
    assert "reactor-broker" == produced.resource.attributes["service.name"]
    text = " ".join(span.to_json() for span in memory.get_finished_spans())
    assert "secret" not in text
    assert "another" not in text


def test_the_way_of_a_fetch_is_seen(broker: Broker, memory: InMemorySpanExporter) -> None:
    producer = Producer(settings(broker.bootstrap_servers))
    producer.produce("orders", b"a secret")
    assert 0 == producer.flush(30)
    consumer = Consumer(settings(broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe(["orders"])
    wait_for(lambda: consumer.poll(0.1))
    consumer.close()
    wait_for(lambda: "Fetch orders" in {span.name for span in memory.get_finished_spans()})
    fetched = next(span for span in memory.get_finished_spans() if span.name == "Fetch orders")
    assert {"messaging.operation.type": "receive", "messaging.kafka.offset": 0}.items() <= dict(
        fetched.attributes
    ).items()
    of_request = [span for span in memory.get_finished_spans() if span.context.trace_id == fetched.context.trace_id]
    (read,) = [span for span in of_request if span.name == "log read"]
    assert read.parent.span_id in {span.context.span_id for span in of_request}
    assert "orders" == read.attributes["messaging.destination.name"]


def test_a_fetch_that_was_parked_has_its_reading_in_the_wait() -> None:
    memory = InMemorySpanExporter()
    traces = Traces(1.0)
    calls = (
        LogCall("read", "a", 0, 7, 0.9, 1.0),
        LogCall("load", "a", 0, None, 1.1, 1.2),
        LogCall("read", "a", 0, 7, 2.5, 2.6),
    )
    traces._notes.append(note(kind="Fetch", log_calls=calls, received_at=0.5, handled_at=2.0, answered_at=3.0))
    TraceExporter(traces, SystemClock(), memory, 1, "0.1").step(0)
    spans = memory.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    parents = [(span.name, names[span.parent.span_id]) for span in spans if span.name.startswith("log ")]
    assert [("log read", "Fetch a"), ("log load", "handle"), ("log read", "wait")] == parents


def test_a_connection_is_seen_on_its_way_through_the_acceptor(broker: Broker, memory: InMemorySpanExporter) -> None:
    producer = Producer(settings(broker.bootstrap_servers))
    producer.list_topics(timeout=30)
    wait_for(lambda: "accept" in {span.name for span in memory.get_finished_spans()})
    accepted = next(span for span in memory.get_finished_spans() if span.name == "accept")
    assert "kafka" == accepted.attributes["broker.listener"]
    inside = [
        span for span in memory.get_finished_spans() if span.parent and span.parent.span_id == accepted.context.span_id
    ]
    assert ["acceptor", "processor"] == [span.name for span in inside]
    assert accepted.start_time == inside[0].start_time <= inside[0].end_time == inside[1].start_time
    assert inside[1].end_time == accepted.end_time


def test_requests_that_wait_and_those_of_handlers_are_seen(broker: Broker, memory: InMemorySpanExporter) -> None:
    broker.server.kafka.logs.create_topic("orders", 1)
    consumer = Consumer(settings(broker.bootstrap_servers, group_id="g"))
    consumer.subscribe(["orders"])
    wait_for(lambda: consumer.poll(0.1) or consumer.assignment())
    consumer.poll(1)  # a fetch waits for records
    consumer.close()
    seen = {"JoinGroup", "Fetch", "channel", "wait"}
    wait_for(lambda: seen <= {span.name for span in memory.get_finished_spans()})


def test_off_nothing_is_made_or_loaded() -> None:
    with Broker() as broker:
        assert broker.server.kafka.traces is None
        assert broker.server.sockets.processors[0]._traces is None


def note(**fields: Any) -> Note:
    values = {
        "kind": "Produce",
        "client_id": None,
        "api_version": 9,
        "peer": "127.0.0.1",
        "listener": "kafka",
        "processor": 0,
        "received_at": 1.0,
        "taken_at": 1.0,
        "handled_at": 1.0,
        "answered_at": 1.0,
        "by_handler": False,
        "log_calls": (),
    }
    return Note(**{**values, **fields})


def test_a_collector_that_does_not_answer_costs_spans_and_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(InMemorySpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            raise OSError(errno.ECONNREFUSED, "connection refused", "http://me:secret@collector/?key=another")

    traces = Traces(1.0)
    traces._notes.extend([note(), note()])
    exporter = TraceExporter(traces, SystemClock(), Broken(), 1, "0.1")
    assert exporter.step(0)
    traces.dropped = 5
    traces._notes.append(note())
    exporter.step(0)
    said = capsys.readouterr().err
    assert 2 == said.count("traces_dropped")
    assert '"requests": 6' in said
    assert "connection refused" in said
    assert "secret" not in said
    assert "another" not in said
    assert not exporter.step(0)


def test_appends_to_several_topics_leave_the_name_to_the_request() -> None:
    memory = InMemorySpanExporter()
    traces = Traces(1.0)
    calls = tuple(LogCall("append", topic, 0, 7, 1.0, 1.1) for topic in ("a", "b"))
    traces._notes.append(note(log_calls=calls, handled_at=1.2, answered_at=1.2))
    TraceExporter(traces, SystemClock(), memory, 1, "0.1").step(0)
    names = sorted(span.name for span in memory.get_finished_spans())
    assert ["Produce", "handle", "log append", "log append"] == names


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"reactor-broker\[otel\]"):
        open_exporter(Traces(1.0), SystemClock(), "http://localhost:4318", 1, "0.1")
