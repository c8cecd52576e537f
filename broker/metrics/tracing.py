"""Which requests are traced, and what is noted of them, without ever holding a thread of the reactor up.

A processor offers each request that it has measured when it has been answered (``request_times.py``): all that waited or that a
handler had, and of the others as many as are measured. It also offers each connection that it has got from the acceptor. Of both,
the share ``ratio`` is *noted*: a value with the times and what the peer says of itself goes into a queue with a bound. Beyond the
bound it is dropped and counted. ``TraceExporter`` makes spans of the notes, on a thread of its own. A note has neither payload
nor keys, and no text that may be secret.

``offer`` and ``arrived`` are called by any thread, ``take`` by the exporter's.

Makes OpenTelemetry's spans of these notes, and sends them to a collector. The body of a thread of its own.

A request becomes a span of kind SERVER with the attributes of OpenTelemetry's conventions for messaging systems, and a child for
each part of its way that took time:

| span | from | to |
|---|---|---|
| ``processor`` | the processor was told that bytes are there | a thread begins to handle the request, or it goes to a handler |
| ``channel`` | as ``processor``, of a request that a handler had: also its time in the request channel | a handler takes it |
| ``handle`` | a thread begins to handle it | that is done |
| ``wait`` | it waits for records, an fsync, members of a group | its answer is there |

Inside these are ``log append`` and ``log read`` for each partition, and ``log load`` for records from the disk. A fetch has
those of the reading that was sent. Each new connection is a trace of its own:

| span | from | to |
|---|---|---|
| ``accept`` | the acceptor accepts the connection | a processor has registered it |
| ``acceptor`` | so, too | it is in a processor's queue: at once, if one has room |
| ``processor`` | it is in the queue | the processor has registered it |

The libraries come with the extra ``otel`` and are imported by ``open_exporter`` only. While a collector does not answer, notes
pile up to their bound and are dropped; no other thread waits for this one.
"""

from collections import deque
from functools import partial
from typing import Any, NamedTuple, cast

from broker.errors import ConfigError
from broker.log import EventLimit, get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Event

# Notes that wait to be exported: a second of the most that a busy broker measures.
QUEUE_MAX = 4096
# Of a request that names more partitions, the rest of the work on logs is not noted.
LOG_CALLS_MAX = 32
_CLIENT_ID_MAX = 100


class LogCall(NamedTuple):
    """Work on a log for a request. The times are Clock.monotonic() s."""

    verb: str  # "append", "read", or "load": from the disk into the page cache
    topic: str
    partition: int
    offset: int | None  # the first
    began: float
    ended: float


class Arrival(NamedTuple):
    """A connection on its way through the acceptor. The times are Clock.monotonic() s, in their order."""

    peer: str
    listener: str
    processor: int
    accepted_at: float
    handed_at: float  # there was room in the processor's queue
    taken_at: float  # the processor has registered it


class Note(NamedTuple):
    """An answered request. The times are Clock.monotonic() s, in their order."""

    kind: str  # of the request, as in the metrics
    client_id: str | None
    api_version: int | None
    peer: str
    listener: str
    processor: int
    received_at: float  # the processor was told that bytes are there
    taken_at: float  # a thread began to handle it
    handled_at: float  # that was done
    answered_at: float
    by_handler: bool
    log_calls: tuple[LogCall, ...]


