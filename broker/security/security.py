"""The security of one broker, for all its services: made by the server, before the services.

Tests: tests/security/test_security.py.
"""

from collections.abc import Mapping

import attrs

from broker.config import BrokerConfig
from broker.config.per_listener import for_listener
from broker.errors import ConfigError
from broker.metadata.catalogue import Catalogue
from broker.metrics import Registry
from broker.runtime import Runtime
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.client_software import ClientSoftware
from broker.security.credentials import Credentials
from broker.security.principal import parse_principal
from broker.security.quotas.client_quotas import ClientQuotas, Windows
from broker.security.sasl.exchange import LoginCounters, NewExchange
from broker.security.sasl.mechanisms import open_mechanisms
from broker.security.tls_listener import TlsListener


@attrs.define(eq=False)
class Security:
    """``authorizer`` None: everybody may do everything. ``mechanisms``: of each listener where clients log in, by its name."""

    credentials: Credentials
    quotas: ClientQuotas
    authorizer: AclAuthorizer | None = None
    mechanisms: Mapping[str, Mapping[str, NewExchange]] = attrs.Factory(dict)
    tls: Mapping[str, TlsListener] = attrs.Factory(dict)  # by the names of the listeners that have TLS
    logins: LoginCounters = attrs.Factory(LoginCounters)
    client_software: ClientSoftware = attrs.Factory(ClientSoftware)

    def register_metrics(self, registry: Registry) -> None:
        self.logins.register(registry)
        self.client_software.register(registry)
        self.quotas.register_metrics(registry)
        if self.authorizer is not None:
            self.authorizer.register(registry)


def open_security(config: BrokerConfig, catalogue: Catalogue, runtime: Runtime, timer: Timer) -> Security:
    """Load what the catalogue has. Raises ConfigError for settings that cannot be carried out."""
    control = [config.control_listener] if config.control_listener else []
    with_logins = [listener for listener in (*config.listeners, *control) if listener.sasl]
    credentials = Credentials(catalogue, runtime.entropy)
    credentials.open(with_logins=bool(with_logins))
    windows = Windows(
        config.quota_window_num,
        config.quota_window_size_seconds,
        config.controller_quota_window_num,
        config.controller_quota_window_size_seconds,
    )
    quotas = ClientQuotas(catalogue, runtime.clock, windows)
    quotas.load()
    return Security(
        credentials,
        quotas,
        mechanisms={
            listener.name: open_mechanisms(for_listener(config, listener.name), listener, credentials, runtime, timer)
            for listener in with_logins
        },
        authorizer=_authorizer(config, catalogue, runtime.clock),
    )


def _authorizer(config: BrokerConfig, catalogue: Catalogue, clock: Clock) -> AclAuthorizer | None:
    # Checked in either case: a name that is misspelled now would be missed on the day that ACLs are switched on.
    try:
        super_users = frozenset(
            str(parse_principal(text.strip())) for text in config.super_users.split(";") if text.strip()
        )
    except ConfigError as error:
        raise ConfigError(f"Correct super_users: {error}") from error
    if config.authorizer_class_name is None:
        return None
    return AclAuthorizer(
        catalogue,
        clock,
        super_users=super_users,
        default=config.allow_everyone_if_no_acl_found,
        acls_max=config.acls_max,
    )
