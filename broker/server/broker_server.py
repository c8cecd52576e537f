"""The server: takes the data directory, opens the storage and the services, starts the threads, and stops all of it in order.

This is the one place that knows all services. A ``BrokerServer`` belongs to the thread that made it.
"""

import base64
import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs

from broker.config import BrokerConfig, Listener
from broker.config.descriptors import Descriptors, share_out
from broker.config.open_listeners import unauthenticated
from broker.config.per_listener import check_names, for_listener
from broker.errors import BrokerError, ConfigError
from broker.live_config import LiveConfig
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.sqlite import SqliteCatalogue
from broker.metrics import Registry
from broker.metrics.tracing import TraceExporter, Traces, open_exporter
from broker.network.quota import ConnectionQuotas, ListenerLimits
from broker.network.socket_server import CONTROL_CONNECTIONS, Binding, SocketServer, SocketServerSettings
from broker.part import PartThread, ServicePart, Surroundings
from broker.runtime import Runtime, system_runtime
from broker.runtime.threads import Body, Event, ThreadHandle
from broker.security.security import Security, open_security
from broker.security.tls_listener import CertificateWatcher, open_tls, register_tls_metrics
from broker.server import reconfiguration
from broker.storage import data_directory
from broker.storage.config import StorageConfig
from broker.storage.data_directory import DataDirectory
from broker.storage.log_manager import LogManager
from broker.storage.metrics import StorageMetrics
from broker.storage.upkeep.flusher import FLUSHER_THREADS, processor_flusher
from broker.web.callers import open_callers
from broker.web.history import Figures
from broker.web.routes import Routes

if TYPE_CHECKING:
    from broker.kafka.assembly import KafkaPart
    from broker.kafka.context import KafkaContext

log = get_logger("server")

_INT_MAX = 2**31 - 1
# The share of the time to stop that requests in flight may take. The rest is for fsync and for closing files.
_DRAIN_SHARE = 0.75
# How long (s) the stopping thread waits, at most and at least, for another thread to end its step.
_PATIENCE_S = 5.0
_LEAST_PATIENCE_S = 0.05
# How long (s) the thread that exports traces may take to end.
_TRACES_PATIENCE_S = 3.0
# How long (s) the last fsyncs and the checkpoint files may take after the logs' time to become durable is over.
_SETTLE_S = 0.5


@attrs.frozen
class _Source:
    """Where the server finds a service: the module that has its ``assemble`` function (see ``broker.part``)."""

    module: str
    sasl: bool = False  # its clients can log in with SASL
    always: bool = False  # opened even where no listener has its scheme
    open_files: int = 0  # how many files besides the logs' the service would like to keep open


# By the scheme of their listeners, in the order in which they open; they close in the reverse order. A module is imported only
# where its service is opened.
_SERVICES = {
    # Always: transactions that an earlier broker has decided are carried out, and committed offsets expire.
    "kafka": _Source("broker.kafka.assembly", sasl=True, always=True),
    "shuffle": _Source("broker.shuffle.assembly", open_files=256),
    "pulsar": _Source("broker.pulsar.assembly", sasl=True),
    # Last: it serves the routes of the others.
    "http": _Source("broker.http.assembly"),
}


