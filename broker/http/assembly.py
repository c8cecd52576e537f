"""Assembles the HTTP service from the broker's settings, for all its listeners. It opens last, when all routes exist.

This module also has the health checks (``/healthz``, ``/readyz``), ``GET /metrics``, and the sampler.

``GET /metrics`` returns all metrics in Prometheus's text format, or in OpenMetrics if the client asks for it. It runs
on a handler of the admin lane, and authenticates the client like all other routes (`broker/web/callers.py`). With an
authorizer, the client needs DESCRIBE on the CLUSTER.

The sampler's thread reads the broker's figures every 5 s (`broker/web/history.py`), from the start of the HTTP service
on, and feeds the streams that show them. A figure that cannot be read costs that sample, not the thread.

Tests: tests/http/api/test_overview.py.
"""

from collections.abc import Callable, Sequence

from broker.config import Listener
from broker.config.listener import ALL_INTERFACES
from broker.http.api.cluster import Cluster
from broker.http.api.connections import Connections
from broker.http.api.faults import FaultCalls
from broker.http.api.live import Events, HistoryCalls, Live
from broker.http.api.overview import Overview, Whole
from broker.http.api.requests import Requests
from broker.http.chunks import CHUNKING_MAX_BYTES
from broker.http.page import routes as page
from broker.http.router import Router
from broker.http.service import WAITING_MAX, HttpService, HttpServiceSettings
from broker.http.session import HEAD_MAX_BYTES
from broker.http.streams import Streams
from broker.log import EventLimit, get_logger
from broker.metrics.registry import Registry, negotiate, render
from broker.part import PartThread, ServicePart, Surroundings
from broker.runtime.clock import Clock
from broker.runtime.limits import Allowance
from broker.runtime.threads import Event
from broker.security.acl import Operation, ResourceType
from broker.storage.log_manager import LogManager
from broker.web.callers import Callers
from broker.web.history import STEP_S, Figures
from broker.web.routes import TEXT, UNAVAILABLE, Answer, Call, Route

_OK = Answer(200, b"ok\n", TEXT)


def health_routes(stopping: Event, figures: Figures) -> list[Route]:
    """``/healthz``: a processor of the broker answers. ``/readyz``: the broker serves, or the reasons why it does not.

    It does not serve while it is stopping, when no partition of its topics can be used, or when records are refused
    because the disk is full. If only some partitions are offline, the answer names them and is 200, or with
    ``?strict=true`` 503. Connections are accepted only after recovery, when all services are open. The state of
    partitions is up to 5 s old.
    """

    def healthy(call: Call) -> Answer:
        return _OK

    def ready(call: Call) -> Answer:
        if stopping.is_set():
            return _not_ready(["stopping"])
        reasons = figures.reasons
        offline, partitions = figures.values.get("offline_partitions", 0), figures.values.get("partitions", 0)
        is_full = figures.values.get("full_partitions", 0) > 0
        if reasons and (is_full or call.flag("strict") or 0 < partitions <= offline):
            return _not_ready(reasons)
        return Answer(200, _lines(["ok", *reasons]), TEXT) if reasons else _OK

    return [Route("GET", "/healthz", healthy, blocking=False), Route("GET", "/readyz", ready, blocking=False)]


def _not_ready(reasons: Sequence[str]) -> Answer:
    return Answer(UNAVAILABLE, _lines(reasons), TEXT)


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


# How long (s) other threads have the interpreter to themselves, every 500 samples.
_PAUSE_S = 0.0005


def metrics_routes(registry: Registry, callers: Callers) -> list[Route]:
    def scrape(call: Call) -> Answer:
        callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        content_type = negotiate(call.headers.get("accept", ""))

        def pause() -> None:
            call.work.checkpoint()
            Event().wait(_PAUSE_S)

        return Answer(200, render(registry, content_type, pause), content_type)

    return [Route("GET", "/metrics", scrape)]


log = get_logger("http")

_TICK_S = 1.0


