"""The security of one broker, for all its services: the server makes it before the services.

`ClientSoftware` counts connections by the software that clients name (KIP-511). Clients choose the names, so the table
is bounded: beyond ``KINDS_MAX`` kinds, only the number of connections is known. Any thread may call; a client names its
software once for each connection.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import attrs

from broker.config import BrokerConfig
from broker.config.per_listener import for_listener
from broker.errors import ConfigError
from broker.metadata.catalogue import Catalogue
from broker.metrics import Registry, names
from broker.runtime import Runtime
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.client_quotas import ClientQuotas, Windows
from broker.security.credentials import Credentials
from broker.security.principal import parse_principal
from broker.security.sasl.exchange import LoginCounters, NewExchange
from broker.security.sasl.mechanisms import open_mechanisms
from broker.security.tls_listener import TlsListener

# Kafka's ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN.
_VALID = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
KINDS_MAX = 200
_LENGTH_MAX = 100


class Software(NamedTuple):
    name: str
    version: str


OTHER = Software("other", "")


def is_valid(name: str, version: str) -> bool:
    """Whether Kafka accepts the name and version."""
    return _VALID.fullmatch(name) is not None and _VALID.fullmatch(version) is not None


class ClientSoftware:
    def __init__(self) -> None:
        self._lock = Lock()
        self._connections: dict[Software, int] = {}

    def enter(self, name: str, version: str) -> Software:
        """A client has named its software. Pass the result to ``leave`` when the connection is closed."""
        software = Software(name, version)
        if len(name) > _LENGTH_MAX or len(version) > _LENGTH_MAX:
            software = OTHER
        with self._lock:
            if software not in self._connections and len(self._connections) >= KINDS_MAX:
                software = OTHER
            self._connections[software] = self._connections.get(software, 0) + 1
        return software

    def leave(self, software: Software) -> None:
        with self._lock:
            left = self._connections[software] - 1
            if left:
                self._connections[software] = left
            else:
                del self._connections[software]

    def read(self) -> dict[tuple[str, ...], float]:
        with self._lock:
            return {tuple(software): float(count) for software, count in self._connections.items()}

    def register(self, registry: Registry) -> None:
        registry.gauge(names.CLIENT_SOFTWARE, self.read)


@attrs.define(eq=False)
class Security:
    """``authorizer``: None if everybody may do everything. ``mechanisms``: of each listener with logins, by its
    name."""

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
    """Load the catalogue's rows. Raises ConfigError for settings that cannot be put in force."""
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
    # Checked without an authorizer, too: otherwise a misspelled name would be noticed only when ACLs are switched on.
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
