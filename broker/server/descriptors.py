"""The numbers of files and connections that this broker may have open, from its settings and the limit of the process.

``broker/config/descriptors.py`` has the rule. Called at the start, and by any thread that changes settings.

Tests: tests/server/test_broker_server.py, tests/config/test_descriptors.py.
"""

import attrs

from broker.config import BrokerConfig
from broker.config.descriptors import Descriptors, share_out
from broker.config.per_listener import for_listener
from broker.log import get_logger
from broker.network.quota import ConnectionQuotas, ListenerLimits
from broker.network.socket_server import CONTROL_CONNECTIONS
from broker.server.services import all_listeners, is_controlling, sources
from broker.storage.upkeep.flusher import FLUSHER_THREADS

log = get_logger("server")

_INT_MAX = 2**31 - 1


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
    defaults = BrokerConfig()
    connections = shared.connections < config.max_connections != defaults.max_connections
    if connections or shared.open_files < config.max_open_files != defaults.max_open_files:
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