class Traces:
    """``ratio``: the share of the requests that is noted, from 0 to 1."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._credit = 0.0
        self._arrivals_credit = 0.0
        self._notes: deque[Note | Arrival] = deque()
        self.dropped = 0

    def offer(self, request: Any, processor: int, taken_at: float, handled_at: float, answered_at: float) -> None:
        """A request was answered. Threads that call it at the same time may note one more or less."""
        self._credit += self._ratio
        if self._credit < 1.0:
            return
        self._credit -= 1.0
        if self._full():
            return
        client_id = getattr(request, "client_id", None)
        peer = request.connection.peer
        self._notes.append(
            Note(
                request.kind,
                None if client_id is None else str(client_id)[:_CLIENT_ID_MAX],
                getattr(request, "api_version", None),
                peer.host,
                peer.listener,
                processor,
                min(request.received_at, taken_at),
                taken_at,
                max(taken_at, handled_at),
                max(taken_at, handled_at, answered_at),
                getattr(request, "done", None) is not None,
                tuple(getattr(request, "log_calls", ())[:LOG_CALLS_MAX]),
            )
        )

    def arrived(self, new: Any, processor: int, taken_at: float) -> None:
        """A processor has registered a ``NewConnection``."""
        self._arrivals_credit += self._ratio
        if self._arrivals_credit < 1.0:
            return
        self._arrivals_credit -= 1.0
        if not self._full():
            peer, handed_at = new.peer, max(new.accepted_at, new.handed_at)
            self._notes.append(
                Arrival(peer.host, peer.listener, processor, new.accepted_at, handed_at, max(handed_at, taken_at))
            )

    def _full(self) -> bool:
        if len(self._notes) < QUEUE_MAX:
            return False
        self.dropped += 1
        return True

    def take(self) -> list[Note | Arrival]:
        """What was noted since the last call."""
        notes = self._notes
        return [notes.popleft() for _ in range(len(notes))]


log = get_logger("network")

# How often (s) notes are looked for, and how long (s) a collector may take to answer.
_INTERVAL_S = 0.5
_TIMEOUT_S = 1.5
# Shorter parts (s) of a request have no span.
_LEAST_S = 0.000_001
_OPERATION_TYPES = {"produce": "send", "fetch": "receive"}


def open_exporter(traces: Traces, clock: Clock, endpoint: str, broker_id: int, version: str) -> "TraceExporter":
    """With OTLP over HTTP, to ``endpoint``. Raises ConfigError if the libraries are not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "Install the extra otel (pip install '.[otel]' in a checkout) to export traces, or set tracing_sample_ratio to 0."
        ) from error
    _silence()
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
    return TraceExporter(traces, clock, exporter, broker_id, version)


def _silence() -> None:
    """The library's own warnings about a collector that does not answer would be no events of the broker."""
    import logging

    logger = logging.getLogger("opentelemetry")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