class Sampler:
    def __init__(
        self,
        figures: Figures,
        clock: Clock,
        sampled: Sequence[Callable[[], object]] = (),
        ticked: Sequence[Callable[[], object]] = (),
    ) -> None:
        """``sampled`` are called after each sample, ``ticked`` every second."""
        self._figures = figures
        self._clock = clock
        self._sampled = sampled
        self._ticked = ticked
        self._event = Event()
        self._due = self._next_tick = clock.monotonic()
        self._failures = EventLimit()

    def step(self, timeout: float | None) -> bool:
        now = self._clock.monotonic()
        wait_s = min(self._due, self._next_tick) - now
        if wait_s > 0:
            self._event.wait(wait_s if timeout is None else min(wait_s, timeout))
            self._event.clear()
            return False
        if now >= self._due:
            self._due = max(self._due + STEP_S, now + STEP_S / 2)
            self.sample()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            for tick in self._ticked:
                self._guarded(tick)
        return True

    def sample(self) -> None:
        self._guarded(lambda: self._figures.sample(self._clock.monotonic(), self._clock.time_ms()))
        for sampled in self._sampled:
            self._guarded(sampled)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # the seam: a service's figure must not end the thread, and with it the broker
            unlogged = self._failures.take(self._clock.monotonic())
            if unlogged is not None:
                log.error("sample_failed", exc_info=error, unlogged_before=unlogged)

    def wakeup(self) -> None:
        self._event.set()


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    return HttpPart(surroundings, logs)


class HttpPart:
    """The HTTP service, which all http listeners share, with the routes of all services."""

    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        self._surroundings = surroundings
        self._stopping = Event()
        self._router = Router(())
        self._streams = Streams(surroundings.runtime.clock)
        self.waiting = Allowance(WAITING_MAX)
        whole = Whole(
            surroundings.config,
            surroundings.cluster_id,
            surroundings.listeners,
            surroundings.sockets,
            logs,
            surroundings.figures,
            surroundings.metrics,
            surroundings.callers,
            surroundings.runtime.clock,
            self._stopping,
        )
        overview, cluster = Overview(whole), Cluster(surroundings, logs)
        figures, callers, clock = surroundings.figures, surroundings.callers, surroundings.runtime.clock
        connections = Connections(surroundings.sockets, callers, clock)
        requests = Requests(surroundings.metrics, callers, clock)
        live = Live(figures, callers, clock, overview.snapshot, connections.reactor)
        faults = FaultCalls(surroundings.faults, callers, clock, is_on=surroundings.config.faults_enabled)
        self._triggers = faults.triggers
        history, events = HistoryCalls(figures, callers, clock), Events(callers)
        self._views = (overview, cluster, connections, requests, live, history, events, faults)
        self.sampler = Sampler(
            figures,
            clock,
            sampled=[requests.sampled, connections.sampled, live.sampled],
            ticked=[live.tick, self._streams.tick],
        )

    def open(self) -> None:
        self._router = Router(self.routes())
        if self._triggers is not None:
            log.warning("faults_enabled")
        self.sampler.sample()  # so that the first answer has figures

    def routes(self) -> Sequence[Route]:
        """All routes, once every service has added its own."""
        surroundings = self._surroundings
        protected = surroundings.callers.protected
        shown = [route for view in self._views for route in view.routes()]
        shown += metrics_routes(surroundings.metrics, surroundings.callers)
        return [
            *health_routes(self._stopping, surroundings.figures),
            *page.routes(),
            *(protected(route) for route in shown),
            *surroundings.routes,
        ]

    def threads(self) -> Sequence[PartThread]:
        threads = [PartThread("http-sampler", self.sampler)]
        return threads if self._triggers is None else [*threads, PartThread("fault-triggers", self._triggers)]

    def service(self, listener: Listener) -> HttpService:
        surroundings, config = self._surroundings, self._surroundings.config
        # A body that does not fit into a frame would be cut off without an answer.
        room = config.socket_request_max_bytes - HEAD_MAX_BYTES - CHUNKING_MAX_BYTES
        settings = HttpServiceSettings(
            body_max=max(0, min(config.http_max_body_bytes, room)),
            timeout_s=config.http_request_timeout_ms / 1000,
            hosts={*config.http_allowed_hosts, *self._own_hosts(listener)},
        )
        return HttpService(
            self._router,
            settings,
            surroundings.runtime,
            surroundings.timer,
            self._stopping,
            self._streams,
            self.waiting,
        )

    def _own_hosts(self, listener: Listener) -> Sequence[str]:
        advertised = self._surroundings.config.advertised_address(listener.name)
        hosts = [listener.host, *([] if advertised is None else [advertised[0]])]
        return [host.lower() for host in hosts if host not in (ALL_INTERFACES, "::")]

    def stopping(self) -> None:
        self._stopping.set()

    def shut_down(self) -> None:
        """Nothing to do: an answer that waits looks itself whether the broker is stopping."""

    def close(self) -> None:
        """Nothing to do: nothing is kept."""
