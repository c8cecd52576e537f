"""The server: takes the data directory, opens the storage and the services, starts the threads, and stops all of it in order.

A ``BrokerServer`` belongs to the thread that made it. ``services.py`` knows the services, ``stopping.py`` releases everything,
``descriptors.py`` limits open files and connections.
"""

import base64
import importlib.metadata
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs

from broker.config import BrokerConfig
from broker.config.open_listeners import unauthenticated
from broker.config.per_listener import check_names
from broker.errors import ConfigError
from broker.faults.faults import Faults
from broker.live_config import LiveConfig
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.sqlite import SqliteCatalogue
from broker.metrics import Registry
from broker.metrics.tracing import Traces, open_exporter
from broker.network.quota import ConnectionQuotas
from broker.network.socket_server import Binding, SocketServer, SocketServerSettings
from broker.part import ServicePart, Surroundings
from broker.runtime import Runtime, system_runtime
from broker.runtime.threads import Event
from broker.security.security import Security, open_security
from broker.security.tls_listener import CertificateWatcher, TlsListener, open_tls, register_tls_metrics
from broker.server import descriptors, initial, reconfiguration
from broker.server.machine import Machine
from broker.server.services import all_listeners, check_schemes, is_controlling, new_faults, open_services
from broker.server.stopping import Taken
from broker.storage import data_directory
from broker.storage.config import StorageConfig
from broker.storage.log_manager import LogManager
from broker.storage.metrics import StorageMetrics
from broker.storage.upkeep.flusher import processor_flusher
from broker.web.callers import open_callers
from broker.web.history import Figures
from broker.web.routes import Routes

if TYPE_CHECKING:
    from broker.kafka.assembly import KafkaPart
    from broker.kafka.context import KafkaContext

log = get_logger("server")

# The share of the time to stop that requests in flight may take. The rest is for fsync and for closing files.
_DRAIN_SHARE = 0.75