class TraceExporter:
    """``exporter``: a SpanExporter of OpenTelemetry's SDK."""

    def __init__(self, traces: Traces, clock: Clock, exporter: Any, broker_id: int, version: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._success = SpanExportResult.SUCCESS
        self._traces = traces
        self._clock = clock
        self._exporter = exporter
        self._finished = _Finished()
        resource = Resource.create(
            {"service.name": "reactor-broker", "service.version": version, "service.instance.id": str(broker_id)}
        )
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(cast("Any", self._finished))  # a SpanProcessor in all but its base class
        self._tracer = provider.get_tracer("broker", version)
        self._event = Event()
        self._failures = EventLimit()
        self._dropped = 0

    # -- the thread's body ----------------------------------------------------------------------------------------------

    def step(self, timeout: float | None) -> bool:
        notes = self._traces.take()
        if not notes:
            self._event.wait(_INTERVAL_S if timeout is None else min(timeout, _INTERVAL_S))
            self._event.clear()
            return False
        # Times of day, from a clock that does not jump.
        offset_ns = self._clock.time_ms() * 1_000_000 - int(self._clock.monotonic() * 1e9)
        try:
            for note in notes:
                if isinstance(note, Arrival):
                    self._record_arrival(note, offset_ns)
                else:
                    self._record(note, offset_ns)
            sent = self._exporter.export(self._finished.take()) is self._success
            reason = "the collector does not take them"
        except Exception as error:  # the seam: whatever the library raises costs these spans, not the broker
            sent, reason = False, _reason(error)
        self._report(len(notes), sent, reason)
        return True

    def wakeup(self) -> None:
        self._event.set()

    def close(self) -> None:
        """From any thread, when the thread is to end: an export that is being tried again is given up, by libraries that can."""
        try:
            self._exporter.shutdown()
        except Exception as error:  # the seam, as above
            log.warning("traces_dropped", requests=0, reason=_reason(error), unlogged_before=0)

    def _report(self, requests: int, sent: bool, reason: str) -> None:
        """Say what was lost: of these requests, and of those for which there was no room."""
        dropped, self._dropped = self._traces.dropped - self._dropped, self._traces.dropped
        if sent and not dropped:
            return
        unlogged = self._failures.take(self._clock.monotonic())
        if unlogged is not None:
            log.warning(
                "traces_dropped",
                requests=dropped + (0 if sent else requests),
                reason="there are too many" if sent else reason,
                unlogged_before=unlogged,
            )

    # -- spans ----------------------------------------------------------------------------------------------------------

    def _record(self, note: Note, offset_ns: int) -> None:
        topics = {call.topic for call in note.log_calls}
        name = f"{note.kind} {next(iter(topics))}" if len(topics) == 1 else note.kind
        make = partial(self._make, offset_ns)
        inside = waiting = make(name, note.received_at, note.answered_at, None, _attributes(note), server=True)
        if note.taken_at - note.received_at >= _LEAST_S:
            make("channel" if note.by_handler else "processor", note.received_at, note.taken_at, inside)
        handling = make("handle", note.taken_at, note.handled_at, inside)
        if note.answered_at - note.handled_at >= _LEAST_S:
            waiting = make("wait", note.handled_at, note.answered_at, inside)
        for call in note.log_calls:
            if call.began < note.taken_at:  # the records of a fetch, looked up before a handler took it
                parent = inside
            else:
                parent = handling if call.began < note.handled_at else waiting
            make(f"log {call.verb}", call.began, call.ended, parent, _destination(call))

    def _record_arrival(self, note: Arrival, offset_ns: int) -> None:
        make = partial(self._make, offset_ns)
        inside = make("accept", note.accepted_at, note.taken_at, None, _where(note), server=True)
        make("acceptor", note.accepted_at, note.handed_at, inside)
        make("processor", note.handed_at, note.taken_at, inside)

    def _make(
        self,
        offset_ns: int,
        name: str,
        began: float,
        ended: float,
        parent: Any,
        attributes: dict[str, Any] | None = None,
        *,
        server: bool = False,
    ) -> Any:
        """A span with these times (Clock.monotonic() s). Returns its context, for those that are inside it."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.SERVER if server else SpanKind.INTERNAL,
            attributes=attributes,
            start_time=int(began * 1e9) + offset_ns,
        )
        span.end(int(ended * 1e9) + offset_ns)
        return set_span_in_context(span)


def _reason(error: Exception) -> str:
    """Without the text of the library's errors: the endpoint is in some, which may have a password or a key in it."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {strerror}" if strerror else type(error).__name__


def _attributes(note: Note) -> dict[str, Any]:
    operation = note.kind.lower()
    attributes: dict[str, Any] = {"messaging.operation.name": operation, **_where(note)}
    if note.api_version is not None:
        attributes |= {"messaging.system": "kafka", "broker.api_version": note.api_version}
    if operation in _OPERATION_TYPES:
        attributes["messaging.operation.type"] = _OPERATION_TYPES[operation]
    if note.client_id is not None:
        attributes["messaging.client.id"] = note.client_id
    if len({(call.topic, call.partition) for call in note.log_calls}) == 1:
        attributes |= _destination(note.log_calls[0])
    return attributes


def _where(note: Note | Arrival) -> dict[str, Any]:
    return {
        "network.peer.address": note.peer,
        "broker.listener": note.listener,
        "broker.processor": note.processor,
    }


def _destination(call: LogCall) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.destination.name": call.topic,
        "messaging.destination.partition.id": str(call.partition),
    }
    if call.offset is not None:
        attributes["messaging.kafka.offset"] = call.offset
    return attributes


class _Finished:
    """A SpanProcessor that keeps what has ended until it is taken, on one thread."""

    def __init__(self) -> None:
        self._spans: list[Any] = []

    def take(self) -> list[Any]:
        spans, self._spans = self._spans, []
        return spans

    def on_start(self, span: Any, parent_context: Any = None) -> None: ...

    def _on_ending(self, span: Any) -> None: ...

    def on_end(self, span: Any) -> None:
        self._spans.append(span)

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True
