"""The server: takes the data directory, opens the storage and the services, starts the threads, and stops all of it in order.

A ``BrokerServer`` belongs to the thread that made it. ``services.py`` knows the services, ``stopping.py`` releases everything,
``descriptors.py`` limits open files and connections.
"""

import base64
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs

from broker.cluster.nodes import NODES, SETTLE_S, leader_epoch
from broker.config import BrokerConfig
from broker.config.listener import NODES_LISTENER
from broker.config.open_listeners import unauthenticated
from broker.config.per_listener import check_names
from broker.errors import BrokerError, ConfigError, Fenced
from broker.faults.faults import Faults
from broker.live_config import LiveConfig
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.sqlite import SqliteCatalogue
from broker.metrics import Registry
from broker.metrics.tracing import Traces, open_exporter
from broker.network.leased_sending import AnswersLease
from broker.network.quota import ConnectionQuotas
from broker.network.socket_server import CONTROL_CONNECTIONS, Binding, SocketServer, SocketServerSettings
from broker.part import ServicePart, Surroundings, endpoints
from broker.runtime import Runtime, system_runtime
from broker.runtime.disk import Disk
from broker.runtime.threads import Event
from broker.security.security import Security, open_security
from broker.security.tls_listener import CertificateWatcher, TlsListener, open_tls, register_tls_metrics
from broker.server import descriptors, initial, reconfiguration
from broker.server.machine import Machine
from broker.server.services import (
    all_listeners,
    check_schemes,
    import_services,
    is_controlling,
    new_faults,
    open_services,
)
from broker.server.stopping import Taken
from broker.server.tiering import claim_store, open_tier
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
    from broker.server.durable import DurableState
    from broker.server.engine import OpenEngine
    from broker.server.member import Member

log = get_logger("server")

# The share of the time to stop that requests in flight may take. The rest is for fsync and for closing files.
_DRAIN_SHARE = 0.75


class StandbyEnded(BrokerError):
    """``request_stop`` was called while the broker stood by."""


