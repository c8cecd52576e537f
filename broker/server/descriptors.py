"""Divides the file descriptors of the process among files and connections, by the settings of this broker.

If connections could take all of them, the broker could not open the file that an fsync needs. So some are reserved for work
that must never fail, and the rest is divided between cached files and connections.

Called at the start, and by any thread that changes settings. ``share_out`` is pure.
"""

import attrs

from broker.config import BrokerConfig
from broker.config.per_listener import for_listener
from broker.log import get_logger
from broker.network.quota import ConnectionQuotas, ListenerLimits
from broker.network.socket_server import CONTROL_CONNECTIONS
from broker.server.services import all_listeners, is_controlling, sources
from broker.storage.upkeep.flusher import FLUSHER_THREADS

log = get_logger("server")

_INT_MAX = 2**31 - 1
# Descriptors that a broker holds as long as it runs, with a margin: standard streams, listening sockets, the three
# files of the catalogue, the lock, the control plane, an event loop of the user's.
_LASTING = 32
# A processor has a poller, a wake-up descriptor and a descriptor that reports fsyncs; an acceptor has the first two.
_PER_PROCESSOR = 3
# A handler opens a file or a directory, and one more while the first is evicted from the cache. So do the flusher's threads, the
# housekeeper, the catalogue writer, the marker writer and the spiller.
_PER_WORKER = 2
_OTHER_WORKERS = 4
# Files get at most a third of the divided descriptors: a cached file only saves some µs, a connection is a client.
_FILES_SHARE = 3
# The logs' request counts at most this much against that of spilled result partitions.
_LOGS_WEIGHT = 400
# Each gets at least this many, even if the limit is too low. Opening a descriptor beyond the limit then fails.
_LEAST = 16


@attrs.frozen
class Descriptors:
    """``open_files``: for the cache of the logs. ``spill_files``: for the cache of the shuffle. ``connections``: for
    all data listeners."""

    open_files: int
    spill_files: int
    connections: int


def share_out(
    limit: int,
    *,
    open_files: int,
    spill_files: int,
    connections: int,
    control_connections: int,
    processors: int,
    handlers: int,
    flushers: int,
) -> Descriptors:
    """``limit``: that of the process. The other numbers are those of the settings; nothing gets more than that."""
    workers = handlers + flushers + _OTHER_WORKERS
    reserved = _LASTING + _PER_PROCESSOR * (processors + 2) + _PER_WORKER * workers + control_connections
    left = max(0, limit - reserved)
    files = min(open_files + spill_files, max(left // _FILES_SHARE, left - connections))
    spill = min(spill_files, files * spill_files // (min(open_files, _LOGS_WEIGHT) + spill_files))
    logs, spills = max(min(_LEAST, open_files), files - spill), max(min(_LEAST, spill_files), spill)
    return Descriptors(
        open_files=logs, spill_files=spills, connections=min(connections, max(_LEAST, left - logs - spills))
    )


def shared_out(config: BrokerConfig, limit: int) -> Descriptors:
    """``limit``: of the process."""
    listeners = all_listeners(config)
    return share_out(
        limit,
        open_files=config.max_open_files,
        spill_files=sum(source.open_files for source in sources(config).values()),
        connections=config.max_connections,
        control_connections=CONTROL_CONNECTIONS * sum(is_controlling(config, listener) for listener in listeners),
        processors=config.network_threads,
        handlers=config.io_threads,
        flushers=FLUSHER_THREADS,
    )


def report(config: BrokerConfig, shared: Descriptors, limit: int) -> None:
    """Warn if the files or connections are fewer than configured. Defaults count as not configured."""
    defaults = attrs.fields(BrokerConfig)
    connections = shared.connections < config.max_connections != defaults.max_connections.default
    if connections or shared.open_files < config.max_open_files != defaults.max_open_files.default:
        log.warning(
            "descriptors_reduced",
            limit=limit,
            max_open_files=shared.open_files,
            max_connections=shared.connections,
        )


def configure_quotas(quotas: ConnectionQuotas, config: BrokerConfig, limit: int) -> None:
    """Set the limits of connections, of the broker and of each listener."""
    # A listener's own limits only: where it has none, those of the broker count all listeners together.
    without = attrs.evolve(config, max_connections=_INT_MAX, max_connection_creation_rate=_INT_MAX)
    own = {listener.name: for_listener(without, listener.name) for listener in all_listeners(config)}
    quotas.configure(
        max_connections=shared_out(config, limit).connections,
        max_per_address=config.max_connections_per_ip,
        per_address_overrides=config.max_connections_per_ip_overrides,
        max_per_second=_per_second(config),
        listeners={name: ListenerLimits(each.max_connections, _per_second(each)) for name, each in own.items()},
    )


def _per_second(config: BrokerConfig) -> float:
    rate = config.max_connection_creation_rate
    return 0.0 if rate >= _INT_MAX else float(rate)
