"""The HTTP service put together from the broker's settings, for all its listeners. It opens last, when all routes are there."""

from collections.abc import Sequence

from broker.config import Listener
from broker.config.listener import ALL_INTERFACES
from broker.http import health, metrics
from broker.http.api.connections import Connections
from broker.http.api.events import Events
from broker.http.api.history import HistoryCalls
from broker.http.api.live import Live
from broker.http.api.overview import Overview, Whole
from broker.http.api.requests import Requests
from broker.http.chunks import CHUNKING_MAX_BYTES
from broker.http.page import routes as page
from broker.http.router import Router
from broker.http.sampler import Sampler
from broker.http.service import HttpService, HttpServiceSettings
from broker.http.session import HEAD_MAX_BYTES
from broker.http.streams import Streams
from broker.network.part import PartThread, ServicePart, Surroundings
from broker.network.routes import Route
from broker.runtime.threads import Event
from broker.storage.log_manager import LogManager


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    return HttpPart(surroundings, logs)


class HttpPart:
    """The routes of all services, which all http listeners share."""

    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        self._surroundings = surroundings
        self._stopping = Event()
        self._router = Router(())
        self._streams = Streams(surroundings.runtime.clock)
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
        overview = Overview(whole)
        figures, callers, clock = surroundings.figures, surroundings.callers, surroundings.runtime.clock
        connections = Connections(surroundings.sockets, callers, clock)
        requests = Requests(surroundings.metrics, callers, clock)
        live = Live(figures, callers, clock, overview.snapshot, connections.reactor)
        self._views = (overview, connections, requests, live, HistoryCalls(figures, callers, clock), Events(callers))
        self.sampler = Sampler(
            figures,
            clock,
            sampled=[requests.sampled, connections.sampled, live.sampled],
            ticked=[live.tick, self._streams.tick],
        )

    def open(self) -> None:
        self._router = Router(self.routes())
        self.sampler.sample()  # so that the first answer has figures

    def routes(self) -> Sequence[Route]:
        """All that there are, once every service has added its own."""
        surroundings = self._surroundings
        protected = surroundings.callers.protected
        shown = [route for view in self._views for route in view.routes()]
        shown += metrics.routes(surroundings.metrics, surroundings.callers)
        return [
            *health.routes(self._stopping, surroundings.figures),
            *page.routes(),
            *(protected(route) for route in shown),
            *surroundings.routes,
        ]

    def threads(self) -> Sequence[PartThread]:
        return [PartThread("http-sampler", self.sampler)]

    def service(self, listener: Listener) -> HttpService:
        surroundings, config = self._surroundings, self._surroundings.config
        # What does not fit in a frame would be cut off without an answer.
        room = config.socket_request_max_bytes - HEAD_MAX_BYTES - CHUNKING_MAX_BYTES
        settings = HttpServiceSettings(
            body_max=max(0, min(config.http_max_body_bytes, room)),
            timeout_s=config.http_request_timeout_ms / 1000,
            hosts={*config.http_allowed_hosts, *self._own_hosts(listener)},
        )
        return HttpService(
            self._router, settings, surroundings.runtime, surroundings.timer, self._stopping, self._streams
        )

    def _own_hosts(self, listener: Listener) -> Sequence[str]:
        advertised = self._surroundings.config.advertised_address(listener.name)
        hosts = [listener.host, *([] if advertised is None else [advertised[0]])]
        return [host.lower() for host in hosts if host not in (ALL_INTERFACES, "::")]

    def stopping(self) -> None:
        self._stopping.set()

    def shut_down(self) -> None:
        """Nothing to do: no request waits."""

    def close(self) -> None:
        """Nothing to do: nothing is kept."""
