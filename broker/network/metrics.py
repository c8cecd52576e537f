"""The reactor's metrics, for the registry: read from the planes when metrics are read, on the thread that reads them.

Figures that take a look at each connection (by listener, by reason for waiting) are read at most once a second, because there may
be a hundred thousand connections.

Tests: tests/network/test_metrics.py.
"""

from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from broker.metrics import Labels, Registry, names
from broker.metrics.metric import Cached, Metric, Ratio
from broker.metrics.request_times import RequestTimes, ranges, requests
from broker.network.memory_pool import MemoryPool
from broker.network.mute import Hold
from broker.network.plane import Plane
from broker.network.processor import Processor
from broker.network.quota import ConnectionQuotas
from broker.network.work import LANES
from broker.runtime.clock import Clock
from broker.runtime.threads import Event

# What each processor counts: the metric and the number.
_COUNTERS: tuple[tuple[Metric, Callable[[Processor], float]], ...] = (
    (names.NETWORK_REQUESTS, lambda each: each.stats.requests),
    (names.NETWORK_INLINE_REQUESTS, lambda each: each.stats.inline),
    (names.NETWORK_RECEIVED_BYTES, lambda each: each.stats.bytes_in),
    (names.NETWORK_SENT_BYTES, lambda each: each.stats.bytes_out),
    (names.NETWORK_IDLE_SECONDS, lambda each: each.idle_s),
    (names.NETWORK_PROTOCOL_ERRORS, lambda each: each.stats.protocol_errors),
    (names.NETWORK_IDLE_CLOSED_CONNECTIONS, lambda each: each.stats.idle_closed),
    (names.TLS_HANDSHAKES, lambda each: each.handshakes.stats.completed),
    (names.TLS_FAILED_HANDSHAKES, lambda each: each.handshakes.stats.failed),
    (names.TLS_LATE_HANDSHAKES, lambda each: each.handshakes.stats.late),
)
# How old (s) the figures of the connections may be.
_AGE_S = 1.0
# An idle ratio is that of the last minute.
_WINDOW_S = 60.0
# Connections between two pauses, some 0.5 ms, and how long (s) a pause is: a computing thread keeps others from the interpreter.
_PIECE = 2_000
_PAUSE_S = 0.0005


@attrs.frozen
class Connections:
    """The result of a walk over all connections."""

    by_listener: Mapping[Labels, int]  # and processor
    muted: Mapping[Labels, int]  # by reason; a connection may have several