class BrokerServer:
    """One broker: ``start``, then ``stop``. Raises ConfigError from ``start`` where a setting cannot be carried out."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime | None = None,
        open_catalogue: Callable[[str], Catalogue] = SqliteCatalogue,
        faults: Faults | None = None,
    ) -> None:
        """``runtime`` and ``open_catalogue`` (from a path to a catalogue) are the system's by default. ``faults``: None: this
        broker's own (see ``new_faults``), with those of the machine if ``faults_enabled``."""
        self.config = config
        has_machine = runtime is None and faults is None and config.faults_enabled
        self.faults = new_faults(config, has_machine=has_machine) if faults is None else faults
        if has_machine:
            machine = Machine(self.faults)
            runtime, open_catalogue = machine.runtime, machine.open_catalogue
        self.runtime = runtime if runtime is not None else system_runtime()
        self.metrics = Registry()
        self.started_ms = 0
        self.crash: BaseException | None = None
        self._open_catalogue = open_catalogue
        self._listeners = all_listeners(config)
        self._ended = Event()
        self._taken = Taken(self.runtime, self._crashed)
        self._security: Security | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind, recover, serve. If it fails, everything that was taken is released."""
        try:
            self._start()
        except BaseException:
            self._taken.release()
            raise

    def stop(self, timeout: float | None = None, *, drain: float | None = None) -> bool:
        """Stop accepting, finish the requests in flight, fsync, and release everything, within ``timeout`` s (by default
        ``shutdown_timeout_ms``). Returns True if all requests in flight were finished.

        ``drain``: the part of these seconds for the requests in flight, by default three quarters. A thread that does not end in
        time goes on, is counted in ``left_behind``, and keeps its resources.
        """
        if timeout is None:
            timeout = self.config.shutdown_timeout_ms / 1000
        clock = self.runtime.clock
        began = clock.monotonic()
        deadline = began + timeout
        drained_by = began + min(timeout, _DRAIN_SHARE * timeout if drain is None else drain)
        finished = True
        sockets, parts = self._taken.sockets, self._taken.parts
        if sockets is not None and self.started_ms:
            if self.crash is None:
                for part in parts.values():
                    part.stopping()
            sockets.stop_accepting(timeout / 4)
            if self.crash is None:
                for part in parts.values():
                    part.shut_down()
                left = max(0.0, drained_by - clock.monotonic())
                finished = sockets.drain(left)
                if not finished:
                    log.warning("requests_abandoned", timeout_s=left)
        self._taken.release(deadline)
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
        bound = {}
        for listener in self._listeners:
            host, port = self.sockets.address(listener.name)
            bound[listener.name] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return bound

    def part(self, scheme: str) -> ServicePart | None:
        """The service of this scheme, if it is open."""
        return self._taken.parts.get(scheme)

    @property
    def kafka(self) -> "KafkaContext":
        """What the handlers of the Kafka service share: for tests, and for programs that look into an embedded broker."""
        return cast("KafkaPart", self._taken.parts["kafka"]).context

    @property
    def security(self) -> Security:
        """Who may come in and what they may do: for tests, and for programs that change it in an embedded broker."""
        assert self._security is not None
        return self._security

    @property
    def sockets(self) -> SocketServer:
        assert self._taken.sockets is not None
        return self._taken.sockets

    @property
    def left_behind(self) -> int:
        """How many threads did not end in time when the broker stopped."""
        return self._taken.left_behind

    # -- start --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        config, runtime, taken = self.config, self.runtime, self._taken
        check_names(config)
        check_schemes(self._listeners)
        tls = open_tls(config, self._listeners, runtime)
        for listener in unauthenticated(config):
            log.warning("listener_unauthenticated", listener=str(listener))
        self._descriptors = descriptors.shared_out(config, runtime.descriptor_limit())
        # Locked before anything in it is opened, the catalogue included.
        directory = taken.directory = data_directory.take(runtime.disk, self._storage_config(config))
        sockets = self._bind_sockets(tls)
        catalogue = taken.catalogue = self._open_catalogue(f"{config.data_dir}/{data_directory.CATALOGUE}")
        live = LiveConfig(config, catalogue)
        sockets.resize_processors(live.in_force.network_threads)
        sockets.resize_handlers(live.in_force.io_threads)
        self._configure_quotas(sockets.quotas, live.in_force)
        logs = taken.logs = LogManager(
            runtime.disk,
            runtime.clock,
            runtime.entropy,
            self._storage_config(live.in_force),
            catalogue,
            runtime.threads.get_ident,
        )
        sockets.attach(partial(processor_flusher, logs.flusher, runtime.disk))
        logs.open(directory)
        StorageMetrics(logs, runtime.clock).register(self.metrics)
        reconfiguration.register(live, sockets, logs, tls, self._configure_quotas)
        security = self._security = open_security(config, catalogue, runtime, sockets.timer)
        security.register_metrics(self.metrics)
        security.tls = tls
        sockets.quotas.connection_rate = security.quotas.connection_rate
        surroundings = self._surroundings(live, catalogue, security)
        open_services(surroundings, logs, taken.parts, taken.spawn)
        initial.make(config, logs, security.credentials, runtime.entropy)
        taken.spawn_trace_exporter()
        if tls:
            register_tls_metrics(self.metrics, tls.values())
            taken.spawn("certificate-watcher", CertificateWatcher(list(tls.values())))
        sockets.start({each.name: taken.parts[each.scheme].service(each) for each in self._listeners})
        descriptors.report(config, self._descriptors, runtime.descriptor_limit())
        self.started_ms = runtime.clock.time_ms()

    def _storage_config(self, config: BrokerConfig) -> StorageConfig:
        return attrs.evolve(StorageConfig.from_broker(config), max_open_files=self._descriptors.open_files)

    def _bind_sockets(self, tls: Mapping[str, TlsListener]) -> SocketServer:
        """Before the recovery, which may take long: a port in use is noticed at once, and early clients wait in the
        backlog."""
        config = self.config
        settings = self._socket_settings(self._open_traces())
        sockets = self._taken.sockets = SocketServer(
            self.runtime, settings, ConnectionQuotas(0, 0, {}, 0), self._crashed
        )
        sockets.register_metrics(self.metrics)
        sockets.bind(
            [
                Binding(
                    name=listener.name,
                    service=listener.name,
                    host=listener.host,
                    port=listener.port,
                    port_max=listener.port_max,
                    frame_max=config.socket_request_max_bytes + 4,  # Kafka does not count the length field
                    control=is_controlling(config, listener),
                    tls=tls.get(listener.name),
                )
                for listener in self._listeners
            ]
        )
        return sockets

    def _surroundings(self, live: LiveConfig, catalogue: Catalogue, security: Security) -> Surroundings:
        sockets, listeners = self.sockets, self._listeners
        asking = sorted(listeners, key=lambda listener: listener.scheme != "pulsar")  # as Pulsar's admin API
        return Surroundings(
            config=self.config,
            live=live,
            runtime=self.runtime,
            timer=sockets.timer,
            catalogue=catalogue,
            security=security,
            cluster_id=self._cluster_id(catalogue),
            listeners=listeners,
            addresses={listener.name: sockets.address(listener.name) for listener in listeners},
            open_files=self._descriptors.spill_files,
            metrics=self.metrics,
            routes=Routes(),
            callers=open_callers(self.config, asking, security, self.runtime.clock),
            figures=Figures(),
            faults=self.faults,
            sockets=sockets,
        )

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

    def _configure_quotas(self, quotas: ConnectionQuotas, config: BrokerConfig) -> None:
        descriptors.configure_quotas(quotas, config, self.runtime.descriptor_limit())

    def _open_traces(self) -> Traces | None:
        """None where no request is traced. Raises ConfigError."""
        config = self.config
        if not config.tracing_sample_ratio:
            return None
        traces = Traces(config.tracing_sample_ratio)
        version = importlib.metadata.version("reactor-broker")
        self._taken.trace_exporter = open_exporter(
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
