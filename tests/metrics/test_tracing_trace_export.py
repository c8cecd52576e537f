"""Spans as a collector would get them: of real requests, with an exporter into memory."""

import errno
import gzip
import queue
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from broker.client import Broker
from broker.errors import ConfigError
from broker.metrics.tracing import LogCall, Note, TraceExporter, Traces, open_exporter
from broker.runtime.clock import SystemClock
from broker.server import broker_server
from tests.compat.clients.librdkafka import settings
from tests.waiting import wait_for


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()

    def opened(traces: Traces, clock: Any, endpoint: str, broker_id: int, version: str) -> TraceExporter:
        return TraceExporter(traces, clock, exporter, broker_id, version)

    monkeypatch.setattr(broker_server, "open_exporter", opened)
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


def test_parked_fetch_has_its_reading_in_the_wait() -> None:
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


def test_connection_is_traced_through_the_acceptor(broker: Broker, memory: InMemorySpanExporter) -> None:
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


def test_waiting_and_handled_requests_are_traced(broker: Broker, memory: InMemorySpanExporter) -> None:
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
        assert broker.server.sockets.processors[0]._measuring.traces is None


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


def test_silent_collector_costs_spans_and_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_appends_to_several_topics_keep_the_request_s_name() -> None:
    memory = InMemorySpanExporter()
    traces = Traces(1.0)
    calls = tuple(LogCall("append", topic, 0, 7, 1.0, 1.1) for topic in ("a", "b"))
    traces._notes.append(note(log_calls=calls, handled_at=1.2, answered_at=1.2))
    TraceExporter(traces, SystemClock(), memory, 1, "0.1").step(0)
    names = sorted(span.name for span in memory.get_finished_spans())
    assert ["Produce", "handle", "log append", "log append"] == names


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[otel\]'"):
        open_exporter(Traces(1.0), SystemClock(), "http://localhost:4318", 1, "0.1")


class Hanging(InMemorySpanExporter):
    """An exporter that does not come back, as one that tries again for a minute does not."""

    def __init__(self, on_shutdown: bool) -> None:
        super().__init__()
        self.came = threading.Event()
        self.given_up = threading.Event()
        self._on_shutdown = on_shutdown

    def export(self, spans: Any) -> SpanExportResult:
        self.came.set()
        self.given_up.wait(600)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        if self._on_shutdown:
            self.given_up.set()


@pytest.mark.parametrize("listens", [True, False])
def test_hanging_exporter_does_not_keep_broker_running(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Hanging(listens)
    monkeypatch.setattr(
        broker_server, "open_exporter", lambda *others: TraceExporter(*others[:2], exporter, *others[3:])
    )
    broker = Broker(tracing_sample_ratio=1.0)
    broker.start()
    try:
        Producer(settings(broker.bootstrap_servers)).list_topics(timeout=30)
        assert exporter.came.wait(60)
        running = broker.server
    finally:
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        stopping.join(60)
        ended = not stopping.is_alive()
        exporter.given_up.set()
    assert ended
    # What is left behind touches no data: the stop was a clean one.
    assert 0 == running.left_behind


@pytest.fixture
def collector() -> Iterator[tuple[str, "queue.Queue[ExportTraceServiceRequest]"]]:
    """What OpenTelemetry's collector does with OTLP over HTTP: it parses what comes."""
    received: queue.Queue[ExportTraceServiceRequest] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert ("/v1/traces", "application/x-protobuf") == (self.path, self.headers["content-type"])
            received.put(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        serving = threading.Thread(target=http.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/v1/traces", received
        finally:
            http.shutdown()
            serving.join()


def test_a_collector_gets_what_it_understands(
    collector: tuple[str, "queue.Queue[ExportTraceServiceRequest]"],
) -> None:
    url, received = collector
    with Broker(tracing_sample_ratio=1.0, tracing_endpoint=url) as broker:
        producer = Producer(settings(broker.bootstrap_servers, acks=-1))
        producer.produce("orders", b"a secret")
        assert 0 == producer.flush(30)
        spans: dict[str, Any] = {}
        while not {"accept", "acceptor", "Produce orders", "handle", "log append"} <= spans.keys():
            for resource in received.get(timeout=60).resource_spans:
                services = {each.key: each.value.string_value for each in resource.resource.attributes}
                assert "reactor-broker" == services["service.name"]
                spans |= {span.name: span for scope in resource.scope_spans for span in scope.spans}
    produced, append = spans["Produce orders"], spans["log append"]
    assert Span.SpanKind.SPAN_KIND_SERVER == produced.kind
    assert produced.trace_id == append.trace_id
    assert append.parent_span_id == spans["handle"].span_id
    now_ns = time.time_ns()
    assert now_ns - 600e9 < produced.start_time_unix_nano <= append.start_time_unix_nano <= now_ns