class NetworkMetrics:
    """``planes``: the present planes. ``listeners``: their names. ``memory`` is the data plane's."""

    def __init__(
        self,
        planes: Callable[[], Sequence[Plane]],
        listeners: Callable[[], Sequence[str]],
        memory: MemoryPool,
        quotas: ConnectionQuotas,
        clock: Clock,
    ) -> None:
        self._planes = planes
        self._listeners = listeners
        self._memory = memory
        self._quotas = quotas
        self._clock = clock
        self._connections = Cached(self._walk, clock.monotonic, _AGE_S)
        self.processors_idle = Ratio(self._processors_idle, clock.monotonic, _WINDOW_S)
        self.handlers_busy = Ratio(self._handlers_busy, clock.monotonic, _WINDOW_S)

    def register(self, registry: Registry) -> None:
        """The label ``processor`` is the name of the processor's thread; the series of a removed processor ends."""
        for metric, value in _COUNTERS:
            registry.read_counter(metric, partial(self._by_processor, value))
        registry.gauge(names.NETWORK_CONNECTIONS, partial(self._by_processor, lambda each: len(each.connections)))
        registry.gauge(names.LISTENER_PROCESSOR_CONNECTIONS, lambda: self._connections.get().by_listener)
        registry.gauge(names.MUTED_CONNECTIONS, lambda: self._connections.get().muted)
        registry.read_counter(names.MUTES, self._mutes)
        registry.gauge(names.NETWORK_IDLE_RATIO, lambda: {(): self.processors_idle.read()})
        registry.gauge(names.HANDLER_IDLE_RATIO, lambda: {(): 1.0 - self.handlers_busy.read()})
        registry.gauge(names.HANDLERS, self._handlers)
        registry.read_counter(names.HANDLER_REQUESTS, self._handled)
        registry.gauge(names.REQUEST_QUEUE_SIZE, self._queued)
        registry.gauge(names.RESPONSE_QUEUE_SIZE, self._inboxes)
        registry.gauge(names.LANE_REQUESTS, self._lanes)
        registry.gauge(names.NETWORK_UNSENT_BYTES, self._unsent)
        registry.gauge(names.REQUEST_MEMORY_BYTES, lambda: {(): self._memory.in_use})
        registry.gauge(names.REQUEST_MEMORY_CAPACITY_BYTES, lambda: {(): self._memory.capacity})
        registry.gauge(names.REQUEST_MEMORY_IDLE_BYTES, lambda: {(): self._memory.idle})
        registry.read_counter(names.REQUESTS, lambda: requests(self._tables()))
        registry.read_histogram(names.REQUEST_SECONDS, lambda: ranges(self._tables()))
        quotas = self._quotas
        registry.gauge(names.LISTENER_CONNECTIONS, lambda: self._by_listener(quotas.of_listener()))
        for metric, counts in (
            (names.LISTENER_ACCEPTED, quotas.accepted),
            (names.LISTENER_REFUSED, quotas.refused),
            (names.LISTENER_THROTTLED, quotas.throttled),
            (names.LISTENER_EVICTED, quotas.evicted),
        ):
            registry.read_counter(metric, partial(self._by_listener, counts))

    def _tables(self) -> list[RequestTimes]:
        return [table for plane in self._planes() for table in plane.times]

    def _by_processor(self, value: Callable[[Processor], float]) -> dict[Labels, float]:
        return {(_name(plane, each),): value(each) for plane in self._planes() for each in plane.processors}

    def _by_listener(self, counts: Mapping[str, int]) -> dict[Labels, float]:
        """Also of listeners without connections: a counter that begins with 1 has no rate for its first event."""
        return {(name,): counts.get(name, 0) for name in self._listeners()}

    def _walk(self) -> Connections:
        by_listener: Tally[Labels] = Tally()
        holds: Tally[int] = Tally()
        for plane in self._planes():
            for processor in plane.processors:
                name = _name(plane, processor)
                listeners: Tally[str] = Tally()
                for number, connection in enumerate(processor.connections.copy()):  # `copy` is atomic, iteration is not
                    if number % _PIECE == _PIECE - 1:
                        Event().wait(_PAUSE_S)
                    listeners[connection.peer.listener] += 1
                    if connection.holds:
                        holds[connection.holds] += 1
                for listener, count in listeners.items():
                    by_listener[listener, name] = count
        muted: dict[Labels, int] = {
            (hold.name.lower(),): sum(count for bits, count in holds.items() if bits & hold)
            for hold in Hold
            if hold.name is not None
        }
        return Connections(by_listener, muted)

    def _mutes(self) -> dict[Labels, float]:
        return {
            (_name(plane, each), (Hold(hold).name or "").lower()): count
            for plane in self._planes()
            for each in plane.processors
            for hold, count in each.stats.mutes.items()
        }

    def _processors_idle(self) -> dict[object, float]:
        return {each: each.idle_s for each in self._planes()[0].processors}

    def _handlers_busy(self) -> dict[object, float]:
        now = self._clock.monotonic()
        return {each: each.busy_until(now) for each in self._planes()[0].handlers.copy()}

    def _handlers(self) -> dict[Labels, float]:
        handlers = [each for plane in self._planes() for each in plane.handlers.copy()]
        busy = sum(1 for each in handlers if each.busy_since)
        return {("busy",): busy, ("idle",): len(handlers) - busy}

    def _handled(self) -> dict[Labels, float]:
        return {(): sum(plane.handled for plane in self._planes())}

    def _queued(self) -> dict[Labels, float]:
        return {(plane.name.rstrip("-") or "data",): len(plane.channel) for plane in self._planes()}

    def _inboxes(self) -> dict[Labels, float]:
        return self._by_processor(lambda each: each.waiting)

    def _lanes(self) -> dict[Labels, float]:
        sums = dict.fromkeys(LANES, 0)
        for plane in self._planes():
            for lane, count in plane.channel.in_lanes().items():
                sums[lane] = sums.get(lane, 0) + count
        return {(lane,): count for lane, count in sums.items()}

    def _unsent(self) -> dict[Labels, float]:
        return {(): sum(plane.unsent_bytes for plane in self._planes())}


def _name(plane: Plane, processor: Processor) -> str:
    return f"{plane.name}processor-{processor.number}"