class BrokerServer:
    """One broker: ``start``, then ``stop``. Raises ConfigError from ``start`` where a setting cannot be carried out."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime | None = None,
        open_catalogue: Callable[[str], Catalogue] = SqliteCatalogue,
    ) -> None:
        """``runtime`` and ``open_catalogue`` (from a path to a catalogue) are the system's by default."""
        self.config = config
        self.runtime = runtime if runtime is not None else system_runtime()
        self.metrics = Registry()
        self.started_ms = 0
        self.crash: BaseException | None = None
        self.left_behind = 0  # how many threads did not end in time when the broker stopped
        self._open_catalogue = open_catalogue
        self._ended = Event()
        self._threads: list[ThreadHandle] = []
        self._catalogue: Catalogue | None = None
        self._directory: DataDirectory | None = None
        self._logs: LogManager | None = None
        self._sockets: SocketServer | None = None
        self._security: Security | None = None
        self._parts: dict[str, ServicePart] = {}  # by scheme
        self._traces: Traces | None = None
        self._trace_exporter: TraceExporter | None = None
        self._trace_thread: ThreadHandle | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind, recover, serve. If it fails, everything that was taken is released."""
        try:
            self._start()
        except BaseException:
            self._release()
            raise

    def stop(self, timeout: float | None = None, *, drain: float | None = None) -> bool:
        """Stop accepting, finish the requests in flight, fsync, and release everything, within ``timeout`` s (by default
        ``shutdown_timeout_ms``). Returns True if all requests in flight were finished.

        ``drain``: how many of these seconds the requests in flight may take, by default three quarters. A thread that does not
        end in time goes on, is counted in ``left_behind``, and keeps what it uses.
        """
        if timeout is None:
            timeout = self.config.shutdown_timeout_ms / 1000
        clock = self.runtime.clock
        began = clock.monotonic()
        deadline = began + timeout
        drained_by = began + min(timeout, _DRAIN_SHARE * timeout if drain is None else drain)
        finished = True
        if self._sockets is not None and self.started_ms:
            if self.crash is None:
                for part in self._parts.values():
                    part.stopping()
            self._sockets.stop_accepting(timeout / 4)
            if self.crash is None:
                for part in self._parts.values():
                    part.shut_down()
                left = max(0.0, drained_by - clock.monotonic())
                finished = self._sockets.drain(left)
                if not finished:
                    log.warning("requests_abandoned", timeout_s=left)
        self._release(deadline)
        self._ended.set()
        return finished

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the broker has stopped or crashed (returns True), or until ``timeout`` s have passed (returns False)."""
        return self._ended.wait(timeout)

    def request_stop(self) -> None:
        """Make ``wait`` return. May be called from a signal handler and from any thread."""
        self._ended.set()

    # -- looking in ---------------------------------------------------------------------------------------------------

    @property
    def listeners(self) -> dict[str, str]:
        """Where each listener is bound, as ``host:port``."""
        assert self._sockets is not None
        bound = {}
        for listener in self._all_listeners():
            host, port = self._sockets.address(listener.name)
            bound[listener.name] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return bound

    def part(self, scheme: str) -> ServicePart | None:
        """The service of this scheme, if it is open."""
        return self._parts.get(scheme)

    @property
    def kafka(self) -> "KafkaContext":
        """What the handlers of the Kafka service share: for tests, and for programs that look into an embedded broker."""
        return cast("KafkaPart", self._parts["kafka"]).context

    @property
    def security(self) -> Security:
        """Who may come in and what they may do: for tests, and for programs that change it in an embedded broker."""
        assert self._security is not None
        return self._security

    @property
    def sockets(self) -> SocketServer:
        assert self._sockets is not None
        return self._sockets

    # -- parts --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        config, runtime = self.config, self.runtime
        check_names(config)
        for listener in self._all_listeners():
            if listener.scheme not in _SERVICES:
                *others, last = (f"{scheme}://" for scheme in _SERVICES)
                schemes = f"{', '.join(others)} and {last}"
                raise ConfigError(
                    f"Take the listener {listener} out: this broker serves {schemes} listeners only, "
                    "with +ssl, +sasl or +sasl+ssl before the colon."
                )
            if listener.sasl and not _SERVICES[listener.scheme].sasl:
                raise ConfigError(
                    f"Write the listener {listener} as {listener.scheme}+ssl://: its protocol has no SASL. "
                    "With ssl_client_auth = required, certificates say who the clients are."
                )
        tls = open_tls(config, self._all_listeners(), runtime)
        for listener in unauthenticated(config):
            log.warning("listener_unauthenticated", listener=str(listener))
        self._descriptors = self._share_out_descriptors(config)
        storage = attrs.evolve(StorageConfig.from_broker(config), max_open_files=self._descriptors.open_files)
        # Locked before anything in it is opened, the catalogue included.
        self._directory = data_directory.take(runtime.disk, storage)
        traces = self._traces = self._open_traces()
        self._sockets = SocketServer(
            runtime, self._socket_settings(traces), ConnectionQuotas(0, 0, {}, 0), self._crashed
        )
        self._sockets.register_metrics(self.metrics)
        # Bound before the recovery, which may take long: a port that is in use is noticed at once, and early clients wait in the
        # backlog.
        self._sockets.bind(
            [
                Binding(
                    name=listener.name,
                    service=listener.name,
                    host=listener.host,
                    port=listener.port,
                    port_max=listener.port_max,
                    frame_max=config.socket_request_max_bytes + 4,  # Kafka does not count the length field
                    control=self._is_controlling(listener),
                    tls=tls.get(listener.name),
                )
                for listener in self._all_listeners()
            ]
        )
        self._catalogue = self._open_catalogue(f"{config.data_dir}/{data_directory.CATALOGUE}")
        live = self._live = LiveConfig(config, self._catalogue)
        self._sockets.resize_processors(live.in_force.network_threads)
        self._sockets.resize_handlers(live.in_force.io_threads)
        self._configure_quotas(self._sockets.quotas, live.in_force)
        storage = attrs.evolve(StorageConfig.from_broker(live.in_force), max_open_files=storage.max_open_files)
        logs = self._logs = LogManager(
            runtime.disk, runtime.clock, runtime.entropy, storage, self._catalogue, runtime.threads.get_ident
        )
        self._sockets.attach(partial(processor_flusher, logs.flusher, runtime.disk))
        logs.open(self._directory)
        StorageMetrics(logs, runtime.clock).register(self.metrics)
        reconfiguration.register(live, self._sockets, logs, tls, self._configure_quotas)
        security = self._security = open_security(config, self._catalogue, runtime, self._sockets.timer)
        security.register_metrics(self.metrics)
        security.tls = tls
        self._sockets.quotas.connection_rate = security.quotas.connection_rate
        self._open_services(logs, self._catalogue, security)
        if self._trace_exporter is not None:
            self._trace_thread = runtime.threads.spawn("trace-exporter", self._trace_exporter, self._crashed)
        if tls:
            register_tls_metrics(self.metrics, tls.values())
            self._spawn("certificate-watcher", CertificateWatcher(list(tls.values())))
        self._sockets.start({each.name: self._parts[each.scheme].service(each) for each in self._all_listeners()})
        self._report_descriptors()
        self.started_ms = runtime.clock.time_ms()

    def _open_services(self, logs: LogManager, catalogue: Catalogue, security: Security) -> None:
        """First the services that are always open, with the storage's threads between theirs; then the others."""
        cluster_id = self._cluster_id(catalogue)
        sources = self._sources()
        wished_files = sum(source.open_files for source in sources.values())
        listeners = self._all_listeners()
        routes = Routes()
        asking = sorted(listeners, key=lambda listener: listener.scheme != "pulsar")  # as Pulsar's admin API
        callers = open_callers(self.config, asking, security, self.runtime.clock)
        figures = Figures()

        def open_service(scheme: str) -> Sequence[PartThread]:
            surroundings = Surroundings(
                config=self.config,
                live=self._live,
                runtime=self.runtime,
                timer=self.sockets.timer,
                catalogue=catalogue,
                security=security,
                cluster_id=cluster_id,
                listeners=listeners,
                addresses={listener.name: self.sockets.address(listener.name) for listener in listeners},
                open_files=self._descriptors.spill_files * sources[scheme].open_files // max(wished_files, 1),
                metrics=self.metrics,
                routes=routes,
                callers=callers,
                figures=figures,
                sockets=self.sockets,
            )
            part: ServicePart = importlib.import_module(sources[scheme].module).assemble(surroundings, logs)
            self._parts[scheme] = part
            part.open()
            return part.threads()

        threads = [thread for scheme in sources if sources[scheme].always for thread in open_service(scheme)]
        for number, body in enumerate(logs.flusher.threads):
            self._spawn(f"flusher-{number}", body)
        for thread in threads:
            if thread.waited_for:
                self._spawn(thread.name, thread.body)
        self._spawn("housekeeper", logs.housekeeper)
        for thread in threads:
            if not thread.waited_for:
                self._spawn(thread.name, thread.body)
        for scheme in sources:
            if not sources[scheme].always:
                for thread in open_service(scheme):
                    self._spawn(thread.name, thread.body)

    def _release(self, deadline: float | None = None) -> None:
        """Release everything that was taken, in the reverse order, by ``deadline`` (Clock.monotonic() s) if there is one."""
        clock = self.runtime.clock

        def patience() -> float:
            """How long (s) to wait for the next thread: a quarter of the time left, as the logs need most of it to be fsynced."""
            if deadline is None:
                return _PATIENCE_S
            return min(_PATIENCE_S, max(_LEAST_PATIENCE_S, (deadline - clock.monotonic()) / 4))

        sockets = self._sockets
        if self._logs is not None:
            self._logs.make_no_more()
        if sockets is not None:
            sockets.unbind()
            sockets.stop(patience())
            self.left_behind = sockets.left_behind
        for number, thread in reversed(list(enumerate(self._threads))):
            if number == FLUSHER_THREADS - 1:
                # Only the flushers are left. None of them begins another fsync while one is waited for that has begun.
                for flusher in self._threads[:FLUSHER_THREADS]:
                    flusher.ask_to_stop()
            if not thread.stop(patience()):
                log.warning("thread_left_behind", body=thread.name)
                self.left_behind += 1
        self._threads = []
        self._stop_traces(patience())
        for part in reversed(self._parts.values()):
            part.close()
        logs, self._logs = self._logs, None
        ended = True
        if logs is not None:
            try:
                # A thread that was left behind may be in the middle of an append: then the stop is not clean.
                close_by = None if deadline is None else deadline - _SETTLE_S
                ended = logs.close(close_by, self.runtime.threads, clean=not self.left_behind)
                self.left_behind += not ended
            except (OSError, BrokerError) as error:
                log.error("close_failed", error=str(error))
        catalogue, self._catalogue = self._catalogue, None
        if catalogue is not None:
            catalogue.close()
        directory, self._directory = self._directory, None
        if directory is not None and logs is not None and not ended:
            logs.keep(directory)  # the disk hangs, and something may still write there
        elif directory is not None:
            directory.close()

    def _stop_traces(self, patience_s: float) -> None:
        """A collector that hangs keeps the broker from stopping for seconds at most. The thread touches no data: if it is left
        behind, the stop is clean all the same."""
        thread, self._trace_thread = self._trace_thread, None
        exporter, self._trace_exporter = self._trace_exporter, None
        if thread is None or exporter is None:
            return
        ended = thread.stop(min(_TRACES_PATIENCE_S, patience_s))
        exporter.close()
        if not ended and not thread.stop(_LEAST_PATIENCE_S):
            log.warning("thread_left_behind", body="trace-exporter")

    def _spawn(self, name: str, body: Body) -> None:
        self._threads.append(self.runtime.threads.spawn(name, body, self._crashed))

    def _crashed(self, error: BaseException) -> None:
        """A thread has ended by an exception, which is a bug. The broker cannot work without that thread, so it ends."""
        log.error("thread_crashed", exc_info=error)
        self.crash = error
        self._ended.set()

    def _cluster_id(self, catalogue: Catalogue) -> str:
        stored = catalogue.meta("cluster_id")
        configured = self.config.cluster_id
        if stored is None:
            # Kafka's form: 16 random bytes in 22 characters.
            drawn = base64.urlsafe_b64encode(self.runtime.entropy.uuid().bytes).decode().rstrip("=")
            stored = configured or drawn
            catalogue.set_meta("cluster_id", stored)
        elif configured is not None and configured != stored:
            raise ConfigError(
                f"Set cluster_id to {stored!r} or leave it out: that is the cluster {self.config.data_dir} belongs to."
            )
        return stored

    def _all_listeners(self) -> list[Listener]:
        control = self.config.control_listener
        return [*self.config.listeners, *([control] if control is not None else [])]

    def _is_controlling(self, listener: Listener) -> bool:
        """Whether the control plane serves it: the control listener, and HTTP, so that one can look while the data plane is
        full."""
        control = self.config.control_listener
        return control is not None and (listener is control or listener.scheme == "http")

    def _sources(self) -> dict[str, _Source]:
        """The services of this broker, by scheme."""
        schemes = {listener.scheme for listener in self._all_listeners()}
        return {scheme: source for scheme, source in _SERVICES.items() if source.always or scheme in schemes}

    def _share_out_descriptors(self, config: BrokerConfig) -> Descriptors:
        return share_out(
            self.runtime.descriptor_limit(),
            open_files=config.max_open_files,
            spill_files=sum(source.open_files for source in self._sources().values()),
            connections=config.max_connections,
            control_connections=CONTROL_CONNECTIONS * sum(map(self._is_controlling, self._all_listeners())),
            processors=config.network_threads,
            handlers=config.io_threads,
            flushers=FLUSHER_THREADS,
        )

    def _report_descriptors(self) -> None:
        """Warn if the files or connections are fewer than configured. Defaults count as not configured."""
        config, shared = self.config, self._descriptors
        defaults = BrokerConfig()
        connections = shared.connections < config.max_connections != defaults.max_connections
        if connections or shared.open_files < config.max_open_files != defaults.max_open_files:
            log.warning(
                "descriptors_reduced",
                limit=self.runtime.descriptor_limit(),
                max_open_files=shared.open_files,
                max_connections=shared.connections,
            )

    def _configure_quotas(self, quotas: ConnectionQuotas, config: BrokerConfig) -> None:
        # A listener's own limits only: where it has none, those of the broker count all listeners together.
        without = attrs.evolve(config, max_connections=_INT_MAX, max_connection_creation_rate=_INT_MAX)
        own = {listener.name: for_listener(without, listener.name) for listener in self._all_listeners()}
        quotas.configure(
            max_connections=self._share_out_descriptors(config).connections,
            max_per_address=config.max_connections_per_ip,
            per_address_overrides=config.max_connections_per_ip_overrides,
            max_per_second=_per_second(config),
            listeners={name: ListenerLimits(each.max_connections, _per_second(each)) for name, each in own.items()},
        )

    def _open_traces(self) -> Traces | None:
        """None where no request is traced. Raises ConfigError."""
        config = self.config
        if not config.tracing_sample_ratio:
            return None
        traces = Traces(config.tracing_sample_ratio)
        version = importlib.metadata.version("reactor-broker")
        self._trace_exporter = open_exporter(
            traces, self.runtime.clock, config.tracing_endpoint, config.node_id, version
        )
        return traces

    def _socket_settings(self, traces: Traces | None) -> SocketServerSettings:
        config = self.config
        idle_ms = config.connections_max_idle_ms
        memory = config.queued_max_request_bytes
        return SocketServerSettings(
            network_threads=config.network_threads,
            io_threads=config.io_threads,
            queued_max_requests=config.queued_max_requests,
            queued_max_request_bytes=memory if memory > 0 else 2**62,
            backlog=config.socket_listen_backlog_size,
            send_buffer=config.socket_send_buffer_bytes,
            receive_buffer=config.socket_receive_buffer_bytes,
            idle_max_s=idle_ms / 1000 if idle_ms > 0 else float(2**62),
            high_water_bytes=config.outgoing_high_water_bytes,
            low_water_bytes=config.outgoing_low_water_bytes,
            handshake_timeout_s=config.handshake_timeout_ms / 1000,
            traces=traces,
        )


def _per_second(config: BrokerConfig) -> float:
    rate = config.max_connection_creation_rate
    return 0.0 if rate >= _INT_MAX else float(rate)
