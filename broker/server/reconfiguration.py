"""Putting settings in force that can be changed while the broker runs: one entry for each ``Way`` of the table in
``broker/config/dynamic_settings.py``. The server registers them.

Tests: tests/server/test_reconfiguration.py.
"""

from collections.abc import Callable, Mapping

import attrs

from broker.config import BrokerConfig, Listener
from broker.config.dynamic_settings import Way
from broker.config.open_listeners import unauthenticated
from broker.errors import ConfigError
from broker.live_config import LiveConfig, Reconfigurable
from broker.network.quota import ConnectionQuotas
from broker.network.socket_server import SocketServer
from broker.security.tls_listener import TlsListener, tls_config
from broker.server.services import all_listeners
from broker.storage.config import StorageConfig
from broker.storage.log.log_config import LogConfig
from broker.storage.log_manager import LogManager


def register(
    live: LiveConfig,
    sockets: SocketServer,
    logs: LogManager,
    tls: Mapping[str, TlsListener],
    configure_quotas: Callable[[ConnectionQuotas, BrokerConfig], None],
) -> None:
    """``tls``: the listeners that have it, by name. ``configure_quotas`` knows how many descriptors are left for connections.
    Raises ConfigError if earlier changes would let in other clients than they say."""
    live.register(Way.STORAGE, _storage(logs))
    live.register(Way.TLS, _certificates(tls))
    if live.in_force != live.static:
        _take_changed_tls(live.in_force, tls)
    live.register(
        Way.PROCESSORS,
        Reconfigurable(
            apply=lambda config: sockets.resize_processors(config.network_threads),
            check=lambda before, after: _at_most_doubled_or_halved("num.network.threads", before, after),
        ),
    )
    live.register(
        Way.HANDLERS,
        Reconfigurable(
            apply=lambda config: sockets.resize_handlers(config.io_threads),
            check=lambda before, after: _at_most_doubled_or_halved("num.io.threads", before, after),
        ),
    )
    live.register(
        Way.CONNECTIONS, Reconfigurable(apply=lambda config: configure_quotas(sockets.quotas, config), check=_addresses)
    )


def _storage(logs: LogManager) -> Reconfigurable:
    def apply(config: BrokerConfig) -> None:
        logs.reconfigure(attrs.evolve(StorageConfig.from_broker(config), max_open_files=logs.config.max_open_files))

    def check(_: BrokerConfig, after: BrokerConfig) -> None:
        logs.check_defaults(LogConfig.from_broker(after))

    return Reconfigurable(apply, check)


def _certificates(tls: Mapping[str, TlsListener]) -> Reconfigurable:
    def apply(config: BrokerConfig) -> None:
        for each, listener in _with_tls(config, tls):
            _refuse(each, listener.reload(tls_config(config, each)))

    def check(_: BrokerConfig, after: BrokerConfig) -> None:
        unauthenticated(after)  # a listener that does not ask for certificates any more may be open to everybody
        for each, listener in _with_tls(after, tls):
            _refuse(each, listener.check(tls_config(after, each)))

    return Reconfigurable(apply, check)


def _take_changed_tls(config: BrokerConfig, tls: Mapping[str, TlsListener]) -> None:
    """At the start, apply earlier changes."""
    try:
        unauthenticated(config)
    except ConfigError as error:
        raise ConfigError(
            f"{error} A change of ssl.client.auth that was made while the broker was running is in force."
        ) from error
    for each, listener in _with_tls(config, tls):
        wanted = tls_config(config, each)
        reason = listener.reload(wanted, at_start=True)
        # Otherwise the event says why, and the listener has the certificate of the configuration.
        if wanted.ssl_client_auth != "none":
            _refuse(each, reason)


def _with_tls(config: BrokerConfig, tls: Mapping[str, TlsListener]) -> list[tuple[Listener, TlsListener]]:
    return [(each, tls[each.name]) for each in all_listeners(config) if each.name in tls]


def _refuse(listener: Listener, reason: str | None) -> None:
    if reason is not None:
        raise ConfigError(f"Correct the TLS settings of the listener {listener.name}: {reason}.")


_THREADS = {"num.network.threads": "network_threads", "num.io.threads": "io_threads"}


def _at_most_doubled_or_halved(name: str, before: BrokerConfig, after: BrokerConfig) -> None:
    """As in Kafka, so that a slip of the finger does not take a broker down."""
    present, wanted = getattr(before, _THREADS[name]), getattr(after, _THREADS[name])
    if not present // 2 <= wanted <= present * 2:
        raise ConfigError(
            f"Change {name} in several steps: it is {present}, and one step may halve or double it, so {wanted} is too "
            f"{'many' if wanted > present else 'few'}."
        )


def _addresses(_: BrokerConfig, after: BrokerConfig) -> None:
    for address in after.max_connections_per_ip_overrides:
        if not address.strip():
            raise ConfigError("Name an address in max.connections.per.ip.overrides, as in 127.0.0.1:100.")
