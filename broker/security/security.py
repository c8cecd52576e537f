"""The security of one broker, for all its services: made by the server, before the services.

Tests: tests/test_server.py.
"""

from collections.abc import Mapping

import attrs

from broker.config import BrokerConfig
from broker.config.per_listener import for_listener
from broker.metadata.catalogue import Catalogue
from broker.metrics import Registry
from broker.runtime import Runtime
from broker.runtime.timers import Timer
from broker.security.authorizer import Authorizer
from broker.security.client_software import ClientSoftware
from broker.security.credentials import Credentials
from broker.security.sasl.exchange import NewExchange
from broker.security.sasl.login_counters import LoginCounters
from broker.security.sasl.mechanisms import open_mechanisms
from broker.security.tls_listener import TlsListener


@attrs.define(eq=False)
class Security:
    """``authorizer`` None: everybody may do everything. ``mechanisms``: of each listener where clients log in, by its name."""

    credentials: Credentials
    authorizer: Authorizer | None = None
    tls: Mapping[str, TlsListener] = attrs.Factory(dict)  # by the names of the listeners that have TLS
    mechanisms: Mapping[str, Mapping[str, NewExchange]] = attrs.Factory(dict)
    logins: LoginCounters = attrs.Factory(LoginCounters)
    client_software: ClientSoftware = attrs.Factory(ClientSoftware)

    def register_metrics(self, registry: Registry) -> None:
        self.logins.register(registry)
        self.client_software.register(registry)


def open_security(config: BrokerConfig, catalogue: Catalogue, runtime: Runtime, timer: Timer) -> Security:
    """Load what the catalogue has. Raises ConfigError for settings that cannot be carried out."""
    control = [config.control_listener] if config.control_listener else []
    with_logins = [listener for listener in (*config.listeners, *control) if listener.sasl]
    credentials = Credentials(catalogue, runtime.entropy)
    credentials.open(with_logins=bool(with_logins))
    return Security(
        credentials,
        mechanisms={
            listener.name: open_mechanisms(for_listener(config, listener.name), credentials, runtime.entropy)
            for listener in with_logins
        },
    )