class BrokerServer:
    """One broker: ``start``, then ``stop``. Raises ConfigError from ``start`` where a setting cannot be carried out."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime | None = None,
        open_catalogue: Callable[[str], Catalogue] = SqliteCatalogue,
        faults: Faults | None = None,
        open_engine: "OpenEngine | None" = None,
        member: "Member | None" = None,
    ) -> None:
        """``runtime`` and ``open_catalogue`` (from a path to a catalogue) are the system's by default. ``faults``: None: this
        broker's own (see ``new_faults``), with those of the machine if ``faults_enabled``. ``open_engine``: what has the state
        where ``catalogue`` is set; None: PostgreSQL. ``member``: which of several nodes this is; None: the only one."""
        if member is not None:
            config = member.adapt(config)
        self._member = member
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
        self._open_engine = open_engine
        self._listeners = [*all_listeners(config), *([] if member is None else [member.listener])]
        self._ended = Event()
        self._taken = Taken(self.runtime, self._crashed)
        self._security: Security | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind, recover, serve. If it fails, everything that was taken is released."""
        try:
            self._start()
        except BaseException as error:
            self._taken.release()
            reason = _fenced_by(error)
            if reason is not None:  # the disk could not say so
                raise BrokerError(
                    f"The broker does not start, as it does not own its state any more: {reason}."
                ) from error
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
        if config.nodes > 1 and self._member is None:
            raise ConfigError("Leave nodes out: they are processes of `broker serve`, and this broker is one process.")
        check_names(config)
        check_schemes(self._listeners)
        tls = open_tls(config, self._listeners, runtime)
        for listener in unauthenticated(config):
            log.warning("listener_unauthenticated", listener=str(listener))
        self._descriptors = descriptors.shared_out(config, runtime.descriptor_limit())
        durable = self._open_durable()
        # Locked before anything in it is opened, the catalogue included.
        directory = taken.directory = data_directory.take(runtime.disk, self._storage_config(config))
        if self._member is None and runtime.disk.exists(f"{config.data_dir}/{NODES}"):
            from broker.server.node_directories import gather

            gather(runtime.disk, config.data_dir)
        sockets = self._bind_sockets(tls, None if durable is None else durable.engine.owner.lease)
        if durable is None:
            disk = runtime.disk
            if self._member is not None:
                catalogue = taken.catalogue = self._member.open_catalogue()
            else:
                catalogue = taken.catalogue = self._open_catalogue(f"{config.data_dir}/{data_directory.CATALOGUE}")
        else:
            disk, catalogue = durable.disk, durable.catalogue
            durable.restore(partial(self._cluster_id, catalogue))
        live = LiveConfig(config, catalogue)
        sockets.resize_processors(live.in_force.network_threads)
        sockets.resize_handlers(live.in_force.io_threads)
        self._configure_quotas(sockets.quotas, live.in_force)
        objects, sharing = (None, self._member) if durable is None else (durable.objects, None)
        tier = open_tier(config, disk, catalogue, runtime, objects, sharing)
        if durable is not None:
            assert tier is not None
            durable.settle(tier)
        nodes = None if self._member is None else self._member.nodes(disk)
        first_epoch = leader_epoch(catalogue, 1 if nodes is None else nodes.count)
        logs = taken.logs = LogManager(
            disk if tier is None else tier.disk,
            runtime.clock,
            runtime.entropy,
            self._storage_config(live.in_force),
            catalogue,
            runtime.threads.get_ident,
            tier,
            nodes,
            first_epoch if nodes is None else first_epoch + nodes.epoch,
        )
        sockets.attach(partial(processor_flusher, logs.flusher, logs.disk))
        logs.open(directory)
        StorageMetrics(logs, runtime.clock).register(self.metrics)
        reconfiguration.register(live, sockets, logs, tls, self._configure_quotas)
        security = self._security = open_security(config, catalogue, runtime, sockets.timer)
        security.register_metrics(self.metrics)
        security.tls = tls
        sockets.quotas.connection_rate = security.quotas.connection_rate
        surroundings = self._surroundings(live, catalogue, security, logs.disk)
        open_services(surroundings, logs, taken.parts, taken.spawn)
        if tier is not None:  # after the flushers, which stop last
            if durable is None:
                claim_store(tier, surroundings.cluster_id)
            for name, body in tier.bodies(runtime.entropy, logs.partitions, lambda: logs.config):
                taken.spawn(name, body)
            tier.register_metrics(self.metrics)
            if durable is not None:
                durable.keep(logs, tier, self._crashed)
                durable.register_metrics(self.metrics)
        if self._member is None or self._member.place == 0:
            initial.make(config, logs, security.credentials, runtime.entropy)
        taken.spawn_trace_exporter()
        if tls:
            register_tls_metrics(self.metrics, tls.values())
            taken.spawn("certificate-watcher", CertificateWatcher(list(tls.values())))
        if self._member is not None:
            assert logs.nodes is not None
            about = endpoints(surroundings)
            watch = self._member.watch(logs, surroundings.reloads, about, self.config.broker_rack)
            taken.spawn("node-watch", watch)
            watch.caught_up.wait(SETTLE_S)
        if durable is not None:
            durable.engine.owner.wait_to_answer()
        sockets.start({each.name: taken.parts[each.scheme].service(each) for each in self._listeners})
        descriptors.report(config, self._descriptors, runtime.descriptor_limit())
        self.started_ms = runtime.clock.time_ms()

    def _open_durable(self) -> "DurableState | None":
        """None if the state is on this machine. Raises ConfigError."""
        if self.config.catalogue is None:
            return None
        from broker.cluster.owner import Callbacks
        from broker.server.durable import open_durable
        from broker.server.engine import open_postgres

        if self.config.standby:
            import_services(self.config)
        open_engine: OpenEngine = open_postgres if self._open_engine is None else self._open_engine
        node = 0 if self._member is None else self._member.place
        durable = self._taken.durable = open_durable(self.config, self.runtime, self._ended.is_set, open_engine, node)
        if durable is None:
            raise StandbyEnded("The broker was stopped while it stood by.")
        self._taken.catalogue = durable.catalogue
        durable.start(Callbacks(self._suspended, self._resumed, self._fenced), self._crashed)
        return durable

    def _suspended(self) -> None:
        """Without the lease another broker may lead: clients have to look for it."""
        if self._taken.sockets is not None:
            self._taken.sockets.suspend()

    def _resumed(self) -> None:
        if self._taken.sockets is not None:
            self._taken.sockets.resume()

    def _fenced(self, reason: str) -> None:
        self._suspended()
        self._crashed(Fenced(reason))

    def _storage_config(self, config: BrokerConfig) -> StorageConfig:
        return attrs.evolve(StorageConfig.from_broker(config), max_open_files=self._descriptors.open_files)

    def _bind_sockets(self, tls: Mapping[str, TlsListener], lease: AnswersLease | None) -> SocketServer:
        """Before the recovery, which may take long: a port in use is noticed at once, and early clients wait in the
        backlog."""
        config = self.config
        settings = self._socket_settings(self._open_traces())
        sockets = self._taken.sockets = SocketServer(
            self.runtime, settings, ConnectionQuotas(0, 0, {}, 0), self._crashed, lease
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
                    suspends=listener.scheme != "http",
                )
                for listener in self._listeners
            ]
        )
        if self._member is not None:
            sockets.quotas.protect(NODES_LISTENER, CONTROL_CONNECTIONS, of_nodes=True)
        return sockets

    def _surroundings(self, live: LiveConfig, catalogue: Catalogue, security: Security, disk: Disk) -> Surroundings:
        sockets, listeners = self.sockets, self._listeners
        # As Pulsar's admin API. Nodes have no logins there.
        asking = sorted(all_listeners(self.config), key=lambda listener: listener.scheme != "pulsar")
        return Surroundings(
            config=self.config,
            live=live,
            runtime=attrs.evolve(self.runtime, disk=disk),  # what services finish is as durable as the records
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
            reloads={
                "topics": [self._taken_logs().catch_up],
                "broker_configs": [live.reload],
                "credentials": [security.credentials.reload],
                "quotas": [security.quotas.reload],
                "acls": [] if security.authorizer is None else [security.authorizer.reload],
            },
        )

    def _taken_logs(self) -> LogManager:
        assert self._taken.logs is not None
        return self._taken.logs

    def _crashed(self, error: BaseException) -> None:
        """A thread has ended by an exception, which is a bug, or another broker has taken over. This one cannot go on."""
        if not isinstance(error, Fenced):  # which the owner has logged
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
        from importlib.metadata import version

        traces = Traces(config.tracing_sample_ratio)
        self._taken.trace_exporter = open_exporter(
            traces, self.runtime.clock, config.tracing_endpoint, config.node_id, version("reactor-broker")
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


def _fenced_by(error: BaseException) -> Fenced | None:
    """What it comes of, if another broker has taken over."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Fenced):
        cause = cause.__cause__
    return cause
