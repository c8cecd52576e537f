"""The assembled reactor: planes of acceptor, processors, request channel and handlers, and the timer. Kafka's SocketServer.

There are a data plane and an optional control plane. The control plane has its own acceptor, one processor, a small channel and
one handler, so that health and admin calls work while the data plane is full.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from broker.errors import ConfigError
from broker.log import get_logger
from broker.metrics import Registry
from broker.metrics.tracing import Traces
from broker.network.acceptor import Endpoint
from broker.network.leased_sending import AnswersLease, Gate
from broker.network.memory_pool import MemoryPool
from broker.network.metrics import NetworkMetrics
from broker.network.new_connection import Attachment
from broker.network.plane import LEAST_PATIENCE_S, PATIENCE_S, Plane, wait_until
from broker.network.processor import Processor, ProcessorSettings
from broker.network.quota import ConnectionQuotas
from broker.network.sending import ProcessorOutbox
from broker.network.service import Service
from broker.runtime import Runtime
from broker.runtime.net import Listener, address_in_use
from broker.runtime.threads import ThreadHandle
from broker.runtime.timers import Timer
from broker.security.tls_listener import TlsListener

log = get_logger("network")

# Kafka's queue size of the control plane's request channel.
_CONTROL_QUEUE = 20
# Bytes of requests, and connections: far more than people and health checks need, and bounded.
_CONTROL_MEMORY = 16 * 1024 * 1024
CONTROL_CONNECTIONS = 100


@attrs.frozen
class Binding:
    """A listener as configured: ports ``port`` to ``port_max`` are tried in order; 0 = any free port."""

    name: str
    service: str  # key of the service for its connections
    host: str
    port: int
    port_max: int
    frame_max: int
    control: bool = False
    tls: TlsListener | None = None  # None: no TLS
    suspends: bool = True  # has no connections while the broker is suspended


@attrs.frozen
class SocketServerSettings:
    network_threads: int
    io_threads: int
    queued_max_requests: int
    queued_max_request_bytes: int
    backlog: int
    send_buffer: int
    receive_buffer: int
    idle_max_s: float
    high_water_bytes: int
    low_water_bytes: int
    handshake_timeout_s: float = 10.0
    traces: Traces | None = None  # None: no request is traced


class SocketServer:
    def __init__(
        self,
        runtime: Runtime,
        settings: SocketServerSettings,
        quotas: ConnectionQuotas,
        on_crash: Callable[[BaseException], None],
        lease: AnswersLease | None = None,
    ) -> None:
        """``on_crash`` is called with the exception that ended a thread, which is a bug; the broker should stop. ``lease``: what
        answers of listeners that suspend need; None: nothing."""
        self.runtime = runtime
        self.settings = settings
        self.quotas = quotas
        self._on_crash = on_crash
        self.outbox = ProcessorOutbox()
        self.memory = MemoryPool(settings.queued_max_request_bytes)
        self.timer = Timer(runtime.clock)
        self._attach: Callable[[], Attachment | None] | None = None
        self._suspending: frozenset[str] = frozenset()  # listeners that `suspend` closes
        self._gate = None if lease is None else Gate(lease, lambda listener: listener in self._suspending)
        self._data = self._plane(
            "",
            queue=settings.queued_max_requests,
            processors=settings.network_threads,
            handlers=settings.io_threads,
            memory=self.memory,
            quotas=quotas,
            attach=self._attached,
        )
        self._control: Plane | None = None
        self._timer_thread: ThreadHandle | None = None
        self._timer_left_behind = False
        self._addresses: dict[str, tuple[str, int]] = {}
        self._bound: list[tuple[Binding, Listener]] = []
        self.measured = NetworkMetrics(
            lambda: self.planes, lambda: list(self._addresses), self.memory, quotas, runtime.clock
        )

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Bind every listener, before anything is served. ConfigError if that fails."""
        try:
            for binding in bindings:
                listener = self._bind(binding)
                self._bound.append((binding, listener))
                self._addresses[binding.name] = listener.address
            self._suspending = frozenset(binding.name for binding in bindings if binding.suspends)
        except ConfigError:
            self.unbind()
            raise

    def unbind(self) -> None:
        """Close listeners that were bound and not started."""
        for _, listener in self._bound:
            listener.close()
        self._bound = []

    def _attached(self) -> Attachment | None:
        return None if self._attach is None else self._attach()

    def attach(self, attach: Callable[[], Attachment | None]) -> None:
        """Have ``attach`` make an attachment for each processor of the data plane. Before the start."""
        self._attach = attach

    def start(self, services: Mapping[str, Service]) -> None:
        """Begin to accept. ``services``: by the names that the bindings use."""
        self._timer_thread = self.runtime.threads.spawn("timer", self.timer, self._on_crash)
        bound, self._bound = self._bound, []
        ends = [
            (
                binding.control,
                Endpoint(binding.name, listener, services[binding.service], binding.frame_max, binding.tls),
            )
            for binding, listener in bound
        ]
        control = [endpoint for is_control, endpoint in ends if is_control]
        for endpoint in control:
            self.quotas.protect(endpoint.name, CONTROL_CONNECTIONS)
        if control:
            self._control = self._plane(
                "control-",
                queue=_CONTROL_QUEUE,
                processors=1,
                handlers=1,
                memory=MemoryPool(_CONTROL_MEMORY),
                quotas=self.quotas,
            )
            self._control.start(control)
        self._data.start([endpoint for is_control, endpoint in ends if not is_control])

    def address(self, name: str) -> tuple[str, int]:
        """Where the listener of that name is bound."""
        return self._addresses[name]

    @property
    def planes(self) -> list[Plane]:
        return [self._data] if self._control is None else [self._data, self._control]

    @property
    def left_behind(self) -> int:
        """Threads that did not end when they were asked to: their resources are still in use."""
        return sum(plane.left_behind for plane in self.planes) + self._timer_left_behind

    @property
    def processors(self) -> list[Processor]:
        return [processor for plane in self.planes for processor in plane.processors]

    def register_metrics(self, metrics: Registry) -> None:
        self.measured.register(metrics)

    def resize_processors(self, count: int) -> None:
        """Change the data plane's number of processors, before the start or while running."""
        self._data.resize(count)

    def resize_handlers(self, count: int) -> None:
        """Change the data plane's number of handlers, before the start or while running."""
        self._data.resize_handlers(count)

    def suspend(self) -> None:
        """From any thread: close the clients' connections, and each new one at once, until ``resume``. Listeners that do not
        suspend stay as they are. Requests in flight go on, without answers."""
        self.quotas.suspend(self._suspending)
        for processor in self.processors:  # one that is started later, or takes connections over, looks by itself
            processor.close_outlived()

    def resume(self) -> None:
        """From any thread: take connections again."""
        self.quotas.resume()

    def stop_accepting(self, patience_s: float = PATIENCE_S) -> None:
        for plane in self.planes:
            plane.stop_accepting(min(patience_s, PATIENCE_S))

    def drain(self, timeout: float) -> bool:
        """Answer the requests in flight and take no new ones. True if all were answered in time."""
        for processor in self.processors:
            # Before anything else: clients whose parked requests are answered below send the next request at once.
            processor.drain()
            for connection in processor.connections.copy():
                self.outbox.call(connection, partial(connection.service.stopping, connection))
        return wait_until(self.runtime, lambda: all(p.drained for p in self.processors), timeout)

    def stop(self, patience_s: float = PATIENCE_S) -> None:
        """End all threads and close all connections, in about ``patience_s``. Stopping twice is no error."""
        self.stop_accepting(patience_s)
        deadline = self.runtime.clock.monotonic() + min(patience_s, PATIENCE_S)
        timer, self._timer_thread = self._timer_thread, None
        if timer is not None:
            timer.ask_to_stop()  # while others are waited for: one that hangs takes all of the time
        for plane in self.planes:
            plane.stop(deadline)
        if timer is not None and not timer.stop(max(LEAST_PATIENCE_S, deadline - self.runtime.clock.monotonic())):
            log.warning("thread_left_behind", body=type(self.timer).__name__)
            self._timer_left_behind = True

    def _plane(
        self,
        name: str,
        *,
        queue: int,
        processors: int,
        handlers: int,
        memory: MemoryPool,
        quotas: ConnectionQuotas,
        attach: Callable[[], Attachment | None] = lambda: None,
    ) -> Plane:
        settings = self.settings
        return Plane(
            name,
            self.runtime,
            self.outbox,
            self._on_crash,
            settings=ProcessorSettings(
                settings.idle_max_s,
                settings.high_water_bytes,
                settings.low_water_bytes,
                settings.handshake_timeout_s,
                settings.traces,
                self._gate,
            ),
            queue=queue,
            processors=processors,
            handlers=handlers,
            memory=memory,
            quotas=quotas,
            attach=attach,
        )

    def _bind(self, binding: Binding) -> Listener:
        settings = self.settings
        for port in range(binding.port, max(binding.port, binding.port_max) + 1):
            try:
                return self.runtime.network.listen(
                    binding.host, port, settings.backlog, settings.send_buffer, settings.receive_buffer
                )
            except OSError as error:
                if not address_in_use(error):
                    raise ConfigError(
                        f"listener {binding.name}: cannot listen on {binding.host}:{port} ({error.strerror or error}); "
                        "choose another address or port"
                    ) from None
        ports = (
            f"port {binding.port} is"
            if binding.port_max <= binding.port
            else f"ports {binding.port}-{binding.port_max} are"
        )
        raise ConfigError(
            f"listener {binding.name}: {ports} in use on {binding.host}; stop what listens there or choose another port "
            "(0 takes any free one)"
        )
