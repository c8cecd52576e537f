"""TLS of shuffle connections: the settings that users give as ``security``, and the contexts that connections use.

Shuffle listeners have no SASL: a certificate identifies the client.

Tests: tests/client/shuffle/test_security.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from broker.client.security_settings import SecuritySettings
from broker.errors import ConfigError
from broker.runtime.client_tls import TlsContext, TlsSettings, tls_context

# The names of a mapping are Kafka's: {"security.protocol": "SSL", "ssl.truststore.location": "ca.crt"}.
SecurityLike = SecuritySettings | Mapping[str, Any] | None

TLS_SCHEME = "shuffle+ssl://"


@attrs.frozen
class Tls:
    """Equal for equal settings, so that gates share connections."""

    settings: TlsSettings
    context: TlsContext = attrs.field(eq=False, repr=False)


def shuffle_security(security: SecurityLike, addresses: Iterable[object] = ()) -> SecuritySettings | None:
    """``security`` as a value, None for no TLS. An address with ``shuffle+ssl://`` asks for TLS as well. Raises ConfigError."""
    wanted = any(isinstance(address, str) and address.startswith(TLS_SCHEME) for address in addresses)
    if security is None and not wanted:
        return None
    if not isinstance(security, SecuritySettings):
        protocol = {"security.protocol": "SSL"} if wanted else {}
        security = SecuritySettings.from_properties({**protocol, **(security or {})})
    if security.sasl is not None:
        raise ConfigError(
            "Set security.protocol to SSL for shuffle: its listeners know clients by certificates, not by SASL."
        )
    if security.tls is None:
        return SecuritySettings(TlsSettings()) if wanted else None
    return security


def open_tls(security: SecurityLike, addresses: Iterable[object] = ()) -> Tls | None:
    """None: no TLS. Raises ConfigError."""
    settings = shuffle_security(security, addresses)
    if settings is None or settings.tls is None:
        return None
    try:
        return Tls(settings.tls, tls_context(settings.tls))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The certificates of the client cannot be used: {error}.") from None
